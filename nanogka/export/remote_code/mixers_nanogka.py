"""The token mixers of nanogka: the layers that move information between positions.

Shapes: B rows, T new positions, S positions including cached ones, H heads, D features per head, C = H · D.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention_nanogka import (
    MASKED_BACKENDS,
    ChannelAffine,
    ShortConvolution,
    ValueEmbedding,
    eager_attention,
    norm,
    shift,
    vector,
)

FLOOR = 1e-6  # added to every key's responsibilities in mixture attention: an unanswered query sees all keys equally


class Mixer(nn.Module):
    """Base of the token mixers. `option` holds the options of the layer."""

    is_causal = True
    scaling = 1.0  # of the scores q·k
    lookback = 0  # positions before the window that the layer needs
    needs_own_cache = False  # whether the cache of another attention function (vLLM's) holds too little

    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx, self.option = config, layer_idx, config.mixers[layer_idx]
        self.n_head, self.window, C = config.num_attention_heads, self.option["window"], config.hidden_size
        self.c_proj = nn.Linear(C, C, bias=False)
        self.value_embeddings = ValueEmbedding(config) if self.option.get("value_embeddings") else None
        affine = self.option.get("qk_affine")
        self.affine_q, self.affine_k = (ChannelAffine(self.n_head, config.head_dim) if affine else None for _ in "qk")

    @property
    def cache_window(self):
        """Number of positions before the next one that a cache keeps, None for all."""
        return None if self.window is None else self.window + self.lookback

    def heads(self, x):
        """(B, T, …) as (B, H, T, …)."""
        return x.unflatten(-1, (self.n_head, -1)).transpose(1, 2)

    def divided(self, q):
        """q / σ², so that attention with the scale 1 computes softmax(q·k / σ²)."""
        return (q.float() / torch.exp(2 * self.log_bandwidth.float())[:, None, None]).to(q.dtype)

    def operands(self, x, context, cache):
        """q (B, H, T, D), k and v (B, H, S, D) of activations x (B, T, C)."""
        raise NotImplementedError

    def forward(self, x, context, cache, **kwargs):
        q, k, v = self.operands(x, context, cache)
        # vLLM's Transformers back-end reads this source: one look-up, one call, and `scaling` as an attribute.
        attention = eager_attention
        if self.config._attn_implementation != "eager":
            attention = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        mask = context.mask(k.shape[-2], self.window, self.lookback)
        y, weights = attention(self, q, k, v, mask, scaling=self.scaling, **kwargs)
        return self.c_proj(y.reshape(q.shape[0], context.length, -1)), weights


class GaussianMixer(Mixer):
    """Gaussian Kernel Attention: nanogka's mixer `gaussian` and, with the options, `successor`."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.log_bandwidth = vector(self.n_head, value=math.log(config.head_dim) / 4)  # log σ
        self.successor = self.needs_own_cache = bool(self.option.get("successor_keys"))
        self.lookback = int(self.successor)

    def operands(self, x, context, cache):
        # The cache stores x_h alone, which is also the value. Keys are computed from it again at each step: half the
        # memory for some more work.
        heads = past = self.heads(x)
        ids = heads[..., :0] if self.value_embeddings is None else context.ids[:, None, :, None].int()
        if cache is not None:
            past, ids = cache.update(heads, ids)
        positions = context.positions[:, -past.shape[-2] :]
        q = context.features(heads if self.affine_q is None else self.affine_q(heads))
        k = context.features(past if self.affine_k is None else self.affine_k(past))
        # All z of a head have the same norm, so exp(−‖z_i − z_j‖² / 2σ²) is exp(z_i·z_j / σ²) up to a factor that the
        # softmax cancels. With z_i / σ² as query this is ordinary attention, which any kernel computes.
        q = self.divided(q)
        if self.successor:
            k = successor_keys(k, k, positions)
        v = past if self.value_embeddings is None else past + self.value_embeddings(ids[:, 0, :, 0], past)
        return q, k, v


