"""The baseline: nanochat's causal self-attention of February 2026, with value embeddings on alternate layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nanogka.attention import softmax_attention, softmax_attention_cached
from nanogka.attention.rotary import rotary_norm
from nanogka.model.layers import (
    VALUE_EMBEDDING,
    AttentionInputs,
    Embedding,
    ForwardContext,
    Initializer,
    Linear,
    Mixer,
    ParameterGroup,
)

if TYPE_CHECKING:
    from nanogka.model.config import GPTConfig
    from nanogka.model.kv_cache import LayerCache

GATE_FEATURES = 32  # how many of the activations decide how much of the value embedding is let in


class DotProductMixer(Mixer):
    """softmax(q·k / √D) attention with learned W_Q, W_K, W_V, W_O; rotary, then RMS norm, on q and k.

    Layer i with i ≡ L − 1 (mod 2) adds a V × C table's row of its token to v, through a gate per head
    2 · sigmoid(W_g x[:32]).
    """

    name, letter = "dot_product", "D"
    label, color = "baseline (dot product)", "#D55E00"
    tokens_per_parameter = 10.5  # nanochat's
    cached_tensors = 2  # k and v

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.c_q, self.c_k, self.c_v, self.c_proj = (Linear(config.n_embd, config.n_embd) for _ in range(4))
        self.value_embedding = None
        if layer % 2 == (config.n_layer - 1) % 2:
            self.value_embedding = Embedding(config.vocab_size, config.n_embd)
            self.value_gate = Linear(GATE_FEATURES, config.n_head)

    def init_weights(self, init: Initializer) -> None:
        bound = (3 / self.config.n_embd) ** 0.5  # standard deviation 1 / √C
        for matrix in (self.c_q, self.c_k, self.c_v):
            init.uniform(matrix.weight, bound)
        self.c_proj.weight.zero_()
        if self.value_embedding is not None:
            init.uniform(self.value_embedding.weight, bound)
            self.value_gate.weight.zero_()

    def parameter_group(self, name: str, parameter: Tensor) -> ParameterGroup:
        if name == "value_embedding.weight":
            return VALUE_EMBEDDING
        return super().parameter_group(name, parameter)

    def attention_inputs(self, x: Tensor, context: ForwardContext) -> AttentionInputs:
        k = rotary_norm(self.split_heads(self.c_k(x)), context.cos_sin)
        v = self.split_heads(self.c_v(x))
        if self.value_embedding is not None:
            embedded = self.split_heads(self.value_embedding(context.ids).to(x.dtype))
            gate = 2 * torch.sigmoid(self.value_gate(x[..., :GATE_FEATURES]))
            v = v + gate[..., None] * embedded
        q = rotary_norm(self.split_heads(self.c_q(x)), context.cos_sin)
        return AttentionInputs(q, k, v, scale=self.head_dim**-0.5, window=self.window)

    def forward(self, x: Tensor, context: ForwardContext, cache: LayerCache | None = None) -> Tensor:
        a = self.attention_inputs(x, context)
        if cache is None:
            y = softmax_attention(a.q, a.k, a.v, scale=a.scale, window=a.window)
        else:
            k, v = cache.update(a.k, a.v)
            y = softmax_attention_cached(a.q, k, v, cache.metadata, scale=a.scale)
        return self.c_proj(y.flatten(2))
