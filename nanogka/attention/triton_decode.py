"""Decoding attention as Triton kernels: one new token a stream over what a cache remembers, split over the slots.

One query against S slots is a stream of bytes with a few operations on each, and one program reads only a fraction of
what memory gives. So the slots of a stream and head are shared out to several programs, each of which leaves its
weighted mean and the logarithm of its sum of weights; a second kernel combines them. How many depends on the shape
alone, never on the positions, which are read on the device: a launch can be recorded in a CUDA graph and replayed.

A program keeps a running maximum, sum of weights and weighted sum for each row of its tile, not one of them all: inside
the loop no row waits for another. See `nanogka.attention.decode` for the two forms.

Shapes: B streams, S slots, H heads, D features a head, N visits (blocks of slots), b = block.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanogka.attention.phase_tables import PhaseTables
from nanogka.attention.triton_launch import on_device
from nanogka.attention.triton_tiles import narrow

TILE = 64  # slots that a program takes at a time, if a row of them has at most ROW bytes
ROW = 256
PROGRAMS = 2  # at least that many for each multiprocessor, if the slots suffice
LEAST_VISITS = 2  # tiles that a program takes at least: the last turn costs about as much as a tile
INTERPRETER_PROCESSORS = 6
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _take(logits, seen, largest, weight):
    """Take a tile's base-2 logits into each row's maximum and sum: both, the weights, the factor of earlier ones."""
    logits = tl.where(seen, logits, float("-inf"))
    new = tl.maximum(largest, logits)
    pivot = tl.where(new == float("-inf"), 0.0, new)  # of a row that has seen nothing yet: keeps (-inf) - (-inf) away
    p = tl.exp2(logits - pivot)
    shrink = tl.exp2(largest - pivot)
    return new, weight * shrink + p, p, shrink


@triton.jit
def _merge(largest, weight):
    """Of all rows together: what each one's sums are multiplied by for their mean, and log2 of the sum of weights."""
    top = tl.max(largest, 0)
    pivot = tl.where(top == float("-inf"), 0.0, top)
    share = tl.exp2(largest - pivot)
    total = tl.sum(weight * share, 0)
    empty = total == 0.0
    safe = tl.where(empty, 1.0, total)
    return share / safe, tl.where(empty, float("-inf"), pivot + tl.log2(safe))


@triton.jit
def _share_out(visits, splits):
    """The visits [low, high) of this program."""
    each = tl.cdiv(visits, splits)
    low = tl.program_id(1) * each
    return low, tl.minimum(low + each, visits)


@triton.jit
def _block_of(visit, newest, filled, rows, RING: tl.constexpr, PHASES: tl.constexpr):
    """What a visit reads: the block's first slot, the slots [begin, end) of it, the row of the query's tables."""
    start = visit * PHASES
    begin = start
    end = tl.minimum(start + PHASES, filled)
    row = visit
    if RING:
        home = newest // PHASES * PHASES  # the block of the newest entry, visited for it and those before it …
        if start == home:
            end = newest + 1
        if start >= filled:  # … and, last of all, for the older ones behind it
            start = home
            begin = newest + 1
            end = tl.minimum(home + PHASES, filled)
            row = rows - 1
    return start, begin, end, row


