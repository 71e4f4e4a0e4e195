"""The network: nanochat's of February 2026, its token mixer a choice of each layer.

Shapes: B batch, T positions, C width, V vocabulary.

    x0 = norm(embed(tokens));  for each layer: x = λ x + μ x0;  x += mixer(norm(x));  x += mlp(norm(x))
    logits = cap · tanh(lm_head(norm(x)) / cap), in float32
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nanogka.attention import visible
from nanogka.model import few_rows
from nanogka.model.config import GPTConfig
from nanogka.model.layers import Embedding, Linear, norm, rotary_at, rotary_frequencies
from nanogka.model.loss import capped_cross_entropy
from nanogka.model.mixer import Tokens, View
from nanogka.model.mixers import build_mixer


class Cache(Protocol):
    """What the network asks of a decode cache (see `nanogka.model.kv_cache`).

    Attributes:
        partly_filled: whether slots may be empty although there is but one row.
    """

    partly_filled: bool

    def begin(self, ids: Tensor) -> Tensor:
        """Make room for new tokens (B, T), −1 for padding after a row's last; returns their positions, −1 for padding:
        (B, T), or (1, T) where all rows agree."""

    def positions(self, window: int | None) -> Tensor | None:
        """The positions of what `extend` will return for the layers with this window, −1 where a slot is empty: (B, S),
        or (1, S) where all rows agree and no slot is empty; `None` if it will be the new tokens alone."""

    def extend(self, layer: int, new: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Store what `layer` remembers of the new tokens; returns all it remembers, (B, S, H, D) each, in the order of
        `positions`; see `Mixer.recall`."""

    def end(self) -> None:
        """The new tokens have passed every layer."""


class MLP(nn.Module):
    """C → 4C → C with ReLU²."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        return self.c_proj(F.relu(self.c_fc(x)).square())


class Block(nn.Module):
    """A token mixer and an MLP, both on the normalised residual stream."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.mixer = build_mixer(config, layer)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        x = x + self.mixer(norm(x), tokens)
        return x + self.mlp(norm(x))

    def decode(self, x: Tensor, tokens: Tokens, cache: Cache, view: View) -> Tensor:
        """As `forward`, for new positions (B, T) on top of what the cache remembers."""
        normed = norm(x)
        past = cache.extend(self.layer, self.mixer.remember(normed, tokens, view))
        x = x + self.mixer.recall(normed, tokens, past, view)
        return x + self.mlp(norm(x))


