"""The backward pass of causal Gaussian attention as one Triton kernel, after a small one for δ.

With P = A, dP = dO·Vᵀ, δ_i = Σ_j P_ij dP_ij = dO_i·y_i and dS = P ∘ (dP − δ):

    ∂v_j = Σ_i P_ij dO_i                      ∂q_i = Σ_j dS_ij k_j / σ²
    ∂k_j = Σ_i dS_ij q_i / σ²                 ∂log σ = Σ_ij dS_ij ‖q_i − k_j‖² / σ² = −2 Σ_ij dS_ij log P_ij

Each row of dS sums to zero, up to the rounding of y in δ. So a constant of the row may be added to what dS weights: in
the last step the logarithm of the row's sum. Then no large numbers cancel. The terms −q_i of ∂q_i and −k_j of ∂k_j are
left out, because both lie along the feature whose norm is fixed.

A program works on BLOCK_M positions of one head: first as keys, walking over the queries that see them, then as
queries, walking over the keys that they see. Under a causal mask every program has the same amount of work. Where
queries and keys are one tensor z, its tile is loaded once and both walks add to one sum.

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
    on_device,
    own_tile,
    product,
    ranges,
    store_tile,
    tuned,
    visible_tile,
)


@triton.jit
def _delta_kernel(
    y, dy, delta, length, heads, y_strides, dy_strides, DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK: tl.constexpr
):
    """δ_i = dO_i·y_i, a tile of rows a program."""
    sequence, batch, head, first = own_tile(length, heads, BLOCK, False)
    y += batch * y_strides[0] + head * y_strides[2]
    dy += batch * dy_strides[0] + head * dy_strides[2]
    a = load_tile(y, y_strides, first, length, BLOCK, DV, BLOCK_DV, True).to(tl.float32)
    b = load_tile(dy, dy_strides, first, length, BLOCK, DV, BLOCK_DV, True).to(tl.float32)
    rows = first + tl.arange(0, BLOCK)
    tl.store(delta + sequence * length + rows, tl.sum(a * b, 1), mask=rows < length)


@triton.jit
def _walk_queries(
    keys, values, q, q_strides, dy, dy_strides, lse, delta, first, length, window, scale,
    WINDOWED: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Sums of a tile of keys over the queries that see it: Σ dS q, Σ P dO. Tiles are transposed."""
    dk = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    mine = first + tl.arange(0, BLOCK_M)
    starts, ends = ranges(first, length, 0, window, True, WINDOWED, BLOCK_M, BLOCK_N)
    for part in tl.static_range(0, 3):
        for start in range(starts[part], ends[part], BLOCK_N):
            theirs = start + tl.arange(0, BLOCK_N)
            queries = load_tile(q, q_strides, start, length, BLOCK_N, D, BLOCK_D, part != 1)
            gradients = load_tile(dy, dy_strides, start, length, BLOCK_N, DV, BLOCK_DV, part != 1)
            if part != 1:
                row_lse = tl.load(lse + theirs, mask=theirs < length, other=float("inf"))  # no weight beyond the end
                row_delta = tl.load(delta + theirs, mask=theirs < length, other=0.0)
            else:
                row_lse = tl.load(lse + theirs)
                row_delta = tl.load(delta + theirs)
            # The weights are computed again from q, k and the rows' logarithms: to keep them would take T × T numbers.
            s = product(keys, tl.trans(queries))
            p = tl.exp2(s * scale - row_lse[None, :])
            if part != 1:
                p = tl.where(visible_tile(theirs[None, :], mine[:, None], length, window, WINDOWED), p, 0.0)
            dv = add_product(dv, narrow(p, gradients.dtype), gradients)
            dp = product(values, tl.trans(gradients))
            ds = narrow(p * (dp - row_delta[None, :]), queries.dtype)
            dk = add_product(dk, ds, queries)
    return dk, dv


