"""The public operator: Gaussian kernel attention, exactly, without a T×T matrix.

Inside one row the factor exp(−‖q_i‖² / 2σ²) cancels, so

    A = softmax_j( q_i·k_j / σ² − ‖k_j‖² / 2σ² ),

ordinary attention on q/σ and k/σ with a bias for each key: any fused attention kernel computes it. Where all keys have
one norm (RMS-normed features) the bias cancels as well; elsewhere it travels as two extra features, its rounded value
and the rest, so that low precision does not lose it.
"""

import torch
from torch import Tensor

from nanogka import dispatch
from nanogka.attention.reference import gaussian_reference
from nanogka.attention.softmax import clip_window, softmax_attention

BACKENDS = ("auto", "reference", "softmax", "triton")


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
    """Masked, row-renormalized Gaussian kernel attention (the paper's section 3.2).

        K_ij = M_ij exp(−‖q_i − k_j‖² / 2σ²),   y_i = Σ_j K_ij v_j / Σ_j K_ij

    Args:
        q, k: (B, T, H, D) query and key features, any float dtype, any strides; GKA passes one tensor as both.
        v: (B, T, H, D_v) values in the same dtype.
        bandwidth: (H,) σ > 0 of each head. Not checked for sign, which would wait for a GPU.
        causal: whether position i sees only j ≤ i.
        window: only positions at most this far away are seen (0: only itself); `None` for all.
        backend: `softmax` (torch's fused attention), `triton` (our kernels), `reference` (literal, T×T), or `auto`: our
            kernels where they compute correctly on this device, else torch's. The result differs by rounding only.
        equal_key_norms: the caller's word that within a head all k_j have the same norm, which saves the key bias.
            The result is the same; the gradient of k lacks its component along k_j, which a caller that got equal
            norms from an RMS norm does not miss: the norm's backward removes that component.

    Returns:
        (B, T, H, D_v) in the dtype of `v`. Differentiable in q, k, v and bandwidth.
    """
    _check(q, k, v, bandwidth, window, backend)
    window = clip_window(window, q.shape[1])
    if backend == "reference":
        return gaussian_reference(q, k, v, bandwidth, causal=causal, window=window)
    kernel = dispatch.attention_kernel(backend, q.device, q.dtype)
    if kernel is not None:
        return kernel(q, k, v, bandwidth, causal=causal, window=window, equal_key_norms=equal_key_norms)
    q, k = softmax_features(q, k, bandwidth, equal_key_norms)
    return softmax_attention(q, k, v, scale=1.0, causal=causal, window=window)


def dot_product_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None = None) -> Tensor:
    """Causal softmax(scale · q kᵀ + mask) v, by the kernel of Gaussian attention where that is chosen.

    With σ = scale^−½ and the key bias left out the kernel is softmax attention, its gradients too, whatever the norms.
    """
    kernel = dispatch.attention_kernel("auto", q.device, q.dtype)
    if kernel is None:
        return softmax_attention(q, k, v, scale=scale, window=window)
    bandwidth = torch.full((q.shape[2],), scale**-0.5, device=q.device)
    window = clip_window(window, q.shape[1])
    return kernel(q, k, v, bandwidth, causal=True, window=window, equal_key_norms=True)


def softmax_features(q: Tensor, k: Tensor, bandwidth: Tensor, equal_key_norms: bool) -> tuple[Tensor, Tensor]:
    """Features whose plain dot product is the Gaussian's exponent up to a constant per row.

    They are like q and k, perhaps one tensor, (B, T, H, D) and (B, S, H, D), with more features for the key bias
    unless `equal_key_norms`.
    """
    dtype, same = q.dtype, q is k
    wide = torch.promote_types(dtype, torch.float32)
    inverse = bandwidth.to(wide).reciprocal()
    q = scale_features(q, inverse)
    k = q if same else scale_features(k, inverse)
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


def scale_features(x: Tensor, inverse: Tensor) -> Tensor:
    """x / σ of features (…, H, D) in the dtype of x; `inverse` (H,) is 1 / σ in the dtype of the product."""
    return (x.to(inverse.dtype) * inverse[:, None]).to(x.dtype)


def _check(q: Tensor, k: Tensor, v: Tensor, bandwidth: Tensor, window: int | None, backend: str) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend: got {backend!r}, expected {', '.join(BACKENDS)}")
    if window is not None and window < 0:
        raise ValueError(f"window: got {window}, expected None or an integer of at least 0")
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
        raise ValueError(f"bandwidth: got shape {tuple(bandwidth.shape)}, expected ({q.shape[2]},), one σ per head")
