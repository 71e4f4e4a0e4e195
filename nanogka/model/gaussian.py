"""Gaussian Kernel Attention (the paper's section 3): no query, key or value projection.

The heads of the normalised activations themselves are the values; rotated and normalised, they are query and key at
once. The only matrix is the output projection, the only other parameters one bandwidth a head.
"""

import torch
from torch import Tensor, nn

from nanogka.attention import gaussian_attention, gaussian_attention_over, softmax_attention
from nanogka.model.config import GPTConfig
from nanogka.model.layers import Linear, Rotary, norm, rotate
from nanogka.model.mixer import Mixer, Tokens


class GaussianMixer(Mixer):
    """y = W_O · concat_h(A_h x_h), A_h the causal Gaussian kernel of z = norm(rope(x_h)), rows summing to 1."""

    remembered = 1  # x_h alone: query, key and value are all functions of it

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.log_bandwidth = nn.Parameter(torch.empty(config.n_head))  # learned in log space: σ stays positive
        self.c_proj = Linear(config.n_embd, config.n_embd)

    @property
    def bandwidth(self) -> Tensor:
        return self.log_bandwidth.exp()

    def similarity(self, heads: Tensor, rotary: Rotary) -> Tensor:
        """z (B, T, H, D) of un-rotated features (B, T, H, D); all of norm √D."""
        return norm(rotate(heads, rotary)).to(heads.dtype)

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        heads = self.split_heads(x)
        z = self.similarity(heads, tokens.rotary)
        y = gaussian_attention(z, z, heads, self.bandwidth, window=self.window, equal_key_norms=True)
        return self.c_proj(y.flatten(2))

    def remember(self, x: Tensor, tokens: Tokens) -> tuple[Tensor, ...]:
        return (self.split_heads(x),)

    def recall(
        self, x: Tensor, tokens: Tokens, past: tuple[Tensor, ...], past_rotary: Rotary, mask: Tensor | None
    ) -> Tensor:
        if mask is None and x.shape[1] > 1:
            return self.forward(x, tokens)
        heads = past[0]
        q = self.similarity(self.split_heads(x), tokens.rotary)
        k = self.similarity(heads, past_rotary)
        if mask is not None:
            y = gaussian_attention_over(q, k, heads, self.bandwidth, mask, equal_key_norms=True)
        else:
            scaled = (q.float() * self.bandwidth.float().square().reciprocal()[:, None]).to(q.dtype)
            y = softmax_attention(scaled, k, heads, scale=1.0, causal=False)
        return self.c_proj(y.flatten(2))
