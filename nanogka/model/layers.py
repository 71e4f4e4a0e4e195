"""The parts that a network is made of: matrices, tables, what they declare to the optimizer, the base of token mixers.

Shapes: B batch, T positions, C width, H heads, D = C / H.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogka import dispatch
from nanogka.attention import visible
from nanogka.attention.rotary import CosSin
from nanogka.model.config import GPTConfig, MixerDeclaration
from nanogka.model.kv_cache import LayerCache


class Linear(nn.Linear):
    """A matrix without bias, kept in its own precision (float32 masters) and applied in that of its input."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """`GPT.init_weights` gives every parameter its value."""

    def forward(self, x: Tensor) -> Tensor:
        return dispatch.linear(x, self.weight.to(x.dtype))


class Embedding(nn.Embedding):
    """A table of vectors."""

    reset_parameters = Linear.reset_parameters


@dataclass(frozen=True)
class ParameterGroup:
    """Treatment of a group of parameters by the optimizer and the accounting."""

    name: str  # in reports
    optimizer: str = "adamw"  # or "muon", for matrices only
    rate: str = "scalar"  # which learning rate of `nanogka.train.optimizer.Rates` it takes
    factor: float = 1.0  # of that rate
    betas: tuple[float, float] = (0.8, 0.95)  # of AdamW
    weight_decay: float = 0.0  # of AdamW
    scales_with_batch: bool = True  # the rate is multiplied by √(batch / 2^19), or what is set in its place
    scales_with_width: bool = False  # the rate is multiplied by (C / 768)^−½
    multiplies_tokens: bool = False  # each parameter costs a multiplication per token: 6 FLOPs in training


EMBEDDING = ParameterGroup("embedding", rate="embedding", scales_with_width=True)
VALUE_EMBEDDING = ParameterGroup("value_embedding", rate="embedding", scales_with_width=True)
UNEMBEDDING = ParameterGroup("lm_head", rate="unembedding", scales_with_width=True, multiplies_tokens=True)
MATRIX = ParameterGroup("matrix", optimizer="muon", rate="matrix", multiplies_tokens=True)
BANDWIDTH = ParameterGroup("bandwidth", rate="bandwidth")
RESID_LAMBDAS = ParameterGroup("resid_lambdas", factor=0.01)
X0_LAMBDAS = ParameterGroup("x0_lambdas", betas=(0.96, 0.95))
VECTOR = ParameterGroup("vector", rate="vector")
SMEAR_GATE = ParameterGroup("smear_gate", rate="smear", scales_with_batch=False, multiplies_tokens=True)
SHARES = ParameterGroup("shares", rate="smear", scales_with_batch=False)  # λ of gated smear and backout


class Initializer:
    """Initial values that a seed decides, the same on every device."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, parameter: Tensor, std: float) -> None:
        """Fill with N(0, std²)."""
        parameter.copy_(torch.empty(parameter.shape).normal_(0, std, generator=self.generator))

    def uniform(self, parameter: Tensor, bound: float, low: float | None = None) -> None:
        """Fill with the uniform distribution from −bound, or `least`, to bound."""
        low = -bound if low is None else low
        parameter.copy_(torch.empty(parameter.shape).uniform_(low, bound, generator=self.generator))


@dataclass
class ForwardContext:
    """The tokens that a forward pass works on, beside their activations."""

    ids: Tensor  # (B, T) token ids, 0 for padding
    cos_sin: CosSin  # rotary tables of their positions
    valid: Tensor | None = None  # (B, T) bool, false for padding after a row's tokens; None where there is none


GAUSSIAN_FORMULA = "exp(−‖q − k‖² / 2σ²)"


