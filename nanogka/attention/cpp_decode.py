"""Decoding attention on a CPU: cpp_decode.cpp, compiled where it runs.

torch has no operation that reads the cache once: its products, norms and weighted sums of a long cache each fetch it
again, and its compiler does not join them (docs/LOG.md). Where there is no C++ compiler, or what it makes does not
agree with the literal version, `nanogka.attention.decode` says why and torch decodes.

The library is built once, into `kernels` in the folder of all outputs, and registers its functions as operators of
torch: one in Python, fallen out of the caches behind megabytes of weights, takes as long as a layer with a window
(docs/LOG.md). Its threads are torch's: it is linked against no OpenMP, but finds the one that torch has loaded, whose
number of threads `torch.set_num_threads` sets; where that is not found, it has one thread.

Shapes: B streams, S slots, H heads, D features a head.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from nanogka.attention.graphs import constant_in_graphs
from nanogka.attention.phase_tables import PhaseTables
from nanogka.runtime import base_dir

SOURCE = Path(__file__).with_name("cpp_decode.cpp")
# Sums in any order, which vectors need. Not -ffast-math: linked with it, a library changes how the process rounds.
FLAGS = [
    *("-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
    *("-fassociative-math", "-freciprocal-math", "-ffp-contract=fast"),
]
VECTORS = {
    "AVX512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"],
    "AVX2": ["-mavx2", "-mfma"],
}
THREADS = (["-fopenmp"], [])  # tried in this order
LARGEST_BLOCK = 256  # CHUNK there
DTYPES = (torch.float32, torch.bfloat16)


@functools.cache
def load() -> None:
    """Build the library if need be, and register its operators.

    Raises:
        OSError: if there is no compiler, or it fails.
    """
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        raise OSError("no C++ compiler (c++, g++ or clang++)")
    errors = []
    for threads in THREADS:
        try:
            if ctypes.CDLL(str(_build(compiler, threads))).register_operators():
                raise OSError("torch refuses to register the decode kernels")
            return
        except OSError as error:
            errors.append(str(error))
    raise OSError("; ".join(errors))


def _build(compiler: str, threads: list[str]) -> Path:
    """The compiled library."""
    torch_folder = Path(torch.__file__).parent
    flags = [*FLAGS, *VECTORS.get(torch.backends.cpu.get_cpu_capability(), []), *threads, f"-I{torch_folder}/include"]
    source = SOURCE.read_text()
    key = "\n".join([source, compiler, *flags, platform.platform(), torch.__version__])
    library = base_dir() / "kernels" / f"decode-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        torch_library = [f"-L{torch_folder}/lib", f"-Wl,-rpath,{torch_folder}/lib", "-ltorch_cpu"]
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:  # several processes may build at a time
            made = Path(folder) / library.name
            _call([compiler, *flags, "-c", str(SOURCE), "-o", f"{made}.o"])
            # Without -fopenmp, which would load another one.
            _call([compiler, "-shared", f"{made}.o", *torch_library, "-o", str(made)])
            made.replace(library)
    return library


def _call(command: list[str]) -> None:
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode:
        raise OSError(f"{command[0]} failed ({outcome.returncode}): {outcome.stderr.strip()[:200]}")


@constant_in_graphs
def _loaded() -> None:
    load()


# Else the compiler computes what an operation takes anew for each call, to be sure of its strides.
ANY_STRIDES = (torch.Tag.flexible_layout,)
torch.library.define(
    "nanogka::decode_gaussian_cpp",
    "(Tensor x, Tensor u, Tensor bandwidth, Tensor positions, Tensor frequencies, Tensor query_cos, Tensor query_sin, "
    "int block, int ring, float eps) -> Tensor",
    tags=ANY_STRIDES,
)
torch.library.define(
    "nanogka::decode_softmax_cpp",
    "(Tensor q, Tensor k, Tensor v, Tensor positions, float scale) -> Tensor",
    tags=ANY_STRIDES,
)
gaussian_op, softmax_op = (getattr(torch.ops.nanogka, f"decode_{form}_cpp").default for form in ("gaussian", "softmax"))


@torch.library.register_fake("nanogka::decode_gaussian_cpp")
def _(x, u, bandwidth, positions, frequencies, query_cos, query_sin, block, ring, eps):
    return x.new_empty(x.shape)


@torch.library.register_fake("nanogka::decode_softmax_cpp")
def _(q, k, v, positions, scale):
    return q.new_empty((*q.shape[:2], v.shape[-1]))


def gaussian(
    x: Tensor, u: Tensor, bandwidth: Tensor, positions: Tensor, tables: PhaseTables, ring: int, eps: float
) -> Tensor:
    """The one-tensor form; arguments as `nanogka.attention.decode.decode_gaussian`.

    Raises:
        ValueError: if the dtype is neither bfloat16 nor float32, or a block has more than LARGEST_BLOCK slots.
        OSError: if the library cannot be built.
    """
    _loaded()
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
    _loaded()
    _check(q, k, v)
    return softmax_op(q, k, v, positions, scale)


def _check(first: Tensor, *others: Tensor) -> None:
    if first.dtype not in DTYPES or any(t.dtype != first.dtype for t in others):
        got = sorted({str(t.dtype) for t in (first, *others)})
        raise ValueError(f"the C++ decode kernels take bfloat16 or float32 alike, got {got}")
