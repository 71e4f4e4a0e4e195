"""Gaussian Kernel Attention (the paper's section 3): no query, key or value projection.

The normalized activations x (B, T, C) are split into H heads x_h of D = C / H features. Then, per head,

    z    = norm(rope(x_h))                      similarity features, ‖z‖ = √D: query and key at once
    K_ij = M_ij exp(−‖z_i − z_j‖² / 2σ_h²)      M: causal, and local in a windowed layer (section 3.3)
    A_ij = K_ij / Σ_j K_ij                      rows sum to 1
    y_i  = Σ_j A_ij x_h,j                       the values are the features themselves, not rotated

and the output is W_O · concat_h(y), the only matrix. The only other parameters are the bandwidths σ_h.

Since query, key and value are all functions of x_h, a decode cache holds x_h alone, half of what keys and values take.
"""

from torch import Tensor

from nanogka.attention import gaussian_attention, gaussian_attention_cached, gaussian_decode
from nanogka.attention.rotary import rotary_norm
from nanogka.model.kv_cache import LayerCache
from nanogka.model.layers import AttentionInputs, BandwidthMixer, ForwardContext


class GaussianMixer(BandwidthMixer):
    """y = W_O · concat_h(A_h x_h), A_h the causal Gaussian kernel of z_i and z_j, rows summing to 1."""

    name, letter = "gaussian", "G"
    label, color = "Gaussian Kernel Attention", "#0072B2"
    tokens_per_parameter = 8.25  # the paper's depth-20 run
    cached_tensors = 1
    kept_tensors = 11.2
    exported = "gaussian"

    def attention_inputs(self, x: Tensor, context: ForwardContext, cache: LayerCache | None = None) -> AttentionInputs:
        heads = self.split_heads(x)
        z = rotary_norm(heads, context.cos_sin)
        return AttentionInputs(z, z, heads, self.bandwidth, window=self.window)

    def forward(self, x: Tensor, context: ForwardContext, cache: LayerCache | None = None) -> Tensor:
        if cache is not None and cache.metadata.key_positions is not None:
            return self.c_proj(self.attend_cached(x, context, cache).flatten(2))
        if cache is not None:  # nothing is cached before these positions: they attend to each other alone
            cache.update(self.split_heads(x))
        a = self.attention_inputs(x, context)
        # RMS norm gives all keys one norm, so the kernel's ‖z_j‖² cancels in the row's sum (attention/gaussian.py).
        y = gaussian_attention(a.q, a.k, a.v, a.bandwidth, window=a.window, equal_key_norms=True)
        return self.c_proj(y.flatten(2))

    def attend_cached(self, x: Tensor, context: ForwardContext, cache: LayerCache) -> Tensor:
        """(B, T, H, D): attention of new positions x (B, T, C), some of which have others before them."""
        heads, metadata = self.split_heads(x), cache.metadata
        (past,) = cache.update(heads)
        y = gaussian_decode(heads, past, self.bandwidth, metadata)
        if y is not None:
            return y
        # Without a kernel, the keys of all cached positions are made again in every step.
        q, k = rotary_norm(heads, context.cos_sin), rotary_norm(past, metadata.key_cos_sin)
        return gaussian_attention_cached(q, k, past, self.bandwidth, metadata)
