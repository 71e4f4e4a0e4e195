"""Gaussian Kernel Attention (the paper's section 3): no query, key or value projection.

The normalized activations x (B, T, C) are split into H heads x_h of D = C / H features. Then, per head,

    z    = norm(rope(x_h))                      similarity features, ‖z‖ = √D: query and key at once
    K_ij = M_ij exp(−‖z_i − z_j‖² / 2σ_h²)      M: causal, and local in a windowed layer (section 3.3)
    A_ij = K_ij / Σ_j K_ij                      rows sum to 1
    y_i  = Σ_j A_ij x_h,j                       the values are the features themselves, not rotated

and the output is W_O · concat_h(y), the only matrix. The only other parameters are the bandwidths σ_h.
"""

from torch import Tensor

from nanogka.attention.rotary import rotary_norm
from nanogka.model.kv_cache import LayerCache
from nanogka.model.layers import AttentionInputs, BandwidthMixer, TokenContext


class GaussianMixer(BandwidthMixer):
    """y = W_O · concat_h(A_h x_h), A_h the causal Gaussian kernel of z_i and z_j, rows summing to 1."""

    name, letter = "gaussian", "G"
    label, color = "Gaussian Kernel Attention", "#0072B2"
    tokens_per_parameter = 8.25  # the paper's depth-20 run
    saved_activations = 12.2
    exported = "gaussian"

    def attention_inputs(self, x: Tensor, context: TokenContext, cache: LayerCache | None = None) -> AttentionInputs:
        heads = self.split_heads(x)  # already normed over C, see `Block`
        z = rotary_norm(heads, context.cos_sin)
        # RMS norm gives all keys one norm, so the kernel's ‖z_j‖² cancels in the row's sum (attention/gaussian.py).
        # The values are not rotated: a weighted sum should not depend on where its terms are, only on what they are.
        return AttentionInputs(z, z, heads, self.bandwidth, window=self.window)
