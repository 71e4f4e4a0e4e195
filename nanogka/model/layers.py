"""Building blocks: linear layers, embeddings, optimizer groups, and the base class of token mixers.

Shapes: B batch, T positions, C width, H heads, D = C / H.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogka.attention import attention_mask, softmax_attention
from nanogka.attention.rotary import CosSin, scale_queries
from nanogka.model import fp8
from nanogka.model.config import GPTConfig
from nanogka.model.kv_cache import LayerCache
from nanogka.model.spec import MixerSpec


class Linear(nn.Linear):
    """Linear layer without bias. Weights stay in float32 and are cast to the dtype of the input in `forward`."""

    # Most updates change a weight by less than bfloat16 can resolve (one part in 256), so a bfloat16 weight would not
    # move. The cast per step is cheap next to the product. No biases, as in most recent language models: leaving them
    # out costs no quality.

    in_fp8 = False  # multiply in 8 bits while gradients are recorded: in training, not in evaluations

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """`GPT.init_weights` gives every parameter its value."""

    def forward(self, input: Tensor) -> Tensor:
        if self.in_fp8 and torch.is_grad_enabled():
            return fp8.FP8Product.apply(input.flatten(0, -2), self.weight).unflatten(0, input.shape[:-1])
        return F.linear(input, self.weight.to(input.dtype))


class Embedding(nn.Embedding):
    """A table of vectors."""

    reset_parameters = Linear.reset_parameters


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with the same optimizer settings. Rates, betas and decays are in `nanogka.train.snapshots`."""

    name: str  # in reports, and in the tables of `nanogka.train.snapshots`
    optimizer: str = "adamw"  # or "muon", for matrices only
    row: str = ""  # row of those tables to use, if not the group's own name
    is_matmul: bool = False  # each parameter multiplies every token once: 6 FLOPs per token in training


# Muon updates matrices: it makes the singular values of an update alike, so that rare directions learn as fast as
# common ones. Tables are matrices in shape only: a step touches few of their rows, so they get AdamW, as do lm_head,
# vectors and scalars. Small groups exist where the best learning rate differs by orders of magnitude.
EMBEDDING = ParameterGroup("embedding")
VALUE_EMBEDDING = ParameterGroup("value_embedding")
UNEMBEDDING = ParameterGroup("lm_head", is_matmul=True)
MATRIX = ParameterGroup("matrix", optimizer="muon", is_matmul=True)
BANDWIDTH = ParameterGroup("bandwidth")
RESID_LAMBDAS = ParameterGroup("resid_lambdas")
X0_LAMBDAS = ParameterGroup("x0_lambdas")
VECTOR = ParameterGroup("vector")
SMEAR_GATE = ParameterGroup("smear_gate", is_matmul=True)
SMEAR_LAMBDA = ParameterGroup("smear_lambda")
BACKOUT_LAMBDA = ParameterGroup("backout_lambda")


class Initializer:
    """Initial values that a seed decides, the same on every device: they are drawn on the CPU in float32."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, parameter: Tensor, std: float) -> None:
        """Fill with N(0, std²)."""
        parameter.copy_(torch.empty(parameter.shape).normal_(0, std, generator=self.generator))

    def uniform(self, parameter: Tensor, bound: float, low: float | None = None) -> None:
        """Fill with the uniform distribution from −bound, or `low`, to bound."""
        low = -bound if low is None else low
        parameter.copy_(torch.empty(parameter.shape).uniform_(low, bound, generator=self.generator))


@dataclass
class TokenContext:
    """The tokens that a forward pass works on, apart from their activations."""

    ids: Tensor  # (B, T) token ids, 0 for padding
    cos_sin: CosSin  # rotary tables of their positions
    valid: Tensor | None = None  # (B, T) bool, false for padding after a row's tokens; None where there is none


GAUSSIAN_FORMULA = "exp(−‖q − k‖² / 2σ²)"


@dataclass(frozen=True)
class AttentionInputs:
    """The operands of a mixer's attention: they decide which position attends to which."""

    q: Tensor  # (B, T, H, D)
    k: Tensor  # (B, T, H, D)
    v: Tensor  # (B, T, H, D_v)
    bandwidth: Tensor | None = None  # (H,) σ of the kernel exp(−‖q − k‖² / 2σ²); None for softmax(scale · q·k)
    scale: float = 1.0  # not used with a bandwidth
    window: int | None = None  # of the causal mask, see `nanogka.attention.attention_mask`

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
        """(B, H, T, T), at least float32: −‖q − k‖² / 2σ² or scale · q·k, and −∞ where the mask hides the key.

        A mixer with another kernel overrides this, for plots of its attention, and `Mixer.attend`.
        """
        wide = torch.promote_types(self.q.dtype, torch.float32)
        q, k = (t.to(wide).transpose(1, 2) for t in (self.q, self.k))
        logits = q @ k.mT / self.temperature.to(wide)[:, None, None]
        if self.bandwidth is not None:
            norms = q.square().sum(-1)[..., None] + k.square().sum(-1)[..., None, :]
            logits = logits - norms / (2 * self.temperature.to(wide)[:, None, None])
        positions = torch.arange(q.shape[2], device=q.device)
        return logits.masked_fill(~attention_mask(positions, positions, self.window), -torch.inf)


