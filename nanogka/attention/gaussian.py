"""The public operator: Gaussian kernel attention, exactly, without a T×T matrix.

Inside one row the factor exp(−‖q_i‖² / 2σ²) cancels, so

    A = softmax_j( q_i·k_j / σ² − ‖k_j‖² / 2σ² ),

ordinary attention with a bias for each key. Any fused attention kernel computes it. Where all keys of a head have the
same norm (RMS-normed features, as in every mixer here) the bias cancels as well, and only the queries are divided, by
σ². Elsewhere queries and keys are divided by σ, and the bias is two extra features, its rounded value and the rest, so
that low precision does not lose it.
"""

import torch
from torch import Tensor

from nanogka.attention.reference import gaussian_reference
from nanogka.attention.rotary import scale_queries
from nanogka.attention.softmax import clip_window, softmax_attention

BACKENDS = ("auto", "reference")


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
        q, k: (B, T, H, D) query and key features, any float dtype, any strides. GKA passes one tensor as both.
        v: (B, T, H, D_v) values in the same dtype.
        bandwidth: (H,) σ > 0 of each head. Its sign is not checked, because that would wait for a GPU.
        causal: position i sees only j ≤ i.
        window: only positions at most this far back are seen (0: only itself); `None` for all. It must be causal.
        backend: "auto" is torch's fused attention, on CUDA FlashAttention. "reference" is the literal version, T×T.
        equal_key_norms: saves the key bias. Set it only if all keys of a head have the same norm. The gradient of k
            then lacks its component along k, which an RMS norm's backward would remove anyway.

    Returns:
        (B, T, H, D_v) in the dtype of `v`. Differentiable in q, k, v and bandwidth.
    """
    _check(q, k, v, bandwidth, causal, window, backend)
    window = clip_window(window, q.shape[1])
    if backend == "reference":
        return gaussian_reference(q, k, v, bandwidth, causal=causal, window=window)
    if equal_key_norms:
        q = scale_queries(q, bandwidth)
    else:
        q, k = softmax_features(q, k, bandwidth)
    return softmax_attention(q, k, v, scale=1.0, causal=causal, window=window)


def softmax_features(q: Tensor, k: Tensor, bandwidth: Tensor) -> tuple[Tensor, Tensor]:
    """Features whose plain dot product is the Gaussian's exponent up to a constant per row.

    They are q/σ and k/σ, perhaps one tensor, (B, T, H, D) and (B, S, H, D), with more features for the key bias.
    """
    # One tensor for both where q is k: it is divided once, and the backward pass keeps one tensor.
    dtype = q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    inverse = bandwidth.to(wide).reciprocal()[:, None]
    same = q is k
    scaled_q = q.to(wide) * inverse
    scaled_k = scaled_q if same else k.to(wide) * inverse
    q = scaled_q.to(dtype)
    k = q if same else scaled_k.to(dtype)
    bias = -k.to(wide).square().sum(-1, keepdim=True) / 2
    # Only differences between keys of one head matter: the largest bias becomes 0, the smallest stays finite.
    bias = (bias - bias.amax(1, keepdim=True).detach()).clamp_min(torch.finfo(dtype).min / 4)
    # In bfloat16 the bias has 8 bits, and its rounding would show in the weights: what is lost is a second feature.
    high = bias.detach().to(dtype)
    low = (bias - high.to(wide)).to(dtype)  # carries the gradient of both
    padding = -(q.shape[-1] + 2) % 8  # fused GPU kernels need a multiple of 8
    q_rest, k_rest = (t.new_zeros(*t.shape[:-1], padding) for t in (q, k))
    ones = q.new_ones(*q.shape[:-1], 2)
    return torch.cat([q, ones, q_rest], -1), torch.cat([k, high, low, k_rest], -1)


def _check(q: Tensor, k: Tensor, v: Tensor, bandwidth: Tensor, causal: bool, window: int | None, backend: str) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend: got {backend!r}, expected {', '.join(BACKENDS)}")
    if window is not None and (window < 0 or not causal):
        expected = "an integer of at least 0" if causal else "attention that is causal"
        raise ValueError(f"window: got {window}, expected None or {expected}")
    if q.ndim != 4 or q.shape != k.shape or v.shape[:3] != q.shape[:3] or v.ndim != 4:
        raise ValueError(
            "q, k, v: got shapes "
            f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}, expected (B, T, H, D), (B, T, H, D), (B, T, H, D_v)"
        )
    if q.shape[1] == 0:
        raise ValueError("q, k, v: got 0 positions, expected at least 1")
    if not q.is_floating_point() or not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v: got dtypes {q.dtype}, {k.dtype}, {v.dtype}, expected one float dtype")
    if bandwidth.shape != (q.shape[2],):
        raise ValueError(f"bandwidth: got shape {tuple(bandwidth.shape)}, expected ({q.shape[2]},), one σ per head")
