"""The operator's backward pass as one Triton kernel, after a small one for δ.

With P = A, dP = dO·Vᵀ, δ_i = Σ_j P_ij dP_ij = dO_i·y_i and dS = P ∘ (dP − δ):

    ∂v_j = Σ_i P_ij dO_i                      ∂q_i = Σ_j dS_ij (k_j − q_i) / σ²
    ∂k_j = Σ_i dS_ij (q_i − k_j) / σ²         ∂log σ = Σ_ij dS_ij ‖q_i − k_j‖² / σ² = −2 Σ_ij dS_ij log P_ij

Each row of dS sums to zero, up to the rounding of y in δ. So a constant of the row may be added at will to what dS
weights: the logarithm of the row's sum in the last step, −q_i in ∂q_i. Then no large numbers cancel, nor does that
rounding count where a position sees hardly anything but itself. Where the key norms are equal, the q_i term of ∂q_i and
the k_j term of ∂k_j are left out: both lie along the feature whose norm is fixed.

A program takes BLOCK_M positions of one head, first as keys, walking over the queries that see them, then as queries,
walking over the keys they see: under a causal mask every program has the same amount of work. Where queries and keys
are one tensor z, its tile is loaded once and both walks add to one sum.

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
    on_device,
    product,
    query_ranges,
    store_tile,
    tuned,
    visible_tile,
)


@triton.jit
def _delta_kernel(
    y, dy, delta, length, heads, dy_stride_b, dy_stride_t, dy_stride_h, dy_stride_d,
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """δ_i = dO_i·y_i, a tile of rows a program."""
    tiles = tl.cdiv(length, BLOCK)
    sequence = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * BLOCK
    batch = sequence // heads
    head = sequence % heads
    y += batch * length * heads * DV + head * DV
    dy += batch * dy_stride_b + head * dy_stride_h
    a = load_tile(y, first, length, heads * DV, 1, BLOCK, DV, BLOCK_DV, True).to(tl.float32)
    b = load_tile(dy, first, length, dy_stride_t, dy_stride_d, BLOCK, DV, BLOCK_DV, True).to(tl.float32)
    rows = first + tl.arange(0, BLOCK)
    tl.store(delta + sequence * length + rows, tl.sum(a * b, 1), mask=rows < length)


@triton.jit
def _bwd_dkdv_inner(
    dk, dv, row_sum, keys, values, q, dy, lse, delta, first, low, high, length, window, scale,
    q_stride_t, q_stride_d, dy_stride_t, dy_stride_d,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, BIASED: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add the queries low … high to the sums of a tile of keys: Σ dS q, Σ P dO; if BIASED, Σ dS; transposed tiles."""
    mine = first + tl.arange(0, BLOCK_M)
    if BIASED:
        wide = keys.to(tl.float32)
        half_norms = 0.5 * tl.sum(wide * wide, 1)
    for start in range(low, high, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        queries = load_tile(q, start, length, q_stride_t, q_stride_d, BLOCK_N, D, BLOCK_D, MASKED)
        gradients = load_tile(dy, start, length, dy_stride_t, dy_stride_d, BLOCK_N, DV, BLOCK_DV, MASKED)
        if MASKED:
            inside = positions < length
            row_lse = tl.load(lse + positions, mask=inside, other=float("inf"))  # no weight beyond the sequence
            row_delta = tl.load(delta + positions, mask=inside, other=0.0)
        else:
            row_lse = tl.load(lse + positions)
            row_delta = tl.load(delta + positions)
        s = product(keys, tl.trans(queries))
        if BIASED:
            s -= half_norms[:, None]
        # Keys beyond the sequence are zeros. Where no mask is computed (not causal), their weight 2^−lse may overflow
        # and make their sums inf or NaN (the interpreter warns). Harmless: rows never mix, these are never stored.
        p = tl.exp2(s * scale - row_lse[None, :])
        if MASKED:
            p = tl.where(visible_tile(positions[None, :], mine[:, None], length, window, CAUSAL, WINDOWED), p, 0.0)
        dv = add_product(dv, narrow(p, gradients.dtype), gradients)
        dp = product(values, tl.trans(gradients))
        ds = narrow(p * (dp - row_delta[None, :]), queries.dtype)
        if BIASED:  # of the rounded dS, so that Σ dS (q − k) vanishes where q = k
            row_sum += tl.sum(ds.to(tl.float32), 1)
        dk = add_product(dk, ds, queries)
    return dk, dv, row_sum


@triton.jit
def _bwd_dq_inner(
    dq, dsigma, row_sum, queries, gradients, k, v, row_lse, row_delta, first, low, high, length, window, scale,
    k_stride_t, k_stride_d, v_stride_t, v_stride_d,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, BIASED: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add the keys low … high to the sums of a tile of queries: Σ dS k, Σ dS log₂ P and, if BIASED, Σ dS."""
    mine = first + tl.arange(0, BLOCK_M)
    for start in range(low, high, BLOCK_N):
        keys = load_tile(k, start, length, k_stride_t, k_stride_d, BLOCK_N, D, BLOCK_D, MASKED)
        values = load_tile(v, start, length, v_stride_t, v_stride_d, BLOCK_N, DV, BLOCK_DV, MASKED)
        s = product(queries, tl.trans(keys))
        if BIASED:
            wide = keys.to(tl.float32)
            s -= 0.5 * tl.sum(wide * wide, 1)[None, :]
        log_p = s * scale - row_lse[:, None]
        p = tl.exp2(log_p)
        if MASKED:
            positions = start + tl.arange(0, BLOCK_N)
            seen = visible_tile(mine[:, None], positions[None, :], length, window, CAUSAL, WINDOWED)
            p = tl.where(seen, p, 0.0)
        dp = product(gradients, tl.trans(values))
        ds = p * (dp - row_delta[:, None])
        dsigma += tl.sum(ds * log_p, 1)
        ds = narrow(ds, keys.dtype)
        if BIASED:
            row_sum += tl.sum(ds.to(tl.float32), 1)
        dq = add_product(dq, ds, keys)
    return dq, dsigma, row_sum


@triton.jit
def _bwd_dkdv(
    keys, values, q, dy, lse, delta, first, length, window, scale,
    q_stride_t, q_stride_d, dy_stride_t, dy_stride_d,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, BIASED: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Sums of a tile of keys over all queries that see it: Σ dS q, Σ P dO and, if BIASED, Σ dS."""
    dk = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    low, edge, start, stop, high = query_ranges(first, length, window, CAUSAL, WINDOWED, BLOCK_M, BLOCK_N)
    if CAUSAL or WINDOWED:
        dk, dv, row_sum = _bwd_dkdv_inner(
            dk, dv, row_sum, keys, values, q, dy, lse, delta, first, low, edge, length, window, scale,
            q_stride_t, q_stride_d, dy_stride_t, dy_stride_d,
            True, CAUSAL, WINDOWED, BIASED, D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    dk, dv, row_sum = _bwd_dkdv_inner(
        dk, dv, row_sum, keys, values, q, dy, lse, delta, first, start, stop, length, window, scale,
        q_stride_t, q_stride_d, dy_stride_t, dy_stride_d,
        False, CAUSAL, WINDOWED, BIASED, D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    return _bwd_dkdv_inner(
        dk, dv, row_sum, keys, values, q, dy, lse, delta, first, stop, high, length, window, scale,
        q_stride_t, q_stride_d, dy_stride_t, dy_stride_d,
        True, CAUSAL, WINDOWED, BIASED, D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
    )  # fmt: skip


@triton.jit
def _bwd_dq(
    dq, row_sum, queries, gradients, k, v, row_lse, row_delta, first, length, window, scale,
    k_stride_t, k_stride_d, v_stride_t, v_stride_d,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, BIASED: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Sums of a tile of queries over all keys it sees: into dq Σ dS k, Σ dS log₂ P; if BIASED, into row_sum Σ dS."""
    dsigma = tl.zeros([BLOCK_M], tl.float32)
    low, edge, start, stop, high = key_ranges(first, length, window, CAUSAL, WINDOWED, BLOCK_M, BLOCK_N)
    if WINDOWED:
        dq, dsigma, row_sum = _bwd_dq_inner(
            dq, dsigma, row_sum, queries, gradients, k, v, row_lse, row_delta,
            first, low, edge, length, window, scale, k_stride_t, k_stride_d, v_stride_t, v_stride_d,
            True, CAUSAL, WINDOWED, BIASED, D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    dq, dsigma, row_sum = _bwd_dq_inner(
        dq, dsigma, row_sum, queries, gradients, k, v, row_lse, row_delta,
        first, start, stop, length, window, scale, k_stride_t, k_stride_d, v_stride_t, v_stride_d,
        False, CAUSAL, WINDOWED, BIASED, D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    return _bwd_dq_inner(
        dq, dsigma, row_sum, queries, gradients, k, v, row_lse, row_delta,
        first, stop, high, length, window, scale, k_stride_t, k_stride_d, v_stride_t, v_stride_d,
        True, CAUSAL, WINDOWED, BIASED, D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
    )  # fmt: skip


@triton.jit
def _backward_kernel(
    q, k, v, bandwidth, dy, lse, delta, dq, dk, dv, dsigma, length, heads, window, tune_length, tune_window,
    q_stride_b, q_stride_t, q_stride_h, q_stride_d, k_stride_b, k_stride_t, k_stride_h, k_stride_d,
    v_stride_b, v_stride_t, v_stride_h, v_stride_d, dy_stride_b, dy_stride_t, dy_stride_h, dy_stride_d,
    SHARED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, BIASED: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(length, BLOCK_M)
    sequence = (tl.program_id(0) // tiles).to(tl.int64)  # b · H + h
    first = tl.program_id(0) % tiles * BLOCK_M
    batch = sequence // heads
    head = sequence % heads
    q += batch * q_stride_b + head * q_stride_h
    k += batch * k_stride_b + head * k_stride_h
    v += batch * v_stride_b + head * v_stride_h
    dy += batch * dy_stride_b + head * dy_stride_h
    lse += sequence * length
    delta += sequence * length
    to_features = batch * length * heads * D + head * D
    dv += batch * length * heads * DV + head * DV
    sigma = tl.load(bandwidth + head).to(tl.float32)
    inverse = 1 / (sigma * sigma)
    scale = 1.4426950408889634 * inverse

    keys = load_tile(k, first, length, k_stride_t, k_stride_d, BLOCK_M, D, BLOCK_D, True)
    values = load_tile(v, first, length, v_stride_t, v_stride_d, BLOCK_M, DV, BLOCK_DV, True)
    features, to_values, row_sum = _bwd_dkdv(
        keys, values, q, dy, lse, delta, first, length, window, scale,
        q_stride_t, q_stride_d, dy_stride_t, dy_stride_d,
        CAUSAL, WINDOWED, BIASED, D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    store_tile(dv, to_values, first, length, heads * DV, BLOCK_M, DV, BLOCK_DV)
    if SHARED:
        queries = keys
    else:
        if BIASED:
            features -= row_sum[:, None] * keys.to(tl.float32)
            row_sum = tl.zeros([BLOCK_M], tl.float32)
        store_tile(dk + to_features, features * inverse, first, length, heads * D, BLOCK_M, D, BLOCK_D)
        features = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        queries = load_tile(q, first, length, q_stride_t, q_stride_d, BLOCK_M, D, BLOCK_D, True)

    rows = first + tl.arange(0, BLOCK_M)
    gradients = load_tile(dy, first, length, dy_stride_t, dy_stride_d, BLOCK_M, DV, BLOCK_DV, True)
    # Rows beyond the sequence have no gradient and δ = 0: any finite lse keeps them at dS = 0.
    row_lse = tl.load(lse + rows, mask=rows < length, other=0.0)
    row_delta = tl.load(delta + rows, mask=rows < length, other=0.0)
    features, sums, row_sum = _bwd_dq(
        features, row_sum, queries, gradients, k, v, row_lse, row_delta, first, length, window, scale,
        k_stride_t, k_stride_d, v_stride_t, v_stride_d,
        CAUSAL, WINDOWED, BIASED, D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    if BIASED:
        features -= row_sum[:, None] * queries.to(tl.float32)
    store_tile(dq + to_features, features * inverse, first, length, heads * D, BLOCK_M, D, BLOCK_D)
    tl.store(dsigma + sequence * length + rows, sums * (-2 * 0.6931471805599453), mask=rows < length)


_tuned_backward = tuned(
    _backward_kernel,
    ((128, 32, 8, 3), (128, 32, 8, 2), (64, 64, 8, 2), (64, 32, 4, 3)),  # larger tiles per warp spill hundreds of bytes
    key=["tune_length", "tune_window", "CAUSAL", "WINDOWED", "BIASED", "SHARED", "D", "DV"],
)


def attend_backward(
    dy: Tensor, q: Tensor, k: Tensor | None, v: Tensor, bandwidth: Tensor, y: Tensor, lse: Tensor,
    causal: bool, window: int | None, biased: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and the bandwidth.

    Args:
        dy: (B, T, H, D_v) gradient of the result, any strides.
        k: None where the keys are the queries; their one gradient is then that of q, and k's is empty.
        y, lse: the results of `triton_forward.attend`; the rest as given to it.

    Returns:
        (B, T, H, D), the same or (0,), (B, T, H, D_v), (H,), each in the dtype of its tensor.
    """
    B, T, H, D = q.shape
    DV = v.shape[-1]
    shared = k is None
    k = q if shared else k
    delta, dsigma = (torch.empty((B * H, T), dtype=torch.float32, device=q.device) for _ in range(2))
    dq = torch.empty((B, T, H, D), dtype=q.dtype, device=q.device)
    dk = torch.empty((0,) if shared else (B, T, H, D), dtype=q.dtype, device=q.device)
    dv = torch.empty((B, T, H, DV), dtype=v.dtype, device=v.device)
    rows = 32
    options = {"DV": DV, "BLOCK_DV": max(16, triton.next_power_of_2(DV)), "BLOCK": rows}
    with on_device(q):
        _delta_kernel[(triton.cdiv(T, rows) * B * H,)](y, dy, delta, T, H, *dy.stride(), **options)
    launch(
        _backward_kernel,
        _tuned_backward,
        B * H,
        T,
        window,
        (q, k, v, bandwidth, dy, lse, delta, dq, dq if shared else dk, dv, dsigma),
        (*q.stride(), *k.stride(), *v.stride(), *dy.stride()),
        {"CAUSAL": causal, "BIASED": biased, "SHARED": shared, "D": D, "DV": DV},
    )
    by_head = dsigma.view(B, H, T).sum((0, 2))
    return dq, dk, dv, (by_head / bandwidth.float()).to(bandwidth.dtype)