class Mixer(nn.Module, MixerSpec):
    """Base class of the token mixers: the part of a block that moves information between positions.

    A mixer declares everything about itself here and in `MixerSpec`; no other module knows its name. A new one is one
    file in this folder's `mixers` (`gaussian.py` is the shortest) and one line in `mixers/__init__.py`. By convention
    `c_proj`, the projection back into the residual stream, is zero at the start.

    An attention mixer only needs `attention_inputs`. The base class then trains, decodes and plots it. Decoding
    has these rules, in the order in which a new mixer meets them:

    * `x` holds the new positions alone: whole sequences without a cache, else the next chunk (T ≥ 1) of each row.
    * Earlier positions are in the cache. Keys and values go through `cache.attend`. Anything else per position goes
      through `cache.update`, which returns it for all cached positions. What is not per position is a named state:
      `prepend_history` for the last few positions, `cache.state` and `cache.set_state` for a running sum.
    * Cached keys are final. Rotate them by their own position (`context.cos_sin`) before they are cached.
    * Rows may be padded on the right. `context.valid` says which positions are real; None means all. Padding must not
      change a state. `cache.attend` and `prepend_history` take care of it.
    * `kv_tensors_per_token` and `state_bytes` say what the cache holds. A test compares them with the tensors.

    Attributes:
        window: number of earlier positions that a position sees, None for all; from the window pattern.
    """

    kv_tensors_per_token: int = 2  # number of C-element tensors per position in a decode cache: keys and values
    # Name of the class that computes the same, in `MIXERS` of `export/remote_code/mixers_nanogka.py`; None if there
    # is no exported form. Not inherited, since a subclass computes something else.
    exported: str | None = None
    c_proj: Linear  # W_O

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.n_head, self.head_dim = config.n_head, config.head_dim
        self.window = config.windows()[layer]

    def option(self, name: str) -> Any:
        """The value of an option, as configured or this mixer's default."""
        return self.config.option(name, type(self))

    def exported_options(self) -> dict[str, object]:
        """The options of this layer, resolved, as the exported code expects them."""
        return {"window": self.window} | {name: self.option(name) for name in self.options}

    def init_weights(self, init: Initializer) -> None:
        """Give every parameter its initial value."""
        raise NotImplementedError

    def parameter_group(self, name: str, parameter: Tensor) -> ParameterGroup:
        """The optimizer group of a parameter of this mixer: Muon for matrices, AdamW for tables and all else."""
        owner = self.get_submodule(name.rpartition(".")[0])
        return MATRIX if isinstance(owner, Linear) else VALUE_EMBEDDING if isinstance(owner, Embedding) else VECTOR

    def flops_per_token(self) -> int:
        """Training FLOPs per token in addition to those of its matrices: 12 · C · min(W, T) for attention."""
        T = self.config.sequence_len
        return 12 * self.config.n_embd * (T if self.window is None else min(self.window, T))

    def position_bytes(self, element_bytes: int) -> int:
        """Bytes that a decode cache holds of one position."""
        return self.kv_tensors_per_token * self.config.n_embd * element_bytes

    def state_bytes(self, element_bytes: int) -> int:
        """Bytes of the states (not per position) that a decode cache holds of one row."""
        return 0

    def cache_bytes(self, context: int, element_bytes: int) -> int:
        """Bytes that a decode cache holds of one row of `context` tokens."""
        slots = context if self.window is None else min(context, self.window + 1)
        return slots * self.position_bytes(element_bytes) + self.state_bytes(element_bytes)

    @property
    def bandwidth(self) -> Tensor | None:
        """(H,) σ of each head, or None for a mixer without."""
        return None

    def observations(self) -> dict[str, Tensor]:
        """Named vectors (H,) to log after every step: σ, and any other per-head values that the mixer reports."""
        return {} if self.bandwidth is None else {"bandwidth": self.bandwidth}

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, C) as (B, T, H, D), a view."""
        return x.unflatten(-1, (self.n_head, self.head_dim))

    def attention_inputs(
        self, x: Tensor, context: TokenContext, cache: LayerCache | None = None
    ) -> AttentionInputs | None:
        """q, k and v of the positions x (B, T, C); None if the mixer has no attention matrix.

        Without a cache `x` are whole sequences, and the result is what plots of the attention show.
        """
        return None

    def attention_weights(self, x: Tensor, context: TokenContext) -> Tensor | None:
        """(B, H, T, T) A, at least float32, its rows summing to 1; None where `attention_inputs` gives None."""
        inputs = self.attention_inputs(x, context)
        return None if inputs is None else inputs.logits().softmax(-1)

    def attend(self, a: AttentionInputs, cache: LayerCache | None) -> Tensor:
        """(B, T, H, D_v): attention of the new positions over these and, with a cache, over all cached ones.

        With a bandwidth all keys of a head must have the same norm, as RMS-normed keys have.
        """
        # One rule in training, decoding and exports: keys of one norm need no bias, so σ scales the queries alone.
        q = a.q if a.bandwidth is None else scale_queries(a.q, a.bandwidth)
        if cache is not None:
            return cache.attend(q, a.k, a.v, scale=a.scale)
        return softmax_attention(q, a.k, a.v, scale=a.scale, window=a.window)

    def forward(self, x: Tensor, context: TokenContext, cache: LayerCache | None = None) -> Tensor:
        """Mix the positions of normalized activations x (B, T, C); returns (B, T, C)."""
        inputs = self.attention_inputs(x, context, cache)
        assert inputs is not None, "a mixer without an attention matrix has its own `forward`"
        return self.c_proj(self.attend(inputs, cache).flatten(2))


class BandwidthMixer(Mixer):
    """Base of mixers with a Gaussian kernel: W_O, and one σ per head, learned in log space to stay positive."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        # The log of σ: any real number is allowed, and a step changes σ by a factor, small or large.
        self.log_bandwidth = nn.Parameter(torch.empty(config.n_head))
        self.c_proj = Linear(config.n_embd, config.n_embd)

    def init_weights(self, init: Initializer) -> None:
        # σ² = √D divides products of normed features as dot-product attention does. With norm √D these products have
        # standard deviation √D between unrelated tokens, so the logits start near N(0, 1), except a token's own: √D.
        self.log_bandwidth.fill_(self.config.bandwidth_init or self.head_dim**0.25).log_()
        self.c_proj.weight.zero_()  # the layer adds nothing at first, see `MLP` in gpt.py

    def parameter_group(self, name: str, parameter: Tensor) -> ParameterGroup:
        return BANDWIDTH if name == "log_bandwidth" else super().parameter_group(name, parameter)

    @property
    def bandwidth(self) -> Tensor:
        return self.log_bandwidth.exp()