@dataclass(frozen=True)
class AttentionInputs:
    """The operands of a mixer's attention operator on whole sequences: what decides who attends to whom."""

    q: Tensor  # (B, T, H, D)
    k: Tensor  # (B, T, H, D)
    v: Tensor  # (B, T, H, D_v)
    bandwidth: Tensor | None = None  # (H,) σ of the kernel exp(−‖q − k‖² / 2σ²); None for softmax(scale · q·k)
    scale: float = 1.0  # of no effect with a bandwidth
    window: int | None = None  # of the causal mask, see `nanogka.attention.visible`

    @property
    def temperature(self) -> Tensor:
        """(H,) τ of softmax(q·k / τ): σ² of a Gaussian kernel."""
        if self.bandwidth is not None:
            return self.bandwidth.square()
        return torch.full((self.q.shape[2],), 1 / self.scale, device=self.q.device)

    @property
    def formula(self) -> str:
        """The weight of a key before normalization, for people. A subclass with other logits gives its own."""
        return GAUSSIAN_FORMULA if self.bandwidth is not None else "exp(q·k / τ)"

    def logits(self) -> Tensor:
        """(B, H, T, T), at least float32: −‖q − k‖² / 2σ² or scale · q·k; −∞ where a position sees nothing."""
        wide = torch.promote_types(self.q.dtype, torch.float32)
        q, k = (t.to(wide).transpose(1, 2) for t in (self.q, self.k))
        logits = q @ k.mT / self.temperature.to(wide)[:, None, None]
        if self.bandwidth is not None:
            norms = q.square().sum(-1)[..., None] + k.square().sum(-1)[..., None, :]
            logits = logits - norms / (2 * self.temperature.to(wide)[:, None, None])
        positions = torch.arange(q.shape[2], device=q.device)
        return logits.masked_fill(~visible(positions, positions, self.window), -torch.inf)


class Mixer(nn.Module, MixerDeclaration):
    """Base class of the token mixers: the part of a block that moves information between positions.

    A mixer declares everything about itself here and in `MixerDeclaration`; no other module knows its name. A new one
    is one file beside `mixers/gaussian.py` and one line in `mixers/__init__.py`. By convention its projection back into
    the residual stream is zero at the start. `window` is how far back a position sees, None for all.
    """

    cached_tensors: int = 0  # of C elements, that a decode cache keeps per position
    # The name of the class that computes the same, in `MIXERS` of `export/remote_code/modeling_nanogka.py`; None for no
    # exported form. Not inherited, since a subclass computes something else.
    exported: str | None = None

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.n_head, self.head_dim = config.n_head, config.head_dim
        self.window = config.windows()[layer]

    def option(self, name: str) -> object:
        """The value of an option, as configured or this mixer's own choice."""
        return self.config.option(name, type(self))

    def exported_options(self) -> dict[str, object]:
        """The options of this layer, resolved, as the exported code takes them."""
        return {"window": self.window} | {name: self.option(name) for name in self.options}

    def init_weights(self, init: Initializer) -> None:
        """Give every parameter its initial value."""
        raise NotImplementedError

    def parameter_group(self, name: str, parameter: Tensor) -> ParameterGroup:
        """The optimizer group of a parameter of this mixer: Muon for matrices, AdamW for tables and all else."""
        owner = self.get_submodule(name.rpartition(".")[0])
        return MATRIX if isinstance(owner, Linear) else VALUE_EMBEDDING if isinstance(owner, Embedding) else VECTOR

    def flops_per_token(self) -> int:
        """Training FLOPs per token beside those of its matrices: 12 · C · min(W, T) for attention."""
        T = self.config.sequence_len
        return 12 * self.config.n_embd * (T if self.window is None else min(self.window, T))

    @property
    def lookback(self) -> int:
        """Positions before the window that a decode cache keeps too."""
        return 0

    def cache_bytes(self, context: int, element_bytes: int) -> int:
        """Bytes that a decode cache holds of one row of `context` tokens: per position, and of any state."""
        kept = context if self.window is None else min(context, self.window + 1 + self.lookback)
        return kept * self.position_bytes(element_bytes)

    def position_bytes(self, element_bytes: int) -> int:
        """Bytes that a decode cache keeps of one position."""
        return self.cached_tensors * self.config.n_embd * element_bytes

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

    def attention_inputs(
        self, x: Tensor, context: ForwardContext, cache: LayerCache | None = None
    ) -> AttentionInputs | None:
        """The operands with which `forward` mixes whole sequences; None if no row-stochastic matrix per head does."""
        return None

    def attention_weights(self, x: Tensor, context: ForwardContext) -> Tensor | None:
        """(B, H, T, T) A, at least float32, its rows summing to 1; None where `attention_inputs` gives None."""
        inputs = self.attention_inputs(x, context)
        return None if inputs is None else inputs.logits().softmax(-1)

    def forward(self, x: Tensor, context: ForwardContext, cache: LayerCache | None = None) -> Tensor:
        """Mix the positions of normalized activations x (B, T, C); returns (B, T, C).

        Without the layer's cache `x` are whole sequences. `cache.update(…)` keeps tensors of the new positions and
        returns those of all; `cache.set_state(…)` keeps what is not per position.
        """
        raise NotImplementedError