class GPT(nn.Module):
    """A decoder-only language model.

    Args:
        config: its shape.
        seed: seed of the initial weights, which do not depend on the device.
        compute_dtype: dtype of activations and matrix products; parameters stay in float32 unless converted.

    Attributes:
        activation_checkpointing: keep only the input of each block for the backward pass, which makes the rest anew:
            less memory, a third more compute, the same numbers.

    Built under `torch.device("meta")` it has shapes but no values, which is enough to count.
    """

    def __init__(self, config: GPTConfig, seed: int = 0, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        self.activation_checkpointing = False
        self.embedding = Embedding(config.vocab_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.lm_head = Linear(config.n_embd, config.vocab_size)
        self.residual_scales = nn.Parameter(torch.empty(config.n_layer))  # λ
        self.input_skips = nn.Parameter(torch.empty(config.n_layer))  # μ
        for name in ("frequencies", "cos", "sin"):
            self.register_buffer(name, None, persistent=False)
        self._reset_rotary()
        if self.device.type != "meta":
            self.init_weights(seed)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.embedding.weight.device

    def _apply(self, fn, recurse: bool = True) -> "GPT":
        super()._apply(fn, recurse)
        self._reset_rotary()  # a move or conversion of the parameters must not round the rotary tables
        return self

    def to_compute(self, dtype: torch.dtype) -> "GPT":
        """Compute in `dtype`, with matrices and tables kept in it too: for use, not for training.

        σ, λ and μ stay in float32.
        """
        self.compute_dtype = dtype
        for parameter in self.parameters():
            if parameter.ndim > 1:
                parameter.data = parameter.data.to(dtype)
        return self

    def _reset_rotary(self) -> None:
        config = self.config
        self.frequencies = rotary_frequencies(config.head_dim, config.rotary_base, self.device)
        positions = torch.arange(config.sequence_len, device=self.device)
        self.cos, self.sin = rotary_at(positions, self.frequencies)

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> None:
        """Give every parameter its initial value (the guide of conventions: nanochat's), the same on any device."""
        generator = torch.Generator().manual_seed(seed)
        config = self.config
        bound = (3 / config.n_embd) ** 0.5  # uniform with standard deviation 1 / √C

        def fill(parameter: Tensor, kind: str, scale: float) -> None:
            values = torch.empty(parameter.shape)
            if kind == "normal":
                values.normal_(0, scale, generator=generator)
            else:
                values.uniform_(-scale, scale, generator=generator)
            parameter.copy_(values)

        fill(self.embedding.weight, "normal", 1.0)
        fill(self.lm_head.weight, "normal", 0.001)
        self.residual_scales.fill_(1.0)
        self.input_skips.fill_(0.1)
        zero_at_start = ("c_proj.weight", "value_gate.weight")
        for name, parameter in self.blocks.named_parameters():
            if name.endswith("log_bandwidth"):
                sigma = config.bandwidth_init or config.head_dim**0.25
                parameter.fill_(sigma).log_()
            elif name.endswith(zero_at_start):
                parameter.zero_()
            else:
                fill(parameter, "uniform", bound)

    def parameter_groups(self) -> dict[str, dict[str, nn.Parameter]]:
        """Parameters by what they are, `{group: {name: parameter}}`, every one in exactly one group.

        Groups: embedding, value_embedding, lm_head, matrix, bandwidth (log σ), scalar (λ, μ).
        """
        groups: dict[str, dict[str, nn.Parameter]] = {
            name: {} for name in ("embedding", "value_embedding", "lm_head", "matrix", "bandwidth", "scalar")
        }
        for name, parameter in self.named_parameters():
            if name.startswith("blocks."):
                if name.endswith("log_bandwidth"):
                    group = "bandwidth"
                else:
                    group = "value_embedding" if name.endswith("value_embedding.weight") else "matrix"
            else:
                group = {"embedding.weight": "embedding", "lm_head.weight": "lm_head"}.get(name, "scalar")
            groups[group][name] = parameter
        return groups

    def bandwidths(self) -> dict[int, Tensor]:
        """σ (H,) of each layer that has one, by layer."""
        pairs = ((layer, block.mixer.bandwidth) for layer, block in enumerate(self.blocks))
        return {layer: sigma.detach() for layer, sigma in pairs if sigma is not None}

    def measure_backends(self, batch_size: int) -> None:
        """Run each kind of mixer once, forward and backward, on random activations of the training shape.

        Attention back-ends are chosen by measuring, which cannot be done while `torch.compile` traces; so do it before.
        """
        shape = (batch_size, self.config.sequence_len)
        tokens = Tokens(torch.zeros(shape, dtype=torch.int64, device=self.device), (self.cos, self.sin))
        kinds = {(type(block.mixer), block.mixer.window): block.mixer for block in self.blocks}
        for mixer in kinds.values():
            x = torch.randn(*shape, self.config.n_embd, device=self.device, dtype=self.compute_dtype)
            mixer(x.requires_grad_(), tokens).sum().backward()
        self.zero_grad(set_to_none=True)

    def hidden(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """The last residual stream.

        Args:
            ids: (B, T) int64 token ids; with a cache, −1 is padding, which may follow a row's tokens.
            cache: what came before them; without it `ids` are whole sequences, at most `sequence_len` long.

        Returns:
            (B, T, C) in the compute dtype, before the final norm; `unembed` takes it.

        Raises:
            ValueError: if sequences are longer than the context.
        """
        if cache is not None:
            return self._decode(ids, cache)
        limit = self.config.sequence_len
        if ids.shape[1] > limit:
            raise ValueError(f"ids: got {ids.shape[1]} positions, takes at most {limit} (sequence_len)")
        x = x0 = norm(self.embedding(ids).to(self.compute_dtype))
        scales, skips = self.residual_scales.to(x.dtype), self.input_skips.to(x.dtype)
        tokens = Tokens(ids, (self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]))
        keep_inputs_only = self.activation_checkpointing and torch.is_grad_enabled()
        for layer, block in enumerate(self.blocks):
            x = scales[layer] * x + skips[layer] * x0
            if keep_inputs_only:  # nothing is random in a block
                x = checkpoint(block, x, tokens, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, tokens)
        return x

    def _decode(self, ids: Tensor, cache: Cache) -> Tensor:
        """`hidden` on top of a cache. Layers with one window share their view of it."""
        positions = cache.begin(ids)
        ids = ids.clamp_min(0)
        tokens = Tokens(ids, rotary_at(positions.clamp_min(0), self.frequencies))
        x = x0 = norm(self.embedding(ids).to(self.compute_dtype))
        scales, skips = self.residual_scales.to(x.dtype), self.input_skips.to(x.dtype)
        views: dict[int | None, View] = {}
        for layer, block in enumerate(self.blocks):
            window = block.mixer.window
            if window not in views:
                views[window] = self._view(positions, cache.positions(window), window, cache.partly_filled)
            x = block.decode(scales[layer] * x + skips[layer] * x0, tokens, cache, views[window])
        cache.end()
        return x

    def _view(self, positions: Tensor, past: Tensor | None, window: int | None, partly_filled: bool) -> View:
        if past is None or (positions.shape[1] == 1 and past.shape[0] == 1 and not partly_filled):
            return View(self.frequencies, positions, past, None)
        mask = visible(positions, past, window) & (past >= 0)[:, None]
        # A softmax over nothing is NaN, and NaN would spread from padding to what multiplies it by 0: let it see all.
        return View(self.frequencies, positions, past, mask | (positions < 0)[..., None])

    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits (…, V) float32 of hidden states (…, C), capped softly."""
        hidden, weight, cap = norm(hidden), self.lm_head.weight, self.config.logit_cap
        if few_rows.taken(hidden, weight):
            return few_rows.capped_logits(hidden, weight, cap)
        return cap * torch.tanh(self.lm_head(hidden).float() / cap)

    def forward(
        self, ids: Tensor, targets: Tensor | None = None, reduction: str = "mean", cache: Cache | None = None
    ) -> Tensor:
        """Logits, or the loss of predicting `targets`.

        Args:
            ids: (B, T) int64 token ids.
            targets: (B, T) int64, the token that follows each; −1 is not scored.
            reduction: "mean" or "sum" over the scored positions, or "none".
            cache: see `hidden`.

        Returns:
            float32: logits (B, T, V) without targets; else the cross entropy in nats, a scalar, or (B, T) for "none".
        """
        hidden = self.hidden(ids, cache)
        if targets is None:
            return self.unembed(hidden)
        hidden, cap = norm(hidden).flatten(0, 1), self.config.logit_cap
        losses = capped_cross_entropy(hidden, self.lm_head.weight, targets.flatten(), cap=cap, reduction=reduction)
        return losses.view_as(targets) if reduction == "none" else losses
