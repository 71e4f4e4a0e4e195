"""The forward pass of causal Gaussian attention as one Triton kernel: one pass over tiles with online normalization.

    A = softmax_j(s_ij / σ²),   s_ij = q_i·k_j

which is the Gaussian kernel's exponent −(‖q_i‖² + ‖k_j‖² − 2 q_i·k_j) / 2σ² up to a constant of the row, since all key
norms of a head are equal. Exponentials are to base 2: `scale` is log2(e) / σ².

A program works on BLOCK_M queries of one head. It keeps them, their weighted sum of values, the largest s and the sum
of weights, and walks over the keys that they see, BLOCK_N at a time.

Shapes: B batch, T positions, H heads, D features per head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanogka.kernels.triton_tiles import (
    add_product,
    launch,
    load_tile,
    narrow,
    own_tile,
    product,
    ranges,
    store_tile,
    tuned,
    visible_tile,
)


@triton.jit
def _forward_kernel(
    q, k, v, bandwidth, y, lse, length, heads, window, tune_length, tune_window, q_strides, k_strides, v_strides,
    WINDOWED: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # The longest walks first, so that none is left over at the end.
    sequence, batch, head, first = own_tile(length, heads, BLOCK_M, True)
    q += batch * q_strides[0] + head * q_strides[2]
    k += batch * k_strides[0] + head * k_strides[2]
    v += batch * v_strides[0] + head * v_strides[2]
    sigma = tl.load(bandwidth + head).to(tl.float32)
    scale = 1.4426950408889634 / (sigma * sigma)  # log2(e) / σ²: the hardware has an instruction for 2^x, not for e^x

    queries = load_tile(q, q_strides, first, length, BLOCK_M, D, BLOCK_D, True)
    mine = first + tl.arange(0, BLOCK_M)
    total = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    starts, ends = ranges(first, length, window, 0, WINDOWED, True, BLOCK_M, BLOCK_N)
    for part in tl.static_range(0 if WINDOWED else 1, 3):  # only a window masks keys at the near end
        for start in range(starts[part], ends[part], BLOCK_N):
            keys = load_tile(k, k_strides, start, length, BLOCK_N, D, BLOCK_D, part != 1)
            s = product(queries, tl.trans(keys))
            if part != 1:
                theirs = start + tl.arange(0, BLOCK_N)
                seen = visible_tile(mine[:, None], theirs[None, :], length, window, WINDOWED)
                s = tl.where(seen, s, float("-inf"))
            # Online softmax: when a larger logit appears, what was summed so far is scaled down to the new maximum.
            new = tl.maximum(largest, tl.max(s, 1))
            if part != 1:  # a row that has seen nothing yet: any finite number keeps (-inf) - (-inf) away
                pivot = tl.where(new == float("-inf"), 0.0, new)
            else:
                pivot = new
            p = tl.exp2(s * scale - (pivot * scale)[:, None])
            shrink = tl.exp2((largest - pivot) * scale)
            weight = weight * shrink + tl.sum(p, 1)
            values = load_tile(v, v_strides, start, length, BLOCK_N, DV, BLOCK_DV, part != 1)
            total = add_product(total * shrink[:, None], narrow(p, values.dtype), values)
            largest = new

    weight = tl.where(weight > 0, weight, 1.0)  # only rows beyond the sequence have seen nothing
    y += batch * length * heads * DV + head * DV
    store_tile(y, total / weight[:, None], first, length, heads * DV, BLOCK_M, DV, BLOCK_DV)
    tl.store(lse + sequence * length + mine, largest * scale + tl.log2(weight), mask=mine < length)


_tuned_forward = tuned(
    _forward_kernel,
    ((128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 4, 3), (64, 32, 4, 3)),  # 128 × 128 spills registers on sm_90
    key=["tune_length", "tune_window", "WINDOWED", "D", "DV"],
)


def attend(q: Tensor, k: Tensor, v: Tensor, bandwidth: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
    """y (B, T, H, D_v) in the dtype of v, and (B · H, T) float32, the base-2 logarithm of Σ_j exp(s_ij / σ²).

    q, k (B, T, H, D) and v may have any strides and are bfloat16, float16 or float32.
    """
    B, T, H, D = q.shape
    DV = v.shape[-1]
    y = torch.empty((B, T, H, DV), dtype=v.dtype, device=v.device)
    lse = torch.empty((B * H, T), dtype=torch.float32, device=v.device)
    tensors = (q, k, v, bandwidth, y, lse)
    launch(_forward_kernel, _tuned_forward, window, tensors, (q, k, v), D=D, DV=DV)
    return y, lse