class ValueEmbedding(nn.Module):
    """A second embedding of each token, added to a mixer's values through a gate per head, 2 · sigmoid(W_g x[:32]).

    It gives attention the token's identity, which the residual stream has mixed with its context by then. The network
    decides both numbers.
    """

    # A table lookup costs memory but no FLOPs, so it adds parameters nearly for free in time.

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.table = Embedding(config.vocab_size, config.n_embd)
        self.snapshot = config.snapshot
        self.gate = Linear(self.snapshot.gate_features, config.n_head)

    @classmethod
    def of_layer(cls, config: GPTConfig, layer: int, wanted: bool) -> "ValueEmbedding | None":
        """The value embedding of a layer, if `wanted`: every other layer has one, the last layer included."""
        # Every other layer, as in nanochat: the tables are already most of a small model's parameters.
        return cls(config) if wanted and layer % 2 == (config.n_layer - 1) % 2 else None

    def init_weights(self, init: Initializer) -> None:
        """February's gates are 1 at the start (2 · sigmoid(0)), July's about 1.5."""
        init.uniform(self.table.weight, (3 / self.table.embedding_dim) ** 0.5)  # standard deviation 1 / √C
        self.gate.weight.zero_()
        if self.snapshot.gate_init:
            init.uniform(self.gate.weight, self.snapshot.gate_init, low=0.0)

    def gates(self, x: Tensor) -> Tensor:
        """(B, T, H) of activations x (B, T, C)."""
        return self.snapshot.gate_range * torch.sigmoid(self.gate(x[..., : self.snapshot.gate_features]))

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        """(B, T, H, D) to be added to the values of tokens `ids` (B, T) with activations x (B, T, C)."""
        gate = self.gates(x)
        return gate[..., None] * self.table(ids).to(x.dtype).unflatten(-1, (gate.shape[-1], -1))


