"""Gaussian Kernel Attention (the paper's section 3): no query, key or value projection.

The heads of the normalised activations themselves are the values; rotated and normalised, they are query and key at
once. The only matrix is the output projection, the only other parameters one bandwidth per head.

What the paper does not have is optional, each a few parameters and none of them a projection; the class lists them.
The decode cache holds x_h whatever is chosen (and the token for value embeddings): keys and values are made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nanogka.attention import gaussian_attention, gaussian_attention_cached, gaussian_decode
from nanogka.attention.rotary import CosSin, norm, rotary_norm
from nanogka.model.layers import (
    BANDWIDTH,
    AttentionInputs,
    ChannelAffine,
    ForwardContext,
    Initializer,
    Linear,
    Mixer,
    ParameterGroup,
    ShortConvolution,
    ValueEmbedding,
    one_earlier,
)

if TYPE_CHECKING:
    from nanogka.model.config import GPTConfig
    from nanogka.model.kv_cache import LayerCache


class GaussianMixer(Mixer):
    """y = W_O · concat_h(A_h v_h), A_h the causal Gaussian kernel of q_i and k_j, rows summing to 1.

    In the paper q = k = z = norm(rope(x_h)) and v = x_h. Options:

    * `successor_keys`: "full": k_j = z_{j − 1} (k_0 = z_0), so that a head answers with what followed the similar case;
      "mix": k_j = norm((1 − m) z_j + m z_{j − 1}) with m learned per head; "full,off" and the like: by layer, tiled.
    * `short_conv`: width of causal depthwise convolutions that make q, k and v of x_h (before rotary and norm); that of
      k begins as the position before (with successor keys as the position itself), those of q and v as the position.
    * `value_embeddings`: the baseline's, added to v on alternate layers.
    * `qk_affine`: q and k are scaled and shifted per channel, each by its own, before rotary and norm. Rotary turns the
      shifts with the position: with them a logit depends on the distance too.
    * `diagonal_metric`: features are scaled per channel before rotary and norm, alike in q and k.
    * `data_bandwidth`: σ_i = σ_h · exp(u_h · x_i), u learned.
    * `exclude_self`: no position sees itself, but the first.
    """

    name, letter = "gaussian", "G"
    label, color = "Gaussian Kernel Attention", "#0072B2"
    tokens_per_parameter = 8.25  # the paper's depth-20 run
    cached_tensors = 1  # x_h alone: query, key and value are all functions of it
    options = {
        "successor_keys": "off",
        "short_conv": 0,
        "value_embeddings": False,
        "qk_affine": False,
        "diagonal_metric": False,
        "data_bandwidth": False,
        "exclude_self": False,
    }

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.log_bandwidth = nn.Parameter(torch.empty(config.n_head))  # learned in log space: σ stays positive
        self.c_proj = Linear(config.n_embd, config.n_embd)
        choices = self.option("successor_keys").split(",")
        self.successor_keys = choices[layer % len(choices)]
        self.exclude_self = self.option("exclude_self")
        width = self.option("short_conv")
        self.conv_q, self.conv_k, self.conv_v = (ShortConvolution(config, width) if width else None for _ in "qkv")
        self.affine_q, self.affine_k = (ChannelAffine(config) if self.option("qk_affine") else None for _ in "qk")
        self.value_embedding = None
        if self.option("value_embeddings") and ValueEmbedding.on_layer(config, layer):
            self.value_embedding = ValueEmbedding(config)
        shape = (config.n_head, self.head_dim)
        self.mix = nn.Parameter(torch.empty(config.n_head)) if self.successor_keys == "mix" else None
        self.metric = nn.Parameter(torch.empty(shape)) if self.option("diagonal_metric") else None
        self.bandwidth_slope = nn.Parameter(torch.empty(shape)) if self.option("data_bandwidth") else None
        # The paper's mixer, with or without successor keys and value embeddings, has a decoding kernel.
        extras = (self.conv_q, self.mix, self.metric, self.bandwidth_slope)
        self.decodes_by_kernel = not self.exclude_self and all(extra is None for extra in extras)

    def init_weights(self, init: Initializer) -> None:
        self.log_bandwidth.fill_(self.config.bandwidth_init or self.head_dim**0.25).log_()
        self.c_proj.weight.zero_()
        if self.conv_q is not None:
            shift = int(self.successor_keys == "off" and len(self.conv_k.weight) > 1)
            for convolution, tap in ((self.conv_q, 0), (self.conv_k, shift), (self.conv_v, 0)):
                convolution.init_weights(tap)
        if self.affine_q is not None:
            self.affine_q.init_weights()
            self.affine_k.init_weights()
        if self.value_embedding is not None:
            self.value_embedding.init_weights(init)
        if self.mix is not None:
            self.mix.zero_()
        if self.metric is not None:
            self.metric.fill_(1.0)
        if self.bandwidth_slope is not None:
            self.bandwidth_slope.zero_()

    def parameter_group(self, name: str, parameter: Tensor) -> ParameterGroup:
        return BANDWIDTH if name == "log_bandwidth" else super().parameter_group(name, parameter)

    def flops_per_token(self) -> int:
        convolutions = (m.weight for m in (self.conv_q, self.conv_k, self.conv_v) if m is not None)
        return super().flops_per_token() + 6 * sum(weight.numel() for weight in convolutions)

    @property
    def lookback(self) -> int:
        return (self.option("short_conv") or 1) - 1 + (self.successor_keys != "off")

    def cache_bytes(self, context: int, element_bytes: int) -> int:
        of_queries = 0 if self.conv_q is None else len(self.conv_q.weight) - 1  # features that later ones need
        return super().cache_bytes(context, element_bytes) + of_queries * self.config.n_embd * element_bytes

    def position_bytes(self, element_bytes: int) -> int:
        return super().position_bytes(element_bytes) + (0 if self.value_embedding is None else 4)  # the token's id

    @property
    def bandwidth(self) -> Tensor:
        return self.log_bandwidth.exp()

    def similarity_features(self, x: Tensor, cos_sin: CosSin, affine: ChannelAffine | None) -> Tensor:
        """z (B, S, H, D) of features x: rotated and normed, in the learned metric, as queries or keys have them."""
        x = x if self.metric is None else x * self.metric.to(x.dtype)
        return rotary_norm(x if affine is None else affine(x), cos_sin)

    def queries(self, heads: Tensor, z: Tensor) -> Tensor:
        """q (B, T, H, D) of positions with features x_h `heads` and z."""
        if self.bandwidth_slope is None:
            return z
        # Keys have one norm, so that scaling the query is scaling the distance.
        logarithm = (heads.float() * self.bandwidth_slope).sum(-1, keepdim=True)
        return (z.float() * torch.exp(-2 * logarithm)).to(z.dtype)

    def keys(self, z: Tensor, earlier: Callable[[Tensor], Tensor], first: Tensor) -> Tensor:
        """k (B, S, H, D) of positions with features z.

        Args:
            z: (B, S, H, D).
            earlier: gives the value one position before each, or 0.
            first: (B or 1, S) bool, true for position 0 of a sequence.
        """
        if self.successor_keys == "off":
            return z
        before = torch.where(first[..., None, None], z, earlier(z))
        if self.mix is None:
            return before
        return norm(torch.lerp(z, before, self.mix.sigmoid()[:, None].to(z.dtype)))

    def values(self, x: Tensor, ids: Tensor | None, earlier: Callable[[Tensor], Tensor]) -> Tensor:
        """v (B, S, H, D) of the positions whose features x_h are `x` and tokens `ids` (B, S)."""
        v = x if self.conv_v is None else self.conv_v(x, earlier)
        return v if self.value_embedding is None else v + self.value_embedding(ids, x.flatten(2))

    def attention_inputs(self, x: Tensor, context: ForwardContext, cache: LayerCache | None = None) -> AttentionInputs:
        heads = self.split_heads(x)
        query = heads if self.conv_q is None else self.conv_q.of_new(heads, context, cache, "query")
        z = similar = self.similarity_features(query, context.cos_sin, self.affine_q)
        if self.conv_k is not None or self.affine_k is not None:
            key = heads if self.conv_k is None else self.conv_k(heads, one_earlier)
            similar = self.similarity_features(key, context.cos_sin, self.affine_k)
        first = torch.arange(x.shape[1], device=x.device)[None] == 0
        q, k = self.queries(heads, z), self.keys(similar, one_earlier, first)
        v = self.values(heads, context.ids, one_earlier)
        return AttentionInputs(q, k, v, self.bandwidth, window=self.window, exclude_self=self.exclude_self)

    def remember(self, x: Tensor, context: ForwardContext, cache: LayerCache) -> tuple[Tensor, Tensor | None]:
        """Cache the new positions; x_h (B, S, H, D) of all and, where values need them, their tokens (B, S) int32."""
        heads = self.split_heads(x)
        if self.value_embedding is None:
            return *cache.update(heads), None
        return cache.update(heads, context.ids.int())

    def attend_cached(self, x: Tensor, context: ForwardContext, cache: LayerCache) -> Tensor:
        """(B, T, H, D): attention of new positions x (B, T, C), some of which have others before them."""
        heads, metadata = self.split_heads(x), cache.metadata
        past, ids = self.remember(x, context, cache)
        if self.decodes_by_kernel and x.shape[1] == 1:
            embedded = None
            if self.value_embedding is not None:
                embedded = self.value_embedding.table.weight, ids, self.value_embedding.gates(past.flatten(2))
            query, key_affine = heads, None
            if self.affine_q is not None:
                query, key_affine = self.affine_q(heads), (self.affine_k.scale, self.affine_k.shift)
            successor = self.successor_keys == "full"
            y = gaussian_decode(query, past, self.bandwidth, metadata, successor, key_affine, embedded)
            if y is not None:
                return y
        query = heads if self.conv_q is None else self.conv_q.of_new(heads, context, cache, "query")
        similar = past if self.conv_k is None else self.conv_k(past, metadata.earlier)
        q = self.queries(heads, self.similarity_features(query, context.cos_sin, self.affine_q))
        z = self.similarity_features(similar, metadata.key_cos_sin, self.affine_k)
        k = self.keys(z, metadata.earlier, metadata.key_positions == 0)
        v = self.values(past, ids, metadata.earlier)
        return gaussian_attention_cached(q, k, v, self.bandwidth, metadata, self.exclude_self)

    def forward(self, x: Tensor, context: ForwardContext, cache: LayerCache | None = None) -> Tensor:
        if cache is not None and cache.metadata.key_positions is not None:
            return self.c_proj(self.attend_cached(x, context, cache).flatten(2))
        if cache is not None:  # these positions are all there is
            self.remember(x, context, cache)
        a = self.attention_inputs(x, context, cache)
        options = {"window": a.window, "equal_key_norms": True, "exclude_self": a.exclude_self}
        return self.c_proj(gaussian_attention(a.q, a.k, a.v, a.bandwidth, **options).flatten(2))
