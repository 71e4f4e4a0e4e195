"""The projection-free mixer that this project recommends: GKA that answers with what followed (docs/research/study.md).

Kernel regression, read as a predictor, answers with what *followed* a similar case; the paper's mixer returns the
similar case itself, foremost the present position, which resembles itself most. This one differs from `gaussian.py` in:

    q_i = norm(rope(a ∘ x_h,i + b))                 scales and shifts per channel, a and b of queries, c and d of keys:
    k_j = norm(rope(c ∘ x_h,j−1 + d)),  k_0 from 0  a channel can be left out of the search, and rotary turns b and d
                                                    with the position, so that a logit depends on the distance too
    v_j = x_h,j + gate_h,j · E[token_j]             the baseline's value embeddings, on alternate layers

Successor keys are a key shift (KV shifting attention, arXiv 2411.19574) with fixed weights: the key of position j is
made of the position before it, its value stays j's. So the head looks for positions whose predecessor resembles the
present one, and reads what came next: induction without a second layer. The network adds a smear of the embeddings.
None of these is a projection; the decode cache still holds x_h alone, and where there are value embeddings the token's
id.
"""

import torch
from torch import Tensor

from nanogka.attention import gaussian_attention, gaussian_attention_cached, gaussian_decode
from nanogka.attention.rotary import rotary_norm
from nanogka.model.config import GPTConfig, Option
from nanogka.model.kv_cache import LayerCache
from nanogka.model.layers import (
    AttentionInputs,
    BandwidthMixer,
    ChannelAffine,
    ForwardContext,
    Initializer,
    ValueEmbedding,
)


class SuccessorMixer(BandwidthMixer):
    """Gaussian Kernel Attention with successor keys, scales and shifts of queries and keys, and value embeddings."""

    name, letter = "successor", "S"
    label, color = "GKA, successor keys", "#009E73"
    tokens_per_parameter = 8.25  # as GKA
    cached_tensors = 1
    kept_tensors = 14.2
    exported = "gaussian"
    smears = True
    options = {
        "successor_keys": Option(True, "the key of a position is made of the position before it"),
        "qk_affine": Option(True, "queries and keys are scaled and shifted per channel, each by its own"),
        "value_embeddings": Option(True, "a second embedding is added to the values of alternate layers"),
    }

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.successor_keys = self.option("successor_keys")
        self.affine_q, self.affine_k = (ChannelAffine(config) if self.option("qk_affine") else None for _ in "qk")
        self.value_embedding = ValueEmbedding.of_layer(config, layer, self.option("value_embeddings"))

    def init_weights(self, init: Initializer) -> None:
        super().init_weights(init)
        if self.affine_q is not None:
            self.affine_q.init_weights()
            self.affine_k.init_weights()
        if self.value_embedding is not None:
            self.value_embedding.init_weights(init)

    @property
    def lookback(self) -> int:
        # The oldest position of a window is found by the one before it, which a ring must then hold as well.
        return int(self.successor_keys)

    def position_bytes(self, element_bytes: int) -> int:
        return super().position_bytes(element_bytes) + (0 if self.value_embedding is None else 4)  # the token's id

    def exported_options(self) -> dict[str, object]:
        return super().exported_options() | {"value_embeddings": self.value_embedding is not None}

    def values(self, heads: Tensor, ids: Tensor | None) -> Tensor:
        """v (B, S, H, D) of positions with features x_h (B, S, H, D) and tokens `ids` (B, S)."""
        return heads if self.value_embedding is None else heads + self.value_embedding(ids, heads.flatten(2))

    def attention_inputs(self, x: Tensor, context: ForwardContext, cache: LayerCache | None = None) -> AttentionInputs:
        heads = self.split_heads(x)
        if self.affine_q is None:
            q = k = rotary_norm(heads, context.cos_sin)
        else:
            q, k = (rotary_norm(affine(heads), context.cos_sin) for affine in (self.affine_q, self.affine_k))
        if self.successor_keys:
            k = torch.cat([k[:, :1], k[:, :-1]], dim=1)  # nothing comes before position 0: it keeps its own key
        return AttentionInputs(q, k, self.values(heads, context.ids), self.bandwidth, window=self.window)

    def forward(self, x: Tensor, context: ForwardContext, cache: LayerCache | None = None) -> Tensor:
        if cache is not None and cache.metadata.key_positions is not None:
            return self.c_proj(self.attend_cached(x, context, cache).flatten(2))
        if cache is not None:  # nothing is cached before these positions: they attend to each other alone
            self.append_to_cache(x, context, cache)
        a = self.attention_inputs(x, context)
        y = gaussian_attention(a.q, a.k, a.v, a.bandwidth, window=a.window, equal_key_norms=True)
        return self.c_proj(y.flatten(2))

    def append_to_cache(self, x: Tensor, context: ForwardContext, cache: LayerCache) -> tuple[Tensor, Tensor | None]:
        """Cache new positions; returns x_h (B, S, H, D) of all and, if values need them, their tokens (B, S) int32."""
        if self.value_embedding is None:
            return *cache.update(self.split_heads(x)), None
        return cache.update(self.split_heads(x), context.ids.int())

    def attend_cached(self, x: Tensor, context: ForwardContext, cache: LayerCache) -> Tensor:
        """(B, T, H, D): attention of new positions x (B, T, C), some of which have others before them."""
        metadata = cache.metadata
        past, ids = self.append_to_cache(x, context, cache)
        query, keyed = self.split_heads(x), past
        key_affine = embedded = None
        if self.affine_q is not None:
            query, key_affine = self.affine_q(query), (self.affine_k.scale, self.affine_k.shift)
        if x.shape[1] == 1:
            if self.value_embedding is not None:
                embedded = self.value_embedding.table.weight, ids, self.value_embedding.gates(past.flatten(2))
            y = gaussian_decode(query, past, self.bandwidth, metadata, self.successor_keys, key_affine, embedded)
            if y is not None:
                return y
        if self.affine_k is not None:
            keyed = self.affine_k(past)
        q, k = rotary_norm(query, context.cos_sin), rotary_norm(keyed, metadata.key_cos_sin)
        if self.successor_keys:
            first = (metadata.key_positions == 0)[..., None, None]
            k = torch.where(first, k, metadata.earlier(k))
        return gaussian_attention_cached(q, k, self.values(past, ids), self.bandwidth, metadata)