@triton.jit
def _gaussian_kernel(
    x, u, bandwidth, positions, query_cos, query_sin, back_cos, back_sin, y, lse,
    heads, slots, ring, rows, splits, eps,
    x_stride_b, x_stride_h, u_stride_b, u_stride_t, u_stride_h, positions_stride, table_stride,
    RING: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, PHASES: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(0).to(tl.int64)  # b · H + h
    batch = stream // heads
    head = stream % heads
    x += batch * x_stride_b + head * x_stride_h
    u += batch * u_stride_b + head * u_stride_h
    query_cos += batch * table_stride
    query_sin += batch * table_stride

    position = tl.maximum(tl.load(positions + batch * positions_stride), 0).to(tl.int32)
    filled = tl.minimum(position + 1, slots)
    visits = tl.cdiv(filled, PHASES)
    newest = position
    if RING:
        newest = position % ring
        visits += (position >= ring).to(tl.int32)  # the newest entry's block holds older ones too, at another distance
    low, high = _share_out(visits, splits)

    half: tl.constexpr = D // 2
    columns = tl.arange(0, HALF)
    features = columns < half
    phases = tl.arange(0, BLOCK)
    first = tl.load(x + columns, mask=features, other=0.0).to(tl.float32)
    second = tl.load(x + half + columns, mask=features, other=0.0).to(tl.float32)
    sigma = tl.load(bandwidth + head).to(tl.float32)
    mean = (tl.sum(first * first, 0) + tl.sum(second * second, 0)) / D
    scale = LOG2_E / (tl.sqrt(mean + eps) * sigma * sigma)
    first *= scale
    second *= scale

    sum_1 = tl.zeros([BLOCK, HALF], tl.float32)
    sum_2 = tl.zeros([BLOCK, HALF], tl.float32)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK], tl.float32)
    for visit in tl.range(low, high, num_stages=STAGES):
        start, begin, end, row = _block_of(visit, newest, filled, rows, RING, PHASES)
        seen = (start + phases >= begin) & (start + phases < end)
        cos = tl.load(query_cos + row * half + columns, mask=features, other=0.0)
        sin = tl.load(query_sin + row * half + columns, mask=features, other=0.0)
        turned_1 = first * cos + second * sin
        turned_2 = second * cos - first * sin

        # The offset of the tile in 64 bits, those inside it in 32.
        tile = u + start.to(tl.int64) * u_stride_t + phases[:, None] * u_stride_t + columns[None, :]
        inside = seen[:, None] & features[None, :]
        u_1 = tl.load(tile, mask=inside, other=0.0).to(tl.float32)
        u_2 = tl.load(tile + half, mask=inside, other=0.0).to(tl.float32)
        square = tl.sum(u_1 * u_1 + u_2 * u_2, 1)
        product = tl.sum(u_1 * turned_1[None, :] + u_2 * turned_2[None, :], 1)
        largest, weight, p, shrink = _take(product * tl.rsqrt(square / D + eps), seen, largest, weight)
        sum_1 = sum_1 * shrink[:, None] + p[:, None] * u_1
        sum_2 = sum_2 * shrink[:, None] + p[:, None] * u_2

    share, logarithm = _merge(largest, weight)
    inside = (phases < PHASES)[:, None] & features[None, :]
    cos = tl.load(back_cos + phases[:, None] * half + columns[None, :], mask=inside, other=0.0) * share[:, None]
    sin = tl.load(back_sin + phases[:, None] * half + columns[None, :], mask=inside, other=0.0) * share[:, None]
    y_1 = tl.sum(sum_1 * cos - sum_2 * sin, 0)
    y_2 = tl.sum(sum_2 * cos + sum_1 * sin, 0)
    part = stream * splits + tl.program_id(1)
    tl.store(y + part * D + columns, narrow(y_1, y.dtype.element_ty), mask=features)
    tl.store(y + part * D + half + columns, narrow(y_2, y.dtype.element_ty), mask=features)
    tl.store(lse + part, logarithm)


@triton.jit
def _softmax_kernel(
    q, k, v, positions, y, lse,
    heads, slots, splits, scale,
    q_stride_b, q_stride_h, k_stride_b, k_stride_t, k_stride_h, v_stride_b, v_stride_t, v_stride_h, positions_stride,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(0).to(tl.int64)  # b · H + h
    batch = stream // heads
    head = stream % heads
    q += batch * q_stride_b + head * q_stride_h
    k += batch * k_stride_b + head * k_stride_h
    v += batch * v_stride_b + head * v_stride_h
    position = tl.maximum(tl.load(positions + batch * positions_stride), 0).to(tl.int32)
    filled = tl.minimum(position + 1, slots)
    low, high = _share_out(tl.cdiv(filled, BLOCK), splits)

    columns = tl.arange(0, BLOCK_D)
    value_columns = tl.arange(0, BLOCK_DV)
    rows = tl.arange(0, BLOCK)
    query = tl.load(q + columns, mask=columns < D, other=0.0).to(tl.float32) * (scale * LOG2_E)
    sums = tl.zeros([BLOCK, BLOCK_DV], tl.float32)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK], tl.float32)
    for visit in tl.range(low, high, num_stages=STAGES):
        start = visit * BLOCK
        seen = start + rows < filled
        far = start.to(tl.int64)
        keys = tl.load(
            k + far * k_stride_t + rows[:, None] * k_stride_t + columns[None, :],
            mask=seen[:, None] & (columns < D)[None, :],
            other=0.0,
        )
        values = tl.load(
            v + far * v_stride_t + rows[:, None] * v_stride_t + value_columns[None, :],
            mask=seen[:, None] & (value_columns < DV)[None, :],
            other=0.0,
        )
        logits = tl.sum(keys.to(tl.float32) * query[None, :], 1)
        largest, weight, p, shrink = _take(logits, seen, largest, weight)
        sums = sums * shrink[:, None] + p[:, None] * values.to(tl.float32)

    share, logarithm = _merge(largest, weight)
    part = stream * splits + tl.program_id(1)
    means = tl.sum(sums * share[:, None], 0)
    tl.store(y + part * DV + value_columns, narrow(means, y.dtype.element_ty), mask=value_columns < DV)
    tl.store(lse + part, logarithm)


