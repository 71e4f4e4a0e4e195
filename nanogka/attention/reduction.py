"""The exact reduction of Gaussian kernel attention to softmax attention.

Inside one row the factor exp(−‖q_i‖² / 2σ²) cancels, so

    A = softmax_j( q_i·k_j / σ² − ‖k_j‖² / 2σ² ),

ordinary attention on q/σ and k/σ with a bias for each key. Where all keys have one norm (RMS-normed features) the bias
cancels as well; elsewhere it travels as two extra features, its rounded value and the rest, so that low precision
does not lose it.
"""

import torch
from torch import Tensor


def softmax_features(q: Tensor, k: Tensor, bandwidth: Tensor, equal_key_norms: bool) -> tuple[Tensor, Tensor]:
    """Features whose plain dot product is the Gaussian's exponent up to a constant of the row.

    Args:
        q, k: (B, T, H, D) features, perhaps one tensor; k may have another number of positions.
        bandwidth: (H,) σ.
        equal_key_norms: leave the bias out.

    Returns:
        Two tensors like q and k, with more features unless `equal_key_norms`.
    """
    dtype = q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    inverse = bandwidth.to(wide).reciprocal()[:, None]
    same = q is k
    scaled_q = q.to(wide) * inverse
    scaled_k = scaled_q if same else k.to(wide) * inverse
    q = scaled_q.to(dtype)
    k = q if same else scaled_k.to(dtype)
    if equal_key_norms:
        return q, k
    bias = -k.to(wide).square().sum(-1, keepdim=True) / 2
    # Only differences between keys of one head matter: the largest bias becomes 0, the smallest stays finite.
    bias = (bias - bias.amax(1, keepdim=True).detach()).clamp_min(torch.finfo(dtype).min / 4)
    high = bias.detach().to(dtype)
    low = (bias - high.to(wide)).to(dtype)  # carries the gradient of both
    padding = -(q.shape[-1] + 2) % 8  # fused GPU kernels want a multiple of 8
    q_rest, k_rest = (t.new_zeros(*t.shape[:-1], padding) for t in (q, k))
    ones = q.new_ones(*q.shape[:-1], 2)
    return torch.cat([q, ones, q_rest], -1), torch.cat([k, high, low, k_rest], -1)
