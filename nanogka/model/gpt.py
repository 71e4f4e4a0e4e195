"""The network of nanochat, February or July 2026 (`config.network`), with a choice of token mixer per layer.

    x0 = norm(embed(ids));  for each layer: x = λ x + μ x0;  x += mixer(norm(x));  x += mlp(norm(x))
    logits = cap · tanh(lm_head(norm(x)) / cap), in float32

What is unusual in it, and why:

* The norm after the embedding gives every token the same length √C, whatever the table's values. Frequent tokens with
  grown embeddings then do not drown what the layers add to the stream.
* λ and μ, one scalar each per layer: a layer can rescale the stream, and read the embedding again that earlier layers
  have written over.
* A smear adds a learned share of the previous token's embedding: a cheap bigram, which saves attention the work of
  finding the token before.
* July's smear has a gate: x0_t += λ_s σ(W x0_t[:24]) x0_{t−1}.
* July's end subtracts the share λ_b of the stream after layer L // 2 (backout). nanochat's reason: low-level features
  that the layers needed do not help the prediction.
* The soft cap bounds the logits (`nanogka/model/loss.py`).

The networks differ in numbers as well: `config.SNAPSHOTS`.

Shapes: B batch, T positions, C width, V vocabulary.
"""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nanogka.attention.rotary import norm, rotary_cos_sin, rotary_frequencies
from nanogka.model import fp8
from nanogka.model.config import GPTConfig
from nanogka.model.kv_cache import KVCache, LayerCache
from nanogka.model.layers import (
    BACKOUT_LAMBDA,
    EMBEDDING,
    MATRIX,
    RESID_LAMBDAS,
    SMEAR_GATE,
    SMEAR_LAMBDA,
    UNEMBEDDING,
    VECTOR,
    X0_LAMBDAS,
    Embedding,
    Initializer,
    Linear,
    Mixer,
    ParameterGroup,
    TokenContext,
    shift_with_history,
)
from nanogka.model.loss import capped_cross_entropy, soft_cap

# Features of an embedding that the gate of July's smear reads. nanochat's number: its checkpoints have a gate of this
# size. A gate is one number per token, for which few features do.
SMEAR_FEATURES = 24
# Optimizer groups of the parameters that belong to the network, not to a mixer. All others are VECTOR.
GROUPS = {
    "embedding.weight": EMBEDDING,
    "lm_head.weight": UNEMBEDDING,
    "resid_lambdas": RESID_LAMBDAS,
    "x0_lambdas": X0_LAMBDAS,
    "smear_gate.weight": SMEAR_GATE,
    "smear_lambda": SMEAR_LAMBDA,
    "backout_lambda": BACKOUT_LAMBDA,
}


class SquaredReLU(torch.autograd.Function):
    """y = relu(x)². Its derivative is 2√y, so the backward pass needs only y, which the next product keeps anyway."""

    # Primer (arXiv 2109.08668) found the square by search: it learned better than ReLU and GELU, and needs no third
    # matrix as a gated MLP does.

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        # Not in place: torch.compile of torch 2.11 would lose the gradient, without an error.
        y = F.relu(x).square()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.addcmul(y.new_zeros(()), y.sqrt(), gradients[0], value=2)  # 2 √y ∂y in one pass