@triton.jit
def _combine_kernel(
    parts, lse, y, splits, D: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr, CHUNK: tl.constexpr
):
    """The means of `splits` parts, each weighted by its sum of weights, of one stream and head."""
    stream = tl.program_id(0).to(tl.int64)
    parts += stream * splits * D
    lse += stream * splits
    every = tl.arange(0, SPLITS)
    logarithms = tl.load(lse + every, mask=every < splits, other=float("-inf"))
    top = tl.max(logarithms, 0)
    total = tl.sum(tl.exp2(logarithms - top), 0)
    columns = tl.arange(0, BLOCK_D)
    sums = tl.zeros([CHUNK, BLOCK_D], tl.float32)
    for start in range(0, splits, CHUNK):
        some = start + tl.arange(0, CHUNK)
        there = some < splits
        share = tl.exp2(tl.load(lse + some, mask=there, other=float("-inf")) - top) / total
        inside = there[:, None] & (columns < D)[None, :]
        part = tl.load(parts + some[:, None] * D + columns[None, :], mask=inside, other=0.0)
        sums += part * share[:, None]
    tl.store(y + stream * D + columns, narrow(tl.sum(sums, 0), y.dtype.element_ty), mask=columns < D)


@triton.jit
def _rotate_kernel(
    x, cos, sin, y, heads, eps, x_stride_b, x_stride_h, table_stride,
    NORMED: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(0).to(tl.int64)
    batch = stream // heads
    x += batch * x_stride_b + stream % heads * x_stride_h
    half: tl.constexpr = D // 2
    columns = tl.arange(0, HALF)
    features = columns < half
    c = tl.load(cos + batch * table_stride + columns, mask=features, other=0.0)
    s = tl.load(sin + batch * table_stride + columns, mask=features, other=0.0)
    first = tl.load(x + columns, mask=features, other=0.0).to(tl.float32)
    second = tl.load(x + half + columns, mask=features, other=0.0).to(tl.float32)
    y_1 = first * c + second * s
    y_2 = second * c - first * s
    if NORMED:
        scale = tl.rsqrt((tl.sum(y_1 * y_1, 0) + tl.sum(y_2 * y_2, 0)) / D + eps)
        y_1 *= scale
        y_2 *= scale
    tl.store(y + stream * D + columns, narrow(y_1, y.dtype.element_ty), mask=features)
    tl.store(y + stream * D + half + columns, narrow(y_2, y.dtype.element_ty), mask=features)


def split_count(streams: int, tiles: int, processors: int) -> int:
    """Programs that share the `tiles` of each of `streams` = B · H: enough to fill the chip, each with work enough."""
    return max(1, min(triton.cdiv(tiles, LEAST_VISITS), triton.cdiv(PROGRAMS * processors, streams)))


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETER_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def _stages(remembered: Tensor) -> int:
    """Tiles that are under way at a time: as many as leave shared memory for two programs on the smaller chips too."""
    return 3 if remembered.shape[-1] * remembered.element_size() <= ROW else 2


def _check(*tensors: Tensor) -> None:
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) > 1 or not dtypes <= {torch.bfloat16, torch.float16, torch.float32}:
        raise ValueError(f"the decode kernels take bfloat16, float16 or float32 alike, got {sorted(map(str, dtypes))}")


def _in_rows(t: Tensor) -> Tensor:
    """`t` with contiguous features."""
    return t if t.stride(-1) == 1 else t.contiguous()


def _outputs(like: Tensor, width: int, splits: int) -> tuple[Tensor, Tensor, Tensor]:
    """y (B, H, width), what the first kernel writes (y itself if nothing is split), and its logarithms."""
    B, H = like.shape[:2]
    y = torch.empty((B, H, width), dtype=like.dtype, device=like.device)
    lse = torch.empty((B * H, splits), dtype=torch.float32, device=like.device)
    if splits == 1:
        return y, y, lse
    return y, torch.empty((B * H, splits, width), dtype=torch.float32, device=like.device), lse


def _combine(parts: Tensor, lse: Tensor, y: Tensor) -> None:
    splits, width = lse.shape[1], y.shape[-1]
    if splits == 1:
        return
    blocks = {"SPLITS": triton.next_power_of_2(splits), "BLOCK_D": triton.next_power_of_2(width)}
    _combine_kernel[(lse.shape[0],)](parts, lse, y, splits, width, **blocks, CHUNK=16)