@triton.jit
def _walk_keys(
    dq, queries, gradients, k, k_strides, v, v_strides, row_lse, row_delta, first, length, window, scale,
    WINDOWED: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Sums of a tile of queries over the keys it sees: into dq Σ dS k, and Σ dS log₂ P."""
    dsigma = tl.zeros([BLOCK_M], tl.float32)
    mine = first + tl.arange(0, BLOCK_M)
    starts, ends = ranges(first, length, window, 0, WINDOWED, True, BLOCK_M, BLOCK_N)
    for part in tl.static_range(0 if WINDOWED else 1, 3):
        for start in range(starts[part], ends[part], BLOCK_N):
            keys = load_tile(k, k_strides, start, length, BLOCK_N, D, BLOCK_D, part != 1)
            values = load_tile(v, v_strides, start, length, BLOCK_N, DV, BLOCK_DV, part != 1)
            s = product(queries, tl.trans(keys))
            log_p = s * scale - row_lse[:, None]
            p = tl.exp2(log_p)
            if part != 1:
                theirs = start + tl.arange(0, BLOCK_N)
                p = tl.where(visible_tile(mine[:, None], theirs[None, :], length, window, WINDOWED), p, 0.0)
            dp = product(gradients, tl.trans(values))
            ds = p * (dp - row_delta[:, None])
            dsigma += tl.sum(ds * log_p, 1)
            ds = narrow(ds, keys.dtype)
            dq = add_product(dq, ds, keys)
    return dq, dsigma


@triton.jit
def _backward_kernel(
    q, k, v, bandwidth, dy, lse, delta, dq, dk, dv, dsigma, length, heads, window, tune_length, tune_window,
    q_strides, k_strides, v_strides, dy_strides,
    SHARED: tl.constexpr, WINDOWED: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    sequence, batch, head, first = own_tile(length, heads, BLOCK_M, False)
    q += batch * q_strides[0] + head * q_strides[2]
    k += batch * k_strides[0] + head * k_strides[2]
    v += batch * v_strides[0] + head * v_strides[2]
    dy += batch * dy_strides[0] + head * dy_strides[2]
    lse += sequence * length
    delta += sequence * length
    to_features = batch * length * heads * D + head * D
    dv += batch * length * heads * DV + head * DV
    sigma = tl.load(bandwidth + head).to(tl.float32)
    inverse = 1 / (sigma * sigma)
    scale = 1.4426950408889634 * inverse

    keys = load_tile(k, k_strides, first, length, BLOCK_M, D, BLOCK_D, True)
    values = load_tile(v, v_strides, first, length, BLOCK_M, DV, BLOCK_DV, True)
    features, to_values = _walk_queries(
        keys, values, q, q_strides, dy, dy_strides, lse, delta, first, length, window, scale,
        WINDOWED, D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    store_tile(dv, to_values, first, length, heads * DV, BLOCK_M, DV, BLOCK_DV)
    if SHARED:
        queries = keys
    else:
        store_tile(dk + to_features, features * inverse, first, length, heads * D, BLOCK_M, D, BLOCK_D)
        features = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        queries = load_tile(q, q_strides, first, length, BLOCK_M, D, BLOCK_D, True)

    rows = first + tl.arange(0, BLOCK_M)
    gradients = load_tile(dy, dy_strides, first, length, BLOCK_M, DV, BLOCK_DV, True)
    # Rows beyond the sequence have no gradient and δ = 0: any finite lse keeps them at dS = 0.
    row_lse = tl.load(lse + rows, mask=rows < length, other=0.0)
    row_delta = tl.load(delta + rows, mask=rows < length, other=0.0)
    features, sums = _walk_keys(
        features, queries, gradients, k, k_strides, v, v_strides, row_lse, row_delta, first, length, window,
        scale, WINDOWED, D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    store_tile(dq + to_features, features * inverse, first, length, heads * D, BLOCK_M, D, BLOCK_D)
    tl.store(dsigma + sequence * length + rows, sums * (-2 * 0.6931471805599453), mask=rows < length)


_tuned_backward = tuned(
    _backward_kernel,
    ((128, 32, 8, 3), (128, 32, 8, 2), (64, 64, 8, 2), (64, 32, 4, 3)),  # larger tiles per warp spill hundreds of bytes
    key=["tune_length", "tune_window", "WINDOWED", "SHARED", "D", "DV"],
)


def attend_backward(
    dy: Tensor, q: Tensor, k: Tensor | None, v: Tensor, bandwidth: Tensor, y: Tensor, lse: Tensor,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and the bandwidth for the gradient dy (B, T, H, D_v) of y; y and lse are `attend`'s.

    No k: the keys are the queries, their one gradient is that of q, and k's is empty.
    """
    B, T, H, D = q.shape
    DV = v.shape[-1]
    shared = k is None
    k = q if shared else k
    delta, dsigma = (torch.empty((B * H, T), dtype=torch.float32, device=q.device) for _ in range(2))
    dq = torch.empty((B, T, H, D), dtype=q.dtype, device=q.device)
    dk = torch.empty((0,) if shared else (B, T, H, D), dtype=q.dtype, device=q.device)
    dv = torch.empty((B, T, H, DV), dtype=v.dtype, device=v.device)
    options = {"DV": DV, "BLOCK_DV": max(16, triton.next_power_of_2(DV)), "BLOCK": 32}
    with on_device(q):
        grid = (triton.cdiv(T, options["BLOCK"]) * B * H,)
        _delta_kernel[grid](y, dy, delta, T, H, y.stride(), dy.stride(), **options)
    tensors = (q, k, v, bandwidth, dy, lse, delta, dq, dq if shared else dk, dv, dsigma)
    options = {"SHARED": shared, "D": D, "DV": DV}
    launch(_backward_kernel, _tuned_backward, window, tensors, (q, k, v, dy), **options)
    by_head = dsigma.view(B, H, T).sum((0, 2))
    return dq, dk, dv, (by_head / bandwidth.float()).to(bandwidth.dtype)
