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

SHORT = 128  # up to this length nothing is tuned: compiling every configuration for a probe would take minutes
INTERPRETER_TILES = (32, 32)  # the smallest shapes then already span several tiles
LARGEST_LOAD = 2**23  # BLOCK_M · BLOCK_N · head size · (bytes an element)²: what sm_90 compiles with little spilling


def tuned(kernel: object, choices: tuple[tuple[int, int, int, int], ...], key: list[str]) -> object:
    """The kernel behind an autotuner that tries each (BLOCK_M, BLOCK_N, warps, pipeline stages)."""
    configurations = [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
        for m, n, warps, stages in choices
    ]
    return triton.autotune(configurations, key=key, prune_configs_by={"early_config_prune": _fitting})(kernel)


def _fitting(configurations: list[triton.Config], arguments: dict, **constants: object) -> list[triton.Config]:
    """Those whose tiles leave the compiler registers: float32 without tensor cores unrolls every product."""
    element = arguments["q"].element_size()

    def load(configuration: triton.Config) -> int:
        tile = configuration.kwargs["BLOCK_M"] * configuration.kwargs["BLOCK_N"]
        return tile * max(constants["BLOCK_D"], constants["BLOCK_DV"]) * element**2

    fitting = [c for c in configurations if load(c) <= LARGEST_LOAD] or [min(configurations, key=load)]
    return fitting[:1] if arguments["tune_length"] <= SHORT else fitting


def on_device(tensor: Tensor) -> AbstractContextManager:
    """Make the tensor's device the current one: Triton launches there."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def launch(
    kernel: object,
    autotuned: object,
    sequences: int,
    length: int,
    window: int | None,
    tensors: tuple[Tensor, ...],
    strides: tuple[int, ...],
    constants: dict[str, int | bool],
) -> None:
    """Run one program for each tile of BLOCK_M positions of each of `sequences` = B · H sequences of `length` T.

    Args:
        kernel: the plain kernel, run with `INTERPRETER_TILES` when Triton interprets.
        autotuned: the same behind the autotuner, which measures anew when the length or window doubles.
        window: None for none.
        tensors: the kernel's first arguments; `strides` its last ones before the constants.
        constants: compile-time arguments; the padded head sizes are added.
    """
    heads = tensors[3].shape[0]  # of the bandwidth
    blocks = {f"BLOCK_{name}": max(16, triton.next_power_of_2(constants[name])) for name in ("D", "DV")}
    tune_window = 0 if window is None else triton.next_power_of_2(max(1, window))
    sizes = (length, heads, window or 0, triton.next_power_of_2(length), tune_window)

    def grid(meta: dict) -> tuple[int]:
        return (triton.cdiv(length, meta["BLOCK_M"]) * sequences,)

    options = {**constants, **blocks, "WINDOWED": window is not None}
    if not isinstance(kernel, triton.runtime.JITFunction):
        kernel[grid](*tensors, *sizes, *strides, **options, BLOCK_M=INTERPRETER_TILES[0], BLOCK_N=INTERPRETER_TILES[1])
        return
    with on_device(tensors[0]):
        autotuned[grid](*tensors, *sizes, *strides, **options)


@triton.jit
def ranges(
    first, length, before, after, BOUNDED_BEFORE: tl.constexpr, BOUNDED_AFTER: tl.constexpr,
    OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Tile-aligned bounds of what positions first … first + OWN − 1 meet, each `before` and `after` itself.

    Returns low, edge, start, stop, high: masks are needed in [low, edge) and [stop, high), which some of the positions
    meet; all of them meet [start, stop). A side that is not BOUNDED reaches to the end of the sequence.
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
    return low, tl.minimum(start, high), start, stop, high


@triton.jit
def key_ranges(
    first, length, window, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, OWN: tl.constexpr, BLOCK: tl.constexpr
):
    """The keys that queries first … first + OWN − 1 see, see `ranges`."""
    after = 0 if CAUSAL else window
    return ranges(first, length, window, after, WINDOWED, CAUSAL or WINDOWED, OWN, BLOCK)


@triton.jit
def query_ranges(
    first, length, window, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, OWN: tl.constexpr, BLOCK: tl.constexpr
):
    """The queries that see keys first … first + OWN − 1, see `ranges`."""
    before = 0 if CAUSAL else window
    return ranges(first, length, before, window, CAUSAL or WINDOWED, WINDOWED, OWN, BLOCK)


@triton.jit
def visible_tile(queries, keys, length, window, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):
    """The mask: which query sees which key; `queries` and `keys` are positions that broadcast to the tile."""
    distance = queries - keys
    seen = keys < length
    if CAUSAL:
        seen = seen & (distance >= 0)
        if WINDOWED:
            seen = seen & (distance <= window)
    elif WINDOWED:
        seen = seen & (distance <= window) & (distance >= -window)
    return seen


INTERPRETED = tl.constexpr(not isinstance(visible_tile, triton.runtime.JITFunction))


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """x in `dtype`, rounded to nearest: the default on a GPU, but not in the interpreter, which truncates."""
    if dtype == tl.float32:
        return x
    return x.to(dtype, fp_downcast_rounding="rtne")


@triton.jit
def product(a, b):
    """a b, accumulated in float32."""
    if INTERPRETED:  # the interpreter multiplies the bit patterns of bfloat16; widening changes no value
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def add_product(total, a, b):
    """total + a b, accumulated in float32."""
    if INTERPRETED:
        return total + product(a, b)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def load_tile(
    base,
    first,
    length,
    stride_t,
    stride_d,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    CHECKED: tl.constexpr,
):
    """(ROWS, BLOCK_WIDTH) from position `first`; zeros beyond WIDTH and, if CHECKED, beyond `length`."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_WIDTH)
    # The offset of the tile in 64 bits, those inside it in 32: a sequence may hold more than 2^31 elements.
    base += (tl.full((), 0, tl.int64) + first) * stride_t
    pointers = base + rows[:, None] * stride_t + columns[None, :] * stride_d
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
    """Store what of (ROWS, BLOCK_WIDTH) lies within `length` and WIDTH; features are contiguous."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_WIDTH)
    base += (tl.full((), 0, tl.int64) + first) * stride_t
    pointers = base + rows[:, None] * stride_t + columns[None, :]
    inside = (first + rows < length)[:, None] & (columns < WIDTH)[None, :]
    tl.store(pointers, narrow(values, base.dtype.element_ty), mask=inside)
