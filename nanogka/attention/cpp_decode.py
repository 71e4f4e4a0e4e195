"""Decoding attention on a CPU: cpp_decode.cpp, compiled where it runs.

torch has no operation that reads the cache once: its products, norms and weighted sums of a long cache each fetch it
again, and its compiler does not join them (docs/LOG.md). Where there is no C++ compiler, or what it makes does not
agree with the literal version, `nanogka.attention.decode` says why and torch decodes.

Shapes: B streams, S slots, H heads, D features a head.
"""

from pathlib import Path

import torch
from torch import Tensor

from nanogka import native
from nanogka.attention.graphs import constant_in_graphs
from nanogka.attention.phase_tables import PhaseTables

SOURCE = Path(__file__).with_name("cpp_decode.cpp")
LARGEST_BLOCK = 256  # CHUNK there
DTYPES = (torch.float32, torch.bfloat16)

torch.library.define(
    "nanogka::decode_gaussian_cpp",
    "(Tensor x, Tensor u, Tensor bandwidth, Tensor positions, Tensor frequencies, Tensor query_cos, Tensor query_sin, "
    "int block, int ring, float eps) -> Tensor",
    tags=native.ANY_STRIDES,
)
torch.library.define(
    "nanogka::decode_softmax_cpp",
    "(Tensor q, Tensor k, Tensor v, Tensor positions, float scale) -> Tensor",
    tags=native.ANY_STRIDES,
)
gaussian_op, softmax_op = (getattr(torch.ops.nanogka, f"decode_{form}_cpp").default for form in ("gaussian", "softmax"))


@torch.library.register_fake("nanogka::decode_gaussian_cpp")
def _(x, u, bandwidth, positions, frequencies, query_cos, query_sin, block, ring, eps):
    return x.new_empty(x.shape)


@torch.library.register_fake("nanogka::decode_softmax_cpp")
def _(q, k, v, positions, scale):
    return q.new_empty((*q.shape[:2], v.shape[-1]))


@constant_in_graphs
def load() -> None:
    """Have the operators.

    Raises:
        OSError: if the library cannot be built.
    """
    native.load(SOURCE)


def gaussian(
    x: Tensor, u: Tensor, bandwidth: Tensor, positions: Tensor, tables: PhaseTables, ring: int, eps: float
) -> Tensor:
    """The one-tensor form; arguments as `nanogka.attention.decode.decode_gaussian`.

    Raises:
        ValueError: if the dtype is neither bfloat16 nor float32, or a block has more than LARGEST_BLOCK slots.
        OSError: if the library cannot be built.
    """
    load()
    _check(x, u)
    if tables.block > LARGEST_BLOCK:
        raise ValueError(f"block: got {tables.block} slots, takes at most {LARGEST_BLOCK}")
    cos, sin = tables.query
    return gaussian_op(x, u, bandwidth.float(), positions, tables.frequencies, cos, sin, tables.block, ring, eps)


def softmax(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, scale: float) -> Tensor:
    """softmax(scale · q kᵀ) v over the filled slots; arguments as `nanogka.attention.decode.decode_softmax`.

    Raises:
        ValueError: if the dtype is neither bfloat16 nor float32.
        OSError: if the library cannot be built.
    """
    load()
    _check(q, k, v)
    return softmax_op(q, k, v, positions, scale)


def _check(first: Tensor, *others: Tensor) -> None:
    if first.dtype not in DTYPES or any(t.dtype != first.dtype for t in others):
        got = sorted({str(t.dtype) for t in (first, *others)})
        raise ValueError(f"the C++ decode kernels take bfloat16 or float32 alike, got {got}")