class SoftmaxMixer(Mixer):
    """softmax(q·k / √D) attention: nanogka's baseline `dot_product`, and `value_less`, which has no W_V."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        C, width = config.hidden_size, self.option["short_conv"]
        self.successor = bool(self.option.get("successor_keys"))
        self.needs_own_cache = self.successor or width > 1
        self.scaling, self.log_bandwidth = config.qk_scale**2 * config.head_dim**-0.5, None
        if self.option.get("learned_temperature"):
            self.scaling, self.log_bandwidth = 1.0, vector(self.n_head, value=-math.log(self.scaling) / 2)  # log √τ
        self.c_q, self.c_k, self.c_v = (nn.Linear(C, C, bias=False) for _ in "qkv")
        if not self.option["value_matrix"]:
            self.c_v = None
        self.conv_q, self.conv_k, self.conv_v = (ShortConvolution(width, C) if width else None for _ in "qkv")

    def projected(self, x, matrix, convolution, name, context, cache):
        y = self.heads(x if matrix is None else matrix(x))
        if convolution is None:
            return y
        if cache is not None:
            y = cache.with_history(name, y, len(convolution.weight) - 1)
        return convolution(y, context.new)

    def operands(self, x, context, cache):
        q = self.projected(x, self.c_q, self.conv_q, "query", context, cache)
        k = self.projected(x, self.c_k, self.conv_k, "key", context, cache)
        if self.affine_q is not None:
            q, k = self.affine_q(q), self.affine_k(k)
        q, k = context.features(q), context.features(k)
        if self.log_bandwidth is not None:
            q = self.divided(q)
        if self.successor:
            k = successor_keys(k, k if cache is None else cache.with_history("before", k, 1), context.new)
        v = self.projected(x, self.c_v, self.conv_v, "value", context, cache)
        if self.value_embeddings is not None:
            v = v + self.value_embeddings(context.ids, self.heads(x))
        return q, *(cache.update(k, v) if cache is not None else (k, v))


def successor_keys(k, history, positions):
    """Keys of the positions before, for k (B, H, T, D); `history` ends with k and holds what came before it.

    A query that resembles an earlier token thus finds the value of the token that followed it. Position 0 has no
    position before and keeps its own key.
    """
    return torch.where((positions == 0)[:, None, :, None], k, shift(history, 1, positions))


class MixtureMixer(Mixer):
    """Gaussian Mixture Attention (arXiv 2606.18283): positions write into K slots and read from them."""

    needs_own_cache = True

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        K, self.routing, d = (self.option[f"mixture_{name}"] for name in ("components", "routing", "routing_dim"))
        self.means, self.log_precisions = vector(self.n_head, K, d), vector(self.n_head, K, d)
        self.log_weights = vector(self.n_head, K)
        if self.routing == "projected":
            sizes = (self.n_head * d, self.n_head * d, config.hidden_size)
            self.c_q, self.c_k, self.c_v = (nn.Linear(config.hidden_size, size, bias=False) for size in sizes)

    def responsibilities(self, x):
        """(B, H, T, K): the posterior probability of each component given x (B, H, T, d), float32."""
        x, means, precisions = x.float(), self.means.float(), self.log_precisions.float().exp()
        slopes = torch.cat([-precisions / 2, precisions * means], -1)  # of x² and x
        constants = (self.log_precisions.float() - precisions * means.square()).sum(-1) / 2 + self.log_weights.float()
        return (torch.cat([x.square(), x], -1) @ slopes.mT + constants[:, None]).softmax(-1)

    def routes(self, x, context, cache):
        """Routing features of queries and keys (B, H, T, d), and values (B, H, T, D)."""
        if self.routing == "projected":
            return norm(self.heads(self.c_q(x))), norm(self.heads(self.c_k(x))), self.heads(self.c_v(x))
        v = self.heads(x)
        q = k = norm(v[..., : self.means.shape[-1]])
        if self.routing == "successor":
            k = shift(k if cache is None else cache.with_history("before", k, 1), 1, context.new)
        return q, k, v

    def forward(self, x, context, cache, **kwargs):
        q, k, v = self.routes(x, context, cache)
        read = self.responsibilities(q)
        written = (self.responsibilities(k) + FLOOR) * (context.new >= 0)[:, None, :, None]
        values = F.pad(v.float(), (0, 1), value=1.0)  # the last column counts
        memory = values.new_zeros(*self.log_weights.shape, values.shape[-1])  # (H, K, D + 1)
        if cache is not None:
            memory = cache.states.get("memory", memory)
        sums = []
        # Each chunk reads the memory of the chunks before it, and its own positions through a triangular matrix.
        for r, w, u in zip(*(t.split(max(64, min(read.shape[-1], 256)), dim=-2) for t in (read, written, values))):
            sums.append((r @ w.mT).tril() @ u + r @ memory)
            memory = memory + w.mT @ u
        if cache is not None:
            cache.states["memory"] = memory
        sums = torch.cat(sums, -2)
        y = (sums[..., :-1] / sums[..., -1:].clamp_min(torch.finfo(torch.float32).tiny)).to(x.dtype)
        return self.c_proj(y.transpose(1, 2).flatten(2)), None


MIXERS = {"gaussian": GaussianMixer, "softmax": SoftmaxMixer, "mixture": MixtureMixer}


def check_attention(config, mixers):
    """Raise ValueError if the attention function of `config` cannot serve the layers `mixers` and a smear."""
    name = config._attn_implementation or "sdpa"
    own_cache = config.smear or any(mixer.needs_own_cache for mixer in mixers)
    if name in MASKED_BACKENDS or not (own_cache or name.startswith("paged|")):
        return
    hint = ""
    if name.startswith("vllm"):
        hint = "; vLLM serves this model if nanogka is installed with it"
        if any(isinstance(mixer, MixtureMixer) for mixer in mixers):
            hint = "; vLLM cannot serve a model with mixture layers, with or without nanogka"
    raise ValueError(f"attn_implementation: got {name}, expected {' or '.join(MASKED_BACKENDS)}{hint}")
