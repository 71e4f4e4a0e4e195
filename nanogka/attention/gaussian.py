"""The public operator: Gaussian kernel attention by the exact reduction to softmax attention.

Inside one row the factor exp(−‖q_i‖² / 2σ²) cancels, so

    A = softmax_j( q_i·k_j / σ² − ‖k_j‖² / 2σ² ),

ordinary attention on q/σ and k/σ with a bias for each key. Where all keys have one norm (RMS-normed features) the bias
cancels as well; elsewhere it travels as two extra features, its rounded value and the rest, so that low precision
does not lose it.
"""

import torch
from torch import Tensor

from nanogka.attention.reference import gaussian_reference
from nanogka.attention.softmax import softmax_attention, softmax_attention_over

BACKENDS = ("auto", "reference", "sdpa")


def gaussian_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bandwidth: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    backend: str = "auto",
    equal_key_norms: bool = False,
) -> Tensor:
    """Masked, row-renormalised Gaussian kernel attention (the paper's section 3.2).

        K_ij = M_ij exp(−‖q_i − k_j‖² / 2σ²),   y_i = Σ_j K_ij v_j / Σ_j K_ij

    Args:
        q, k: (B, T, H, D) query and key features, any float dtype, any strides; GKA passes one tensor as both.
        v: (B, T, H, D_v) values in the same dtype.
        bandwidth: (H,) σ > 0 of each head. Not checked for sign: it may live on another device's queue.
        causal: whether position i sees only j ≤ i.
        window: only positions at most this far away are seen (0: only itself); `None` for all.
        backend: `auto`, `reference` (literal, materialises T×T) or `sdpa` (fused softmax). The choice changes the
            result by rounding only.
        equal_key_norms: the caller's word that within a head all k_j have the same norm, which saves the key bias.

    Returns:
        (B, T, H, D_v) in the dtype of `v`. Differentiable in q, k, v and bandwidth.

    Raises:
        ValueError: if shapes or dtypes do not fit, the window is negative or the back-end unknown.
    """
    _check(q, k, v, bandwidth, window, backend)
    if backend == "reference":
        return gaussian_reference(q, k, v, bandwidth, causal=causal, window=window)
    q, k = _softmax_features(q, k, bandwidth, equal_key_norms)
    return softmax_attention(q, k, v, scale=1.0, causal=causal, window=window)


def gaussian_attention_over(
    q: Tensor, k: Tensor, v: Tensor, bandwidth: Tensor, mask: Tensor, *, equal_key_norms: bool = False
) -> Tensor:
    """The operator for T queries over S remembered keys with an explicit (B, T, S) mask (decoding with a cache)."""
    q, k = _softmax_features(q, k, bandwidth, equal_key_norms)
    return softmax_attention_over(q, k, v, mask, scale=1.0)


def _softmax_features(q: Tensor, k: Tensor, bandwidth: Tensor, equal_key_norms: bool) -> tuple[Tensor, Tensor]:
    """Features whose plain dot product is the Gaussian's exponent up to a constant of the row."""
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
    zeros = q.new_zeros(*q.shape[:-1], padding)
    ones = q.new_ones(*q.shape[:-1], 2)
    return torch.cat([q, ones, zeros], -1), torch.cat([k, high, low, zeros], -1)


def _check(q: Tensor, k: Tensor, v: Tensor, bandwidth: Tensor, window: int | None, backend: str) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend: got {backend!r}, takes {', '.join(BACKENDS)}")
    if window is not None and window < 0:
        raise ValueError(f"window: got {window}, takes None or an integer of at least 0")
    if q.ndim != 4 or q.shape != k.shape or v.shape[:3] != q.shape[:3] or v.ndim != 4:
        raise ValueError(
            "q, k, v: got shapes "
            f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}, take (B, T, H, D), (B, T, H, D), (B, T, H, D_v)"
        )
    if q.shape[1] == 0:
        raise ValueError("q, k, v: got 0 positions, take at least 1")
    if not q.is_floating_point() or not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v: got dtypes {q.dtype}, {k.dtype}, {v.dtype}, take one float dtype")
    if bandwidth.shape != (q.shape[2],):
        raise ValueError(f"bandwidth: got shape {tuple(bandwidth.shape)}, takes ({q.shape[2]},), one σ a head")