class MLP(nn.Module):
    """C → 4C → C with ReLU²: what a position knows is worked on here, without looking at other positions."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.scale = config.snapshot.mlp_scale
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = Linear(4 * config.n_embd, config.n_embd)

    def init_weights(self, init: Initializer) -> None:
        # A uniform distribution up to b has standard deviation b / √3, here scale / √C. Products of C normed features
        # then have variance about scale², whatever the width. Uniform rather than normal: no weight starts far out.
        init.uniform(self.c_fc.weight, self.scale * (3 / self.c_fc.in_features) ** 0.5)
        # Zero, as in every mixer: at the start a block adds nothing, so that depth does not amplify the stream.
        self.c_proj.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        hidden = self.c_fc(x)
        if self.c_proj.in_fp8 and torch.is_grad_enabled():
            y = fp8.FP8SquaredReLUProduct.apply(hidden.flatten(0, -2), self.c_proj.weight)
            return y.unflatten(0, x.shape[:-1])
        # Without gradients, the call of the autograd function would cost more than both operations of a decode step.
        return self.c_proj(SquaredReLU.apply(hidden) if torch.is_grad_enabled() else F.relu(hidden).square())


class Block(nn.Module):
    """A token mixer and an MLP, both on the normalized residual stream."""

    # Pre-norm: each part reads the normed stream and adds to the stream itself. So gradients reach the first layer by
    # additions alone, and a deep network trains without warm-up. A norm after the sum would stand in their way.

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.mixer = cast(type[Mixer], config.mixers()[layer])(config, layer)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, context: TokenContext, cache: LayerCache | None = None) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        x = x + self.mixer(norm(x), context, cache)
        return x + self.mlp(norm(x))


class GPT(nn.Module):
    """A decoder-only language model. Built under `torch.device("meta")` it has shapes but no values.

    Activations and matrix products are in `compute_dtype`; parameters stay in float32 unless converted. With
    `activation_checkpointing` only the input of each block is kept for the backward pass, which computes the rest
    again: less memory, a third more compute, the same numbers.
    """

    frequencies: Tensor  # (D / 2,) rotary angles per position
    cos: Tensor  # (T, …) rotary tables, see `rotary_cos_sin`
    sin: Tensor

    def __init__(self, config: GPTConfig, seed: int = 0, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        self.activation_checkpointing = False
        self.embedding = Embedding(config.vocab_size, config.n_embd)
        blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.blocks = cast(Sequence[Block], blocks)  # a ModuleList does not tell a type checker what it holds
        # Its own matrix, not the embedding's transpose: the two need other initial values and learning rates.
        self.lm_head = Linear(config.n_embd, config.vocab_size)
        self.resid_lambdas = nn.Parameter(torch.empty(config.n_layer))  # λ
        self.x0_lambdas = nn.Parameter(torch.empty(config.n_layer))  # μ
        gated = config.has_smear and config.snapshot.gated_smear
        self.smear = nn.Parameter(torch.empty(config.n_embd)) if config.has_smear and not gated else None
        self.smear_gate = Linear(SMEAR_FEATURES, 1) if gated else None
        self.smear_lambda = nn.Parameter(torch.empty(1)) if gated else None
        self.backout_lambda = nn.Parameter(torch.empty(1)) if config.snapshot.backout is not None else None
        for name in ("frequencies", "cos", "sin"):
            self.register_buffer(name, None, persistent=False)
        self._reset_rotary()
        if self.device.type != "meta":
            self.init_weights(seed)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.embedding.weight.device

    def _apply(self, fn, recurse: bool = True) -> "GPT":
        super()._apply(fn, recurse)
        self._reset_rotary()  # a move or conversion of the parameters must not round the rotary tables
        return self

    def _reset_rotary(self) -> None:
        # In float32, whatever the model computes in: bfloat16 holds only every eighth position near 2,000.
        config = self.config
        # An operation on the meta device imports torch's compiler, which takes seconds. An empty tensor does not.
        device = torch.device("cpu") if self.device.type == "meta" else self.device
        frequencies = rotary_frequencies(config.head_dim, config.rope_theta, device)
        tables = frequencies, *rotary_cos_sin(torch.arange(config.sequence_len, device=device), frequencies)
        self.frequencies, self.cos, self.sin = (
            torch.empty_like(table, device="meta") if self.device.type == "meta" else table for table in tables
        )

    def to_compute(self, dtype: torch.dtype) -> "GPT":
        """Compute in `dtype` and store matrices and tables in it, for inference only.

        All other parameters (σ, λ, μ, scales and biases, mixture components …) stay in float32, whatever their shape.
        """
        self.compute_dtype = dtype
        for module in self.modules():
            if isinstance(module, Linear | Embedding):
                module.weight.data = module.weight.data.to(dtype)
        return self

    def fp8_layers(self) -> list[Linear]:
        """The layers that `--fp8` multiplies in 8 bits: matrices of the blocks, not small gates or the head.

        The head's logits decide the loss directly, and the loss multiplies by it in its own chunks.
        """
        layers = [layer for block in self.blocks for layer in block.modules() if isinstance(layer, Linear)]
        return [layer for layer in layers if fp8.fits(layer.weight)]

    def use_fp8(self) -> None:
        """Train with these layers in 8 bits from now on."""
        for layer in self.fp8_layers():
            layer.in_fp8 = True

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> None:
        """Give every parameter its initial value (nanochat's), the same on any device."""
        init = Initializer(seed)
        for parameter in self.parameters():
            parameter.fill_(torch.nan)  # to find a parameter that is forgotten below
        snapshot, last = self.config.snapshot, max(1, self.config.n_layer - 1)
        init.normal(self.embedding.weight, snapshot.embedding_std)
        # Small, so that all tokens are about equally likely at first and the loss starts at log V. Not zero: then no
        # gradient would reach the layers in the first step.
        init.normal(self.lm_head.weight, 0.001)
        # λ near 1 keeps the stream. μ is small and, in July, smaller in later layers, which build on earlier ones.
        for lambdas, (first, end) in (
            (self.resid_lambdas, snapshot.resid_lambdas),
            (self.x0_lambdas, snapshot.x0_lambdas),
        ):
            lambdas.copy_(torch.tensor([first + (end - first) * i / last for i in range(len(lambdas))]))
        for smear in (self.smear, self.smear_lambda):
            if smear is not None:
                smear.zero_()  # no smear at the start: how much of the previous token helps is learned
        if self.smear_gate is not None:
            init.uniform(self.smear_gate.weight, 0.02, low=0.0)
        if self.backout_lambda is not None and snapshot.backout is not None:
            self.backout_lambda.fill_(snapshot.backout)
        for block in self.blocks:
            block.mixer.init_weights(init)
            block.mlp.init_weights(init)
        for name, parameter in self.named_parameters():
            assert not parameter.isnan().any(), f"{name} has no initial value"

    def parameter_groups(self) -> dict[ParameterGroup, dict[str, nn.Parameter]]:
        """All parameters, each in one group: `{group: {name: parameter}}`."""
        groups: dict[ParameterGroup, dict[str, nn.Parameter]] = {}
        for name, parameter in self.named_parameters():
            match name.split(".", 3):
                case ["blocks", layer, "mixer", rest]:
                    group = self.blocks[int(layer)].mixer.parameter_group(rest, parameter)
                case ["blocks", _, "mlp", _]:
                    group = MATRIX
                case _:
                    group = GROUPS.get(name, VECTOR)
            assert group.optimizer != "muon" or parameter.ndim == 2, f"{name}: Muon updates matrices only"
            groups.setdefault(group, {})[name] = parameter
        return groups

    def observations(self) -> dict[str, dict[int, Tensor]]:
        """Vectors (H,) to log after a step, by name and layer."""
        found: dict[str, dict[int, Tensor]] = {}
        for layer, block in enumerate(self.blocks):
            for name, values in block.mixer.observations().items():
                found.setdefault(name, {})[layer] = values.detach()
        return found

    def embed(self, context: TokenContext, cache: KVCache | None) -> Tensor:
        """x0 (B, T, C): the tokens' normalized embeddings, with a smear plus a share of the previous token's."""
        x = norm(self.embedding(context.ids).to(self.compute_dtype))
        if self.smear is None and self.smear_gate is None:
            return x
        before = shift_with_history(x, context, None if cache is None else cache.layer("embedding"), "last")
        share = self.smear
        if self.smear_gate is not None and self.smear_lambda is not None:
            share = self.smear_lambda * torch.sigmoid(self.smear_gate(x[..., :SMEAR_FEATURES]))
        assert share is not None
        return x + share.to(x.dtype) * before

    def hidden(self, ids: Tensor, cache: KVCache | None = None, prefill_only: bool = False) -> Tensor:
        """The last residual stream (B, T, C), before the final norm.

        ids (B, T) int64 are whole sequences, or with a cache the next tokens. With a cache, −1 is padding on the right.
        With `prefill_only` only the cache is filled: the last MLP is skipped.
        """
        context = self._context(ids, cache)
        x = x0 = middle = self.embed(context, cache)
        resid_lambdas, x0_lambdas = self.resid_lambdas.to(x.dtype), self.x0_lambdas.to(x.dtype)
        keep_inputs_only = self.activation_checkpointing and torch.is_grad_enabled()
        for layer, block in enumerate(self.blocks):
            x = resid_lambdas[layer] * x + x0_lambdas[layer] * x0
            # To fill a cache, only the last layer's keys and values are needed, not what its MLP makes of them.
            if cache is not None and prefill_only and layer == len(self.blocks) - 1:
                block.mixer(norm(x), context, cache.layer(layer))
            elif cache is not None:
                x = block(x, context, cache.layer(layer))
            elif keep_inputs_only:  # nothing is random in a block, so the state of the generators need not be kept
                x = checkpoint(block, x, context, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, context)
            middle = x if layer <= self.config.n_layer // 2 else middle
        if cache is not None:
            cache.commit()
        return x if self.backout_lambda is None else x - self.backout_lambda.to(x.dtype) * middle

    @torch.no_grad()
    def fill(self, ids: Tensor, cache: KVCache) -> None:
        """Cache `ids` (B, T), −1 for padding after a row's tokens."""
        self.hidden(ids, cache, prefill_only=True)

    def new_cache(self, batch: int, capacity: int | None = None) -> KVCache:
        """An empty decode cache for `batch` rows of at most `capacity` positions (default: the context)."""
        windows = [block.mixer.window for block in self.blocks]
        return KVCache(windows, batch, self.config.sequence_len if capacity is None else capacity)

    def _context(self, ids: Tensor, cache: KVCache | None) -> TokenContext:
        if cache is not None:
            positions = cache.prepare(ids)
            valid = ids >= 0 if cache.padded else None
            cos_sin = rotary_cos_sin(positions.clamp_min(0), self.frequencies)
            return TokenContext(ids.clamp_min(0), cos_sin, valid)
        length, limit = ids.shape[1], self.config.sequence_len
        if length > limit:
            raise ValueError(f"ids: got {length} positions, expected at most {limit} (sequence_len)")
        return TokenContext(ids, (self.cos[:length], self.sin[:length]))

    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits (…, V) float32 of hidden states (…, C), softly capped."""
        # Float32, because bfloat16 has steps of 1/16 for logits near 10: a softmax would see ties and jumps.
        return soft_cap(self.lm_head(norm(hidden)).float(), self.config.logit_cap)

    def forward(
        self, ids: Tensor, targets: Tensor | None = None, reduction: str = "mean", cache: KVCache | None = None
    ) -> Tensor:
        """Float32 logits (B, T, V), or the cross entropy in nats of predicting `targets`.

        ids and targets are (B, T) int64; a target of −1 is not scored. `reduction` is "mean" over the scored
        positions, or "none" for (B, T) without gradients.
        """
        hidden = self.hidden(ids, cache)
        if targets is None:
            return self.unembed(hidden)
        hidden, cap = norm(hidden).flatten(0, 1), self.config.logit_cap
        losses = capped_cross_entropy(hidden, self.lm_head.weight, targets.flatten(), cap=cap, reduction=reduction)
        return losses.view_as(targets) if reduction == "none" else losses
