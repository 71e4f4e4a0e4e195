"""Parts that the Triton kernels of attention share: launching a kernel, which tiles a tile meets, loading and storing
one, and the mask inside one.

A tile of queries loops over three ranges of keys (and a tile of keys over queries): masked ones at the near end,
unmasked ones, masked ones at the far end. Tiles outside the window are in none of them.
Which key a query sees is the rule of `nanogka/attention/softmax.py`, here for tiles.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETER_TILES = {"BLOCK_M": 32, "BLOCK_N": 32}  # the smallest shapes then already span several tiles


def tuned(kernel: object, choices: tuple[tuple[int, int, int, int], ...], key: list[str]) -> object:
    """The kernel behind an autotuner that tries each (BLOCK_M, BLOCK_N, warps, pipeline stages)."""
    configurations = [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
        for m, n, warps, stages in choices
    ]
    return triton.autotune(configurations, key=key)(kernel)


def on_device(tensor: Tensor) -> AbstractContextManager:
    """Make the tensor's device the current one: Triton launches there."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def launch(
    kernel: object, autotuned: object, window: int | None, tensors: tuple[Tensor, ...], strided: tuple[Tensor, ...],
    **constants: int | bool,
) -> None:  # fmt: skip
    """Run one program for each tile of BLOCK_M positions of each of B · H sequences.

    `tensors`, of which the first is q (B, T, H, D), are the kernel's first arguments and the strides of `strided` its
    last ones before the constants. The autotuner measures again when the length or window doubles. Triton's
    interpreter runs the plain kernel with `INTERPRETER_TILES`.
    """
    B, T, H, _ = tensors[0].shape
    # Tiles have sizes of a power of two, and a matrix unit multiplies at least 16 × 16.
    blocks = {f"BLOCK_{name}": max(16, triton.next_power_of_2(constants[name])) for name in ("D", "DV")}
    tune_window = 0 if window is None else triton.next_power_of_2(max(1, window))
    arguments = (*tensors, T, H, window or 0, triton.next_power_of_2(T), tune_window, *(t.stride() for t in strided))
    options = {**constants, **blocks, "WINDOWED": window is not None}
    if not isinstance(kernel, triton.runtime.JITFunction):
        autotuned, options = kernel, options | INTERPRETER_TILES
    with on_device(tensors[0]):
        autotuned[lambda meta: (triton.cdiv(T, meta["BLOCK_M"]) * B * H,)](*arguments, **options)


@triton.jit
def own_tile(length, heads, BLOCK: tl.constexpr, LAST_FIRST: tl.constexpr):
    """Of this program: the sequence b · H + h, b, h, and the first position of its tile."""
    tiles = tl.cdiv(length, BLOCK)
    sequence = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    if LAST_FIRST:
        tile = tiles - 1 - tile
    return sequence, sequence // heads, sequence % heads, tile * BLOCK


@triton.jit
def ranges(
    first, length, before, after, BOUNDED_BEFORE: tl.constexpr, BOUNDED_AFTER: tl.constexpr,
    OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Tile-aligned starts and ends of the three ranges that positions first … first + OWN − 1 meet, each `before` and
    `after` itself: masks are needed in the outer two, which some of the positions meet; all of them meet the middle.

    A side that is not BOUNDED reaches to the end of the sequence.
    """
    low = first * 0
    full_low = low
    high = low + length
    full_high = high
    if BOUNDED_BEFORE:
        low = tl.maximum(first - before, 0)
        full_low = first + OWN - 1 - before
    if BOUNDED_AFTER:
        high = tl.minimum(high, first + OWN + after)
        full_high = tl.minimum(full_high, first + 1 + after)
    low = low // BLOCK * BLOCK
    start = (tl.maximum(full_low, low) + BLOCK - 1) // BLOCK * BLOCK
    stop = tl.maximum(start, full_high // BLOCK * BLOCK)
    return (low, start, stop), (tl.minimum(start, high), stop, high)


@triton.jit
def visible_tile(queries, keys, length, window, WINDOWED: tl.constexpr):
    """The causal mask: which query sees which key; `queries` and `keys` are positions that broadcast to the tile."""
    distance = queries - keys
    seen = (keys < length) & (distance >= 0)
    if WINDOWED:
        seen = seen & (distance <= window)
    return seen


INTERPRETED = tl.constexpr(not isinstance(visible_tile, triton.runtime.JITFunction))


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """x in `dtype`, rounded to nearest, as on a GPU; Triton 3.9's interpreter truncates all the same."""
    if dtype == tl.float32:
        return x
    return x.to(dtype, fp_downcast_rounding="rtne")


@triton.jit
def product(a, b):
    """a b, accumulated in float32."""
    if INTERPRETED:  # the interpreter multiplies the bit patterns of bfloat16; widening changes no value
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    # "ieee": Triton would otherwise round float32 operands to 10 bits (TF32). It changes nothing for 16-bit operands.
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def add_product(total, a, b):
    """total + a b, accumulated in float32."""
    if INTERPRETED:
        return total + product(a, b)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def load_tile(
    base, strides, first, length, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    CHECKED: tl.constexpr,
):  # fmt: skip
    """(ROWS, BLOCK_WIDTH) from position `first` of one sequence of (B, T, H, WIDTH), whose strides are given; zeros
    beyond WIDTH and, if CHECKED, beyond `length`."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_WIDTH)
    # The offset of the tile in 64 bits, those inside it in 32: a sequence may hold more than 2^31 elements.
    base += (tl.full((), 0, tl.int64) + first) * strides[1]
    pointers = base + rows[:, None] * strides[1] + columns[None, :] * strides[3]
    if CHECKED:
        if WIDTH == BLOCK_WIDTH:
            return tl.load(pointers, mask=(first + rows < length)[:, None], other=0.0)
        return tl.load(pointers, mask=(first + rows < length)[:, None] & (columns < WIDTH)[None, :], other=0.0)
    if WIDTH == BLOCK_WIDTH:
        return tl.load(pointers)
    return tl.load(pointers, mask=(columns < WIDTH)[None, :], other=0.0)


@triton.jit
def store_tile(
    base, values, first, length, stride_t, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr
):
    """Store the part of (ROWS, BLOCK_WIDTH) inside `length` and WIDTH. Features are contiguous."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_WIDTH)
    base += (tl.full((), 0, tl.int64) + first) * stride_t
    pointers = base + rows[:, None] * stride_t + columns[None, :]
    inside = (first + rows < length)[:, None] & (columns < WIDTH)[None, :]
    tl.store(pointers, narrow(values, base.dtype.element_ty), mask=inside)
