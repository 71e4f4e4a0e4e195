"""Compile the C++ source of `nanogka.kernels` where it runs, and load it.

A library is built once, into `kernels` in the folder of all outputs. What is loaded runs with the user's rights, so it
is loaded only from a folder, and a file, that nobody but this user and root can change.

The library's threads are torch's: it is linked against no OpenMP, but finds the one that torch has loaded, whose number
of threads `torch.set_num_threads` sets; where that is not found, it has one thread.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import torch

from nanogka.common.files import base_dir, fsync

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


def load(source: Path) -> ctypes.CDLL:
    """The library of that source, built if need be. Raises OSError, also if others could have written it."""
    if os.name != "posix":
        raise OSError(f"C++ kernels are not built on {platform.system()}")
    compiler = shlex.split(os.environ.get("CXX", "")) or list(filter(shutil.which, ("c++", "g++", "clang++")))[:1]
    if not compiler:
        raise OSError("no C++ compiler (c++, g++ or clang++)")
    errors = []
    for threads in THREADS:
        try:
            return ctypes.CDLL(str(_find_or_build(source, compiler, threads)))
        except PermissionError:  # of no use to go on without threads
            raise
        except OSError as error:
            errors.append(str(error))
    raise OSError("; ".join(dict.fromkeys(errors)))


def _find_or_build(source: Path, compiler: list[str], threads: list[str]) -> Path:
    flags = [*FLAGS, *VECTORS.get(torch.backends.cpu.get_cpu_capability(), []), *threads]
    recipe = [source.read_text(), *compiler, *flags, platform.platform(), torch.__version__, torch.__file__]
    folder = base_dir() / "kernels"
    library = folder / f"{source.stem}-{hashlib.sha256(chr(10).join(recipe).encode()).hexdigest()[:16]}.so"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    _refuse_if_others_can_write(folder, stat.S_ISDIR)
    if library.exists():
        _refuse_if_others_can_write(library, stat.S_ISREG)
        return library
    with tempfile.TemporaryDirectory(dir=folder) as scratch:  # several processes may build at a time
        made = Path(scratch) / "made.so"
        _compile(source, compiler, flags, made)
        made.chmod(0o700)
        fsync(made)
        made.replace(library)
    return library


def _refuse_if_others_can_write(path: Path, is_kind: object) -> None:
    status = path.lstat()  # a link could lead anywhere
    if not is_kind(status.st_mode) or status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
        raise PermissionError(f"{path} is not loaded: a link, another user's or writable by others")


def _compile(source: Path, compiler: list[str], flags: list[str], library: Path) -> None:
    torch_libraries = Path(torch.__file__).parent / "lib"
    for command in (
        [*compiler, *flags, "-c", str(source), "-o", f"{library}.o"],
        # Without -fopenmp, which would load another one.
        [*compiler, "-shared", f"{library}.o", f"-L{torch_libraries}", f"-Wl,-rpath,{torch_libraries}", "-ltorch_cpu"]
        + ["-o", str(library)],
    ):
        outcome = subprocess.run(command, capture_output=True, text=True)
        if outcome.returncode:
            raise OSError(f"{command[0]} failed ({outcome.returncode}): {outcome.stderr.strip()[:200]}")