@torch.library.custom_op("nanogka::decode_gaussian", mutates_args=())
def gaussian_op(
    x: Tensor,
    u: Tensor,
    bandwidth: Tensor,
    positions: Tensor,
    query_cos: Tensor,
    query_sin: Tensor,
    back_cos: Tensor,
    back_sin: Tensor,
    ring: int,
    eps: float,
) -> Tensor:
    """The one-tensor form; arguments as `nanogka.attention.decode.decode_gaussian`, tables one by one, 0 for no ring.

    Raises:
        ValueError: if the dtype is none of bfloat16, float16 and float32.
    """
    _check(x, u)
    x, u = _in_rows(x), _in_rows(u)
    B, H, D = x.shape
    slots, block = u.shape[1], back_cos.shape[0]
    if slots < ring:
        ring = 0  # it has not gone round, nor can it
    tables = [t.contiguous() for t in (query_cos, query_sin, back_cos, back_sin)]
    rows = query_cos.shape[1]
    splits = split_count(B * H, triton.cdiv(slots, block), _processors(x.device))
    y, parts, lse = _outputs(x, D, splits)
    with on_device(x):
        _gaussian_kernel[(B * H, splits)](
            x, u, bandwidth.contiguous(), positions, *tables, parts, lse,
            H, slots, max(ring, 1), rows, splits, eps,
            *x.stride()[:2], *u.stride()[:3], positions.stride(0), tables[0].stride(0) if len(query_cos) > 1 else 0,
            RING=ring > 0, D=D, HALF=triton.next_power_of_2(D // 2),
            PHASES=block, BLOCK=triton.next_power_of_2(block), STAGES=_stages(u), num_warps=4 if D <= 128 else 8,
        )  # fmt: skip
        _combine(parts, lse, y)
    return y


@torch.library.custom_op("nanogka::decode_softmax", mutates_args=())
def softmax_op(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, scale: float) -> Tensor:
    """softmax(scale · q kᵀ) v over the filled slots; arguments as `nanogka.attention.decode.decode_softmax`.

    Raises:
        ValueError: if the dtype is none of bfloat16, float16 and float32.
    """
    _check(q, k, v)
    q, k, v = _in_rows(q), _in_rows(k), _in_rows(v)
    B, H, D = q.shape
    slots, DV = k.shape[1], v.shape[-1]
    block = max(16, min(TILE, TILE * ROW // (triton.next_power_of_2(max(D, DV)) * q.element_size())))
    splits = split_count(B * H, triton.cdiv(slots, block), _processors(q.device))
    y, parts, lse = _outputs(q, DV, splits)
    with on_device(q):
        _softmax_kernel[(B * H, splits)](
            q, k, v, positions, parts, lse,
            H, slots, splits, scale,
            *q.stride()[:2], *k.stride()[:3], *v.stride()[:3], positions.stride(0),
            D=D, DV=DV, BLOCK_D=triton.next_power_of_2(D), BLOCK_DV=triton.next_power_of_2(DV), BLOCK=block,
            STAGES=_stages(k),
        )  # fmt: skip
        _combine(parts, lse, y)
    return y


def gaussian(
    x: Tensor, u: Tensor, bandwidth: Tensor, positions: Tensor, tables: PhaseTables, ring: int, eps: float
) -> Tensor:
    """`gaussian_op` with its tables together."""
    return gaussian_op(x, u, bandwidth, positions, *tables.query, *tables.back, ring, eps)


softmax = softmax_op


@torch.library.custom_op("nanogka::rotate_heads", mutates_args=())
def rotate_op(x: Tensor, cos: Tensor, sin: Tensor, normed: bool, eps: float) -> Tensor:
    """Rotary map of one position a stream; arguments as `nanogka.attention.decode.rotate_heads`.

    Raises:
        ValueError: if the dtype is none of bfloat16, float16 and float32.
    """
    _check(x)
    x, cos, sin = _in_rows(x), cos.contiguous(), sin.contiguous()
    B, H, D = x.shape
    y = torch.empty((B, H, D), dtype=x.dtype, device=x.device)
    with on_device(x):
        _rotate_kernel[(B * H,)](
            x, cos, sin, y, H, eps, *x.stride()[:2], cos.stride(0) if len(cos) > 1 else 0,
            NORMED=normed, D=D, HALF=triton.next_power_of_2(D // 2), num_warps=1,
        )  # fmt: skip
    return y


@gaussian_op.register_fake
def _(x, u, bandwidth, positions, query_cos, query_sin, back_cos, back_sin, ring, eps):
    return x.new_empty(x.shape)


@rotate_op.register_fake
def _(x, cos, sin, normed, eps):
    return x.new_empty(x.shape)


@softmax_op.register_fake
def _(q, k, v, positions, scale):
    return q.new_empty((*q.shape[:2], v.shape[-1]))