class BandwidthMixer(Mixer):
    """Base of mixers with a Gaussian kernel: W_O, and one σ per head, learned in log space to stay positive."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.log_bandwidth = nn.Parameter(torch.empty(config.n_head))
        self.c_proj = Linear(config.n_embd, config.n_embd)

    def init_weights(self, init: Initializer) -> None:
        self.log_bandwidth.fill_(self.config.bandwidth_init or self.head_dim**0.25).log_()
        self.c_proj.weight.zero_()

    def parameter_group(self, name: str, parameter: Tensor) -> ParameterGroup:
        return BANDWIDTH if name == "log_bandwidth" else super().parameter_group(name, parameter)

    @property
    def bandwidth(self) -> Tensor:
        return self.log_bandwidth.exp()


class ValueEmbedding(nn.Module):
    """A second embedding of each token, added to a mixer's values through a gate per head, 2 · sigmoid(W_g x[:32]);
    the network decides both numbers."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.table = Embedding(config.vocab_size, config.n_embd)
        self.design = config.design
        self.gate = Linear(self.design.gate_features, config.n_head)

    @classmethod
    def of_layer(cls, config: GPTConfig, layer: int, wanted: bool) -> "ValueEmbedding | None":
        """That of a layer if they are wanted: every other layer has one, the last among them."""
        return cls(config) if wanted and layer % 2 == (config.n_layer - 1) % 2 else None

    def init_weights(self, init: Initializer) -> None:
        """All gates begin at 1, or in another network near 1.5."""
        init.uniform(self.table.weight, (3 / self.table.embedding_dim) ** 0.5)
        self.gate.weight.zero_()
        if self.design.gate_init:
            init.uniform(self.gate.weight, self.design.gate_init, low=0.0)

    def gates(self, x: Tensor) -> Tensor:
        """(B, T, H) of activations x (B, T, C)."""
        return self.design.gate_range * torch.sigmoid(self.gate(x[..., : self.design.gate_features]))

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        """(B, T, H, D) to be added to the values of tokens `ids` (B, T) with activations x (B, T, C)."""
        gate = self.gates(x)
        return gate[..., None] * self.table(ids).to(x.dtype).unflatten(-1, (gate.shape[-1], -1))


class ChannelAffine(nn.Module):
    """A scale and a shift of each channel of features (…, H, D), a ∘ x + b; begins as the identity."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.empty(config.n_head, config.head_dim)) for _ in range(2))

    def init_weights(self) -> None:
        """Begin as x itself."""
        self.scale.fill_(1.0)
        self.shift.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """(…, H, D) in the dtype of x."""
        return x * self.scale.to(x.dtype) + self.shift.to(x.dtype)


class ShortConvolution(nn.Module):
    """A causal depthwise convolution: position i becomes Σ_t w_t ∘ x_{i − t}, t < width."""

    def __init__(self, config: GPTConfig, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, config.n_embd))

    def init_weights(self) -> None:
        """Begin as x itself."""
        self.weight.zero_()
        self.weight[0] = 1.0

    def forward(self, x: Tensor, context: ForwardContext, cache: LayerCache | None, name: str) -> Tensor:
        """(B, T, …) of positions x (B, T, …); those before them are kept in a cache under `name`."""
        before = len(self.weight) - 1
        x = x if cache is None else with_preceding(x, before, context, cache, name)
        taps = self.weight.to(x.dtype).unflatten(-1, x.shape[2:])
        total = taps[0] * x
        for tap in taps[1:]:
            x = shift_right(x)
            total = total + tap * x
        return total if cache is None else total[:, before:]


def shift_right(x: Tensor) -> Tensor:
    """The value one position before each of x (B, T, …), zeros at the start."""
    return F.pad(x[:, :-1], (0, 0) * (x.ndim - 2) + (1, 0))


def with_preceding(x: Tensor, count: int, context: ForwardContext, cache: LayerCache | None, name: str) -> Tensor:
    """(B, count + T, …): x (B, T, …) behind the `count` positions before it, which a cache keeps under `name`; zeros at
    the start of a sequence."""
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