class ChannelAffine(nn.Module):
    """A scale and a shift of each channel of features (…, H, D), a ∘ x + b; the identity at the start."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.empty(config.n_head, config.head_dim)) for _ in range(2))

    def init_weights(self) -> None:
        """Start as the identity."""
        self.scale.fill_(1.0)
        self.shift.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """(…, H, D) in the dtype of x."""
        return x * self.scale.to(x.dtype) + self.shift.to(x.dtype)


class ShortConvolution(nn.Module):
    """A causal depthwise convolution: position i becomes Σ_t w_t ∘ x_{i − t}, t < width.

    A layer then sees its neighbors before attention does, so attention can match short phrases instead of tokens.
    """

    def __init__(self, config: GPTConfig, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, config.n_embd))

    def init_weights(self) -> None:
        """Start as the identity."""
        self.weight.zero_()
        self.weight[0] = 1.0

    def forward(self, x: Tensor, context: TokenContext, cache: LayerCache | None, name: str) -> Tensor:
        """(B, T, …) of positions x (B, T, …); those before them are kept in a cache under `name`."""
        before = len(self.weight) - 1
        x = x if cache is None else prepend_history(x, before, context, cache, name)
        taps = self.weight.to(x.dtype).unflatten(-1, x.shape[2:])
        total = taps[0] * x
        for tap in taps[1:]:
            x = shift_right(x)
            total = total + tap * x
        return total if cache is None else total[:, before:]


def shift_right(x: Tensor) -> Tensor:
    """The value one position before each of x (B, T, …), zeros at the start."""
    return F.pad(x[:, :-1], (0, 0) * (x.ndim - 2) + (1, 0))


def shift_with_history(
    x: Tensor, context: TokenContext, cache: LayerCache | None, name: str, initial: Tensor | None = None
) -> Tensor:
    """The value one position before each of x (B, T, …), with arguments as `prepend_history`."""
    if cache is not None:
        return prepend_history(x, 1, context, cache, name, initial)[:, :-1]
    return shift_right(x) if initial is None else torch.cat([initial, x[:, :-1]], dim=1)


def prepend_history(
    x: Tensor, count: int, context: TokenContext, cache: LayerCache | None, name: str, initial: Tensor | None = None
) -> Tensor:
    """(B, count + T, …): x (B, T, …) after the `count` positions before it.

    A cache keeps these under `name`. Before the start of a sequence there is `initial` (B, count, …), or zeros.
    """
    # The start of a sequence is no special case for what follows: it has a past of zeros.
    if initial is None:
        initial = x.new_zeros(len(x), count, *x.shape[2:])
    if cache is None:
        return torch.cat([initial, x], dim=1)
    joined = torch.cat([cache.state(name, initial), x], dim=1)
    if context.valid is None:
        cache.set_state(name, joined[:, x.shape[1] :])
    else:  # the last `count` positions of a row that are not padding
        last = context.valid.sum(1)[:, None] + torch.arange(count, device=x.device)
        cache.set_state(name, joined[torch.arange(len(x), device=x.device)[:, None], last])
    return joined
