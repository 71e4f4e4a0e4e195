"""C++ sources of the project, compiled where they run: for what a CPU does once a token, where torch has no operation
for it.

A source registers its functions as operators of torch. One in Python, fallen out of the caches behind megabytes of
weights, takes as long as attention in a layer with a window (docs/LOG.md).

A library is built once, into `kernels` in the folder of all outputs. Its threads are torch's: it is linked against no
OpenMP, but finds the one that torch has loaded, whose number of threads `torch.set_num_threads` sets; where that is not
found, it has one thread.
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

from nanogka.runtime import base_dir

HEADER = Path(__file__).with_name("native.h")
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
# Tag of the operators: else torch's compiler computes what one takes anew for each call, to be sure of its strides.
ANY_STRIDES = (torch.Tag.flexible_layout,)


@functools.cache
def load(source: Path) -> None:
    """Build the library of that source if need be, and register its operators.

    Raises:
        OSError: if there is no compiler, or it fails, or torch refuses.
    """
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        raise OSError("no C++ compiler (c++, g++ or clang++)")
    errors = []
    for threads in THREADS:
        try:
            library = ctypes.CDLL(str(_build(source, compiler, threads)))
            break
        except OSError as error:
            errors.append(str(error))
    else:
        raise OSError("; ".join(errors))
    if library.register_operators():
        raise OSError(f"torch does not take the operators of {source.name}")


def _build(source: Path, compiler: str, threads: list[str]) -> Path:
    """The compiled library."""
    torch_folder = Path(torch.__file__).parent
    flags = [*FLAGS, *VECTORS.get(torch.backends.cpu.get_cpu_capability(), []), *threads]
    flags += [f"-I{torch_folder}/include", f"-I{HEADER.parent}"]
    texts = [source.read_text(), HEADER.read_text(), compiler, *flags, platform.platform(), torch.__version__]
    key = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    library = base_dir() / "kernels" / f"{source.stem}-{key}.so"
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        torch_library = [f"-L{torch_folder}/lib", f"-Wl,-rpath,{torch_folder}/lib", "-ltorch_cpu"]
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:  # several processes may build at a time
            made = Path(folder) / library.name
            _call([compiler, *flags, "-c", str(source), "-o", f"{made}.o"])
            # Without -fopenmp, which would load another one.
            _call([compiler, "-shared", f"{made}.o", *torch_library, "-o", str(made)])
            made.replace(library)
    return library


def _call(command: list[str]) -> None:
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode:
        raise OSError(f"{command[0]} failed ({outcome.returncode}): {outcome.stderr.strip()[:200]}")
