"""The operator's forward pass as one Triton kernel: one pass over tiles with online normalisation.

    s_ij = q_i·k_j − ‖k_j‖² / 2,   A = softmax_j(s_ij / σ²)

which is the Gaussian kernel's exponent −(‖q_i‖² + ‖k_j‖² − 2 q_i·k_j) / 2σ² less a constant of the row. Where the key
norms are equal the second term is one too and is left out. Exponentials are to base 2: `scale` is log2(e) / σ².

A program takes BLOCK_M queries of one head, keeps them, their weighted sum of values, the largest s and the sum of
weights, and walks over the keys it meets BLOCK_N at a time.

Shapes: B batch, T positions, H heads, D features a head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanogka.kernels.triton_tiles import (
    add_product,
    key_ranges,
    launch,
    load_tile,
    narrow,
    product,
    store_tile,
    tuned,
    visible_tile,
)


@triton.jit
def _fwd_inner(
    total, largest, weight, q, k, v, first, low, high, length, window, scale,
    k_stride_t, k_stride_d, v_stride_t, v_stride_d,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, BIASED: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Take the keys low … high into the running sums of one tile of queries."""
    queries = first + tl.arange(0, BLOCK_M)
    for start in range(low, high, BLOCK_N):
        keys = load_tile(k, start, length, k_stride_t, k_stride_d, BLOCK_N, D, BLOCK_D, MASKED)
        s = product(q, tl.trans(keys))
        if BIASED:
            wide = keys.to(tl.float32)
            s -= 0.5 * tl.sum(wide * wide, 1)[None, :]
        if MASKED:
            positions = start + tl.arange(0, BLOCK_N)
            seen = visible_tile(queries[:, None], positions[None, :], length, window, CAUSAL, WINDOWED)
            s = tl.where(seen, s, float("-inf"))
        new = tl.maximum(largest, tl.max(s, 1))
        if MASKED:  # a row that has seen nothing yet: any finite number keeps (-inf) - (-inf) away
            pivot = tl.where(new == float("-inf"), 0.0, new)
        else:
            pivot = new
        p = tl.exp2(s * scale - (pivot * scale)[:, None])
        shrink = tl.exp2((largest - pivot) * scale)
        weight = weight * shrink + tl.sum(p, 1)
        values = load_tile(v, start, length, v_stride_t, v_stride_d, BLOCK_N, DV, BLOCK_DV, MASKED)
        total = add_product(total * shrink[:, None], narrow(p, values.dtype), values)
        largest = new
    return total, largest, weight


@triton.jit
def _forward_kernel(
    q, k, v, bandwidth, y, lse, length, heads, window, tune_length, tune_window,
    q_stride_b, q_stride_t, q_stride_h, q_stride_d, k_stride_b, k_stride_t, k_stride_h, k_stride_d,
    v_stride_b, v_stride_t, v_stride_h, v_stride_d,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, BIASED: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(length, BLOCK_M)
    sequence = (tl.program_id(0) // tiles).to(tl.int64)  # b · H + h
    tile = tl.program_id(0) % tiles
    if CAUSAL:  # the longest walks first, so that none is left over at the end
        tile = tiles - 1 - tile
    first = tile * BLOCK_M
    batch = sequence // heads
    head = sequence % heads
    q += batch * q_stride_b + head * q_stride_h
    k += batch * k_stride_b + head * k_stride_h
    v += batch * v_stride_b + head * v_stride_h
    sigma = tl.load(bandwidth + head).to(tl.float32)
    scale = 1.4426950408889634 / (sigma * sigma)

    queries = load_tile(q, first, length, q_stride_t, q_stride_d, BLOCK_M, D, BLOCK_D, True)
    total = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    low, edge, start, stop, high = key_ranges(first, length, window, CAUSAL, WINDOWED, BLOCK_M, BLOCK_N)
    if WINDOWED:
        total, largest, weight = _fwd_inner(
            total, largest, weight, queries, k, v, first, low, edge, length, window, scale,
            k_stride_t, k_stride_d, v_stride_t, v_stride_d,
            True, CAUSAL, WINDOWED, BIASED, D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    total, largest, weight = _fwd_inner(
        total, largest, weight, queries, k, v, first, start, stop, length, window, scale,
        k_stride_t, k_stride_d, v_stride_t, v_stride_d,
        False, CAUSAL, WINDOWED, BIASED, D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    total, largest, weight = _fwd_inner(
        total, largest, weight, queries, k, v, first, stop, high, length, window, scale,
        k_stride_t, k_stride_d, v_stride_t, v_stride_d,
        True, CAUSAL, WINDOWED, BIASED, D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
    )  # fmt: skip

    rows = first + tl.arange(0, BLOCK_M)
    weight = tl.where(weight > 0, weight, 1.0)  # only rows beyond the sequence have seen nothing
    y += batch * length * heads * DV + head * DV
    store_tile(y, total / weight[:, None], first, length, heads * DV, BLOCK_M, DV, BLOCK_DV)
    tl.store(lse + sequence * length + rows, largest * scale + tl.log2(weight), mask=rows < length)


_tuned_forward = tuned(
    _forward_kernel,
    ((128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 4, 3), (64, 32, 4, 3)),  # 128 × 128 spills registers on sm_90
    key=["tune_length", "tune_window", "CAUSAL", "WINDOWED", "BIASED", "D", "DV"],
)


def attend(
    q: Tensor, k: Tensor, v: Tensor, bandwidth: Tensor, causal: bool, window: int | None, biased: bool
) -> tuple[Tensor, Tensor]:
    """The operator and what its backward needs.

    Args:
        q, k: (B, T, H, D) bfloat16, float16 or float32, any strides.
        v: (B, T, H, D_v) in the same dtype.
        bandwidth: (H,) contiguous.
        causal, window: see `nanogka/attention/softmax.py`.
        biased: whether the key norms may differ.

    Returns:
        y (B, T, H, D_v) in the dtype of v, and (B · H, T) float32, the base-2 logarithm of Σ_j exp(s_ij / σ²).
    """
    B, T, H, D = q.shape
    DV = v.shape[-1]
    y = torch.empty((B, T, H, DV), dtype=v.dtype, device=v.device)
    lse = torch.empty((B * H, T), dtype=torch.float32, device=v.device)
    launch(
        _forward_kernel,
        _tuned_forward,
        B * H,
        T,
        window,
        (q, k, v, bandwidth, y, lse),
        (*q.stride(), *k.stride(), *v.stride()),
        {"CAUSAL": causal, "BIASED": biased, "D": D, "DV": DV},
    )
    return y, lse
