"""The parts that a network is made of: matrices, tables, what they declare to the optimiser, the base of token mixers.

Shapes: B batch, T positions, C width, H heads, D = C / H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogka import dispatch
from nanogka.attention.rotary import CosSin

if TYPE_CHECKING:
    from nanogka.model.config import GPTConfig
    from nanogka.model.kv_cache import LayerCache


class Linear(nn.Linear):
    """A matrix without bias, kept in its own precision (float32 masters) and applied in that of its input."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Do nothing: `GPT.init_weights` gives every parameter its value."""

    def forward(self, x: Tensor) -> Tensor:
        return dispatch.linear(x, self.weight.to(x.dtype))


class Embedding(nn.Embedding):
    """A table of vectors whose values `GPT.init_weights` gives."""

    def reset_parameters(self) -> None:
        """Do nothing: `GPT.init_weights` gives every parameter its value."""


@dataclass(frozen=True)
class ParameterGroup:
    """Treatment of a group of parameters by the optimiser and the accounting.

    Attributes:
        name: of the group, in reports.
        optimizer: "muon" (matrices only) or "adamw".
        rate: which learning rate of `nanogka.train.optimizer.Rates` it takes.
        factor: of that rate.
        betas: of AdamW.
        scales_with_width: whether the rate is multiplied by (C / 768)^−½.
        multiplies_tokens: whether each parameter costs a multiplication per token: 6 FLOPs in training.
    """

    name: str
    optimizer: str = "adamw"
    rate: str = "scalar"
    factor: float = 1.0
    betas: tuple[float, float] = (0.8, 0.95)
    scales_with_width: bool = False
    multiplies_tokens: bool = False


EMBEDDING = ParameterGroup("embedding", rate="embedding", scales_with_width=True)
VALUE_EMBEDDING = ParameterGroup("value_embedding", rate="embedding", scales_with_width=True)
UNEMBEDDING = ParameterGroup("lm_head", rate="unembedding", scales_with_width=True, multiplies_tokens=True)
MATRIX = ParameterGroup("matrix", optimizer="muon", rate="matrix", multiplies_tokens=True)
BANDWIDTH = ParameterGroup("bandwidth", rate="bandwidth")
RESID_LAMBDAS = ParameterGroup("resid_lambdas", factor=0.01)
X0_LAMBDAS = ParameterGroup("x0_lambdas")
VECTOR = ParameterGroup("vector", factor=0.01)


class Initializer:
    """Initial values that a seed decides, the same on every device."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, parameter: Tensor, std: float) -> None:
        """Fill with N(0, std²)."""
        parameter.copy_(torch.empty(parameter.shape).normal_(0, std, generator=self.generator))

    def uniform(self, parameter: Tensor, bound: float) -> None:
        """Fill with the uniform distribution from −bound to bound."""
        parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=self.generator))


@dataclass
class ForwardContext:
    """The tokens that a forward pass works on, beside their activations.

    Attributes:
        ids: (B, T) token ids, 0 for padding.
        cos_sin: rotary tables of their positions.
        valid: (B, T) bool, false for padding after a row's tokens; `None` where there is none.
    """

    ids: Tensor
    cos_sin: CosSin
    valid: Tensor | None = None


class Mixer(nn.Module):
    """Base class of the token mixers: the part of a block that moves information between positions.

    A mixer declares everything about itself here, and nobody else knows its name: a new one is one file beside
    `mixers/gaussian.py` and one line in `mixers/__init__.py`. Its projection back into the residual stream is zero at
    the start, by convention.

    Attributes:
        name, letter: on command lines, and in patterns such as GGGD.
        label, color: in reports and plots.
        tokens_per_parameter: default training horizon, in tokens per matrix or lm_head parameter.
        causal: whether a position sees only itself and those before it.
        cached_tensors: tensors of C elements that a decode cache keeps of each position.
        window: how far back a position sees, see `nanogka.attention.visible`; None for all.
    """

    name: str
    letter: str
    label: str
    color: str
    tokens_per_parameter: float = 10.5
    causal: bool = True
    cached_tensors: int = 0

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.n_head, self.head_dim = config.n_head, config.head_dim
        self.window = config.windows()[layer]

    def init_weights(self, init: Initializer) -> None:
        """Give every parameter its initial value."""
        raise NotImplementedError

    def parameter_group(self, name: str, parameter: Tensor) -> ParameterGroup:
        """The optimiser group of a parameter of this mixer: Muon for matrices, AdamW for all else."""
        return MATRIX if parameter.ndim == 2 else VECTOR

    def flops_per_token(self) -> int:
        """Training FLOPs per token beside those of its matrices: 12 · C · min(W, T) for attention."""
        T = self.config.sequence_len
        return 12 * self.config.n_embd * (T if self.window is None else min(self.window, T))

    def cache_elements(self, context: int) -> int:
        """Elements that a decode cache holds of one row of `context` tokens: per position, and of any state."""
        kept = context if self.window is None else min(context, self.window + 1)
        return self.cached_tensors * kept * self.config.n_embd

    def float32_state_elements(self) -> int:
        """Elements of a row's state that a decode cache holds in float32 whatever the dtype of the activations."""
        return 0

    @property
    def bandwidth(self) -> Tensor | None:
        """(H,) σ of each head, or None for a mixer without."""
        return None

    def observations(self) -> dict[str, Tensor]:
        """Named vectors (H,) to log after every step: σ of each head, or what else a mixer has to tell."""
        return {} if self.bandwidth is None else {"bandwidth": self.bandwidth}

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, C) as (B, T, H, D), a view."""
        return x.unflatten(-1, (self.n_head, self.head_dim))

    def forward(self, x: Tensor, context: ForwardContext, cache: LayerCache | None = None) -> Tensor:
        """Mix positions.

        Args:
            x: (B, T, C) normalised activations.
            context: of these tokens.
            cache: of this layer; without it `x` are whole sequences. `cache.update(…)` keeps tensors of the new
                positions and returns those of all, `cache.state(…)` keeps what is not per position.

        Returns:
            (B, T, C).
        """
        raise NotImplementedError


def with_preceding(x: Tensor, count: int, context: ForwardContext, cache: LayerCache | None, name: str) -> Tensor:
    """(B, count + T, …): x (B, T, …) behind the `count` positions before it, zeros at the start of a sequence.

    The input of a short causal convolution; with a cache, its last positions are kept there under `name`.
    """
    if cache is None:
        return F.pad(x, (0, 0) * (x.ndim - 2) + (count, 0))
    before = cache.state(name, x.new_zeros(len(x), count, *x.shape[2:]))
    joined = torch.cat([before, x], dim=1)
    if context.valid is None:
        cache.set_state(name, joined[:, x.shape[1] :])
    else:  # the last `count` positions of a row that are not padding
        last = context.valid.sum(1)[:, None] + torch.arange(count, device=x.device)
        cache.set_state(name, joined[torch.arange(len(x), device=x.device)[:, None], last])
    return joined
