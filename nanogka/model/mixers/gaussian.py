"""Gaussian Kernel Attention (the paper's section 3): no query, key or value projection.

The heads of the normalised activations themselves are the values; rotated and normalised, they are query and key at
once. The only matrix is the output projection, the only other parameters one bandwidth per head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nanogka.attention import gaussian_attention, gaussian_attention_cached
from nanogka.attention.rotary import rotary_norm
from nanogka.model.layers import BANDWIDTH, AttentionInputs, ForwardContext, Initializer, Linear, Mixer, ParameterGroup

if TYPE_CHECKING:
    from nanogka.model.config import GPTConfig
    from nanogka.model.kv_cache import LayerCache


class GaussianMixer(Mixer):
    """y = W_O · concat_h(A_h x_h), A_h the causal Gaussian kernel of z = norm(rope(x_h)), rows summing to 1."""

    name, letter = "gaussian", "G"
    label, color = "Gaussian Kernel Attention", "#0072B2"
    tokens_per_parameter = 8.25  # the paper's depth-20 run
    cached_tensors = 1  # x_h alone: query, key and value are all functions of it

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.log_bandwidth = nn.Parameter(torch.empty(config.n_head))  # learned in log space: σ stays positive
        self.c_proj = Linear(config.n_embd, config.n_embd)

    def init_weights(self, init: Initializer) -> None:
        self.log_bandwidth.fill_(self.config.bandwidth_init or self.head_dim**0.25).log_()
        self.c_proj.weight.zero_()

    def parameter_group(self, name: str, parameter: Tensor) -> ParameterGroup:
        return BANDWIDTH if name == "log_bandwidth" else super().parameter_group(name, parameter)

    @property
    def bandwidth(self) -> Tensor:
        return self.log_bandwidth.exp()

    def attention_inputs(self, x: Tensor, context: ForwardContext) -> AttentionInputs:
        heads = self.split_heads(x)
        z = rotary_norm(heads, context.cos_sin)
        return AttentionInputs(z, z, heads, self.bandwidth, window=self.window)

    def forward(self, x: Tensor, context: ForwardContext, cache: LayerCache | None = None) -> Tensor:
        if cache is None:
            a = self.attention_inputs(x, context)
            y = gaussian_attention(a.q, a.k, a.v, a.bandwidth, window=a.window, equal_key_norms=True)
        else:
            heads = self.split_heads(x)
            (past,) = cache.update(heads)
            y = gaussian_attention_cached(heads, past, self.bandwidth, cache.metadata)
        return self.c_proj(y.flatten(2))
