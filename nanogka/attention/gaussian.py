"""The public operator: Gaussian kernel attention, whichever back-end runs it.

The literal version is in `reference`, the reduction to softmax attention in `reduction`, our kernels in
`triton_forward` and `triton_backward`, the choice between them in `backends`.
"""

import torch
from torch import Tensor

from nanogka.attention.backends import BACKENDS, choose, run
from nanogka.attention.masks import effective_window
from nanogka.attention.reduction import softmax_features
from nanogka.attention.softmax import softmax_attention_over


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
        backend: `auto` for the fastest that computes correctly here, else one by name: `reference` (literal,
            materialises T×T), `sdpa` (torch's fused softmax attention), `triton` (our kernels), `flex` or `varlen`
            (torch's). The choice changes the result by rounding only; see `nanogka.attention.backends`.
        equal_key_norms: the caller's word that within a head all k_j have the same norm, which saves the key bias.
            The result is the same; the gradient of k lacks its component along k_j, which a caller that got equal
            norms from an RMS norm does not miss: the norm's backward removes that component.

    Returns:
        (B, T, H, D_v) in the dtype of `v`. Differentiable in q, k, v and bandwidth.

    Raises:
        ValueError: if shapes or dtypes do not fit, the window is negative, the back-end is unknown or, asked for by
            name, cannot run here (the text says why).
    """
    _check(q, k, v, bandwidth, window, backend)
    window = effective_window(window, q.shape[1])
    if backend != "reference":
        backend = choose(backend, *_case(q, k, v, bandwidth), causal, window, equal_key_norms)
    return run(backend, q, k, v, bandwidth, causal=causal, window=window, equal_key_norms=equal_key_norms)


def _case(q: Tensor, k: Tensor, v: Tensor, bandwidth: Tensor) -> tuple[torch.device, torch.dtype, tuple, bool, bool]:
    """What the choice of a back-end depends on, in constants also where `torch.compile` makes the sizes symbols."""
    sizes = (0, 0, 0)
    if q.device.type == "cuda":  # elsewhere there is nothing to measure
        sizes = (_rounded(q.shape[0]), _rounded(q.shape[1]), _rounded(q.shape[2]))
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, bandwidth))
    return q.device, q.dtype, (*sizes, _rounded(q.shape[3], 8), _rounded(v.shape[3], 8)), q is k, learns


def _rounded(size: int, step: int = 0) -> int:
    """The next power of two, or multiple of `step`: found by comparing, which turns a symbol into a number."""
    number = step or 1
    while number < size:
        number += step or number
    return number


def gaussian_attention_over(
    q: Tensor, k: Tensor, v: Tensor, bandwidth: Tensor, mask: Tensor, *, equal_key_norms: bool = False
) -> Tensor:
    """The operator for T queries over S remembered keys with an explicit (B, T, S) mask (decoding with a cache)."""
    q, k = softmax_features(q, k, bandwidth, equal_key_norms)
    return softmax_attention_over(q, k, v, mask, scale=1.0)


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
