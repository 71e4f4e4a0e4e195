"""Decoding attention on a CPU: cpp_decode.cpp, compiled where it runs and called through ctypes.

torch has no operation that reads the cache once: its products, norms and weighted sums of a long cache each fetch it
again, and its compiler does not join them (docs/LOG.md). Where there is no C++ compiler, or what it makes does not
agree with the literal version, `nanogka.attention.decode` says why and torch decodes.

The library is built once, into `kernels` in the folder of all outputs. Its threads are torch's: it is linked against no
OpenMP, but finds the one that torch has loaded, whose number of threads `torch.set_num_threads` sets; where that is not
found, it has one thread.

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
SUFFIXES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

POINTER, INTEGER, REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
SIGNATURES = {
    "gaussian": [POINTER] * 9 + [INTEGER] * 7 + [REAL] + [INTEGER] * 7,
    "softmax": [POINTER] * 5 + [INTEGER] * 5 + [REAL] + [INTEGER] * 9,
}


@functools.cache
def _functions() -> dict[tuple[str, torch.dtype], ctypes._CFuncPtr]:
    """The library's functions by name and dtype, built if need be.

    Raises:
        OSError: if there is no compiler, or it fails.
    """
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        raise OSError("no C++ compiler (c++, g++ or clang++)")
    errors = []
    for threads in THREADS:
        try:
            library = ctypes.CDLL(str(_build(compiler, threads)))
        except OSError as error:
            errors.append(str(error))
            continue
        functions = {}
        for name, signature in SIGNATURES.items():
            for dtype, suffix in SUFFIXES.items():
                function = functions[name, dtype] = library[f"{name}_{suffix}"]
                function.argtypes, function.restype = signature, None
        return functions
    raise OSError("; ".join(errors))


def _build(compiler: str, threads: list[str]) -> Path:
    """The compiled library."""
    flags = [*FLAGS, *VECTORS.get(torch.backends.cpu.get_cpu_capability(), []), *threads]
    source = SOURCE.read_text()
    key = hashlib.sha256("\n".join([source, compiler, *flags, platform.platform()]).encode()).hexdigest()[:16]
    library = base_dir() / "kernels" / f"decode-{key}.so"
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:  # several processes may build at a time
            made = Path(folder) / library.name
            _call([compiler, *flags, "-c", str(SOURCE), "-o", f"{made}.o"])
            _call([compiler, "-shared", f"{made}.o", "-o", str(made)])  # without -fopenmp, which would load another one
            made.replace(library)
    return library


def _call(command: list[str]) -> None:
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode:
        raise OSError(f"{command[0]} failed ({outcome.returncode}): {outcome.stderr.strip()[:200]}")


def _function(name: str, first: Tensor, *others: Tensor) -> ctypes._CFuncPtr:
    dtype = first.dtype
    if dtype not in SUFFIXES or any(t.dtype != dtype for t in others):
        got = sorted({str(t.dtype) for t in (first, *others)})
        raise ValueError(f"the C++ decode kernels take bfloat16 or float32 alike, got {got}")
    return _functions()[name, dtype]


def _in_rows(t: Tensor) -> Tensor:
    """`t` with contiguous features."""
    return t if t.stride(-1) == 1 else t.contiguous()


# Not `torch.library.custom_op`: its layers of Python, fallen out of the caches behind megabytes of weights, take longer
# than a layer with a window.
torch.library.define(
    "nanogka::decode_gaussian_cpp",
    "(Tensor x, Tensor u, Tensor bandwidth, Tensor positions, Tensor query_cos, Tensor query_sin, Tensor back_cos, "
    "Tensor back_sin, int ring, float eps) -> Tensor",
)
torch.library.define(
    "nanogka::decode_softmax_cpp", "(Tensor q, Tensor k, Tensor v, Tensor positions, float scale) -> Tensor"
)
gaussian_op, softmax_op = (getattr(torch.ops.nanogka, f"decode_{form}_cpp").default for form in ("gaussian", "softmax"))


def _gaussian(x, u, bandwidth, positions, query_cos, query_sin, back_cos, back_sin, ring, eps):
    """The one-tensor form; arguments as `nanogka.attention.decode.decode_gaussian`, tables one by one, 0 for no ring.

    Raises:
        ValueError: if the dtype is neither bfloat16 nor float32, or a block has more than LARGEST_BLOCK slots.
    """
    function = _function("gaussian", x, u)
    if len(back_cos) > LARGEST_BLOCK:
        raise ValueError(f"block: got {len(back_cos)} slots, takes at most {LARGEST_BLOCK}")
    x, u, bandwidth = _in_rows(x), _in_rows(u), bandwidth.float().contiguous()
    tables = [t.contiguous() for t in (query_cos, query_sin, back_cos, back_sin)]
    B, H, D = x.shape
    slots, rows = u.shape[1], query_cos.shape[1]
    y = torch.empty((B, H, D), dtype=x.dtype)
    function(
        *[t.data_ptr() for t in (x, u, bandwidth, positions, *tables, y)],
        B, H, D, slots, ring if slots >= ring else 0,  # one that has not gone round, nor can
        len(back_cos), rows, eps,
        *x.stride()[:2], *u.stride()[:3], positions.stride(0), rows * D // 2 if len(query_cos) > 1 else 0,
    )  # fmt: skip
    return y


def _softmax(q, k, v, positions, scale):
    """softmax(scale · q kᵀ) v over the filled slots; arguments as `nanogka.attention.decode.decode_softmax`.

    Raises:
        ValueError: if the dtype is neither bfloat16 nor float32.
    """
    function = _function("softmax", q, k, v)
    q, k, v = _in_rows(q), _in_rows(k), _in_rows(v)
    B, H, D = q.shape
    y = torch.empty((B, H, v.shape[-1]), dtype=q.dtype)
    function(
        *[t.data_ptr() for t in (q, k, v, positions, y)],
        B, H, D, v.shape[-1], k.shape[1], scale,
        *q.stride()[:2], *k.stride()[:3], *v.stride()[:3], positions.stride(0),
    )  # fmt: skip
    return y


torch.library.impl("nanogka::decode_gaussian_cpp", "cpu", _gaussian)
torch.library.impl("nanogka::decode_softmax_cpp", "cpu", _softmax)


@torch.library.register_fake("nanogka::decode_gaussian_cpp")
def _(x, u, bandwidth, positions, query_cos, query_sin, back_cos, back_sin, ring, eps):
    return x.new_empty(x.shape)


@torch.library.register_fake("nanogka::decode_softmax_cpp")
def _(q, k, v, positions, scale):
    return q.new_empty((*q.shape[:2], v.shape[-1]))
