"""The first stage on a GPU node: what the machine is, and what would make a paid run fail or crawl on it."""

import os
import re
import shutil
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from nanogka.common.files import base_dir, free_bytes
from nanogka.common.gpus import ask_driver
from nanogka.common.processes import visible_gpus
from nanogka.common.runtime import describe_hardware

FREE_DISK = 60e9  # bytes: text 10 GB, four checkpoints of the baseline 37 GB, its chat model and the export
DISK_RATE = 300e6  # bytes/s: a checkpoint of 9 GB then takes half a minute
SHARED_MEMORY = 1e9  # bytes in /dev/shm: NCCL's buffers between processes
USED_MEMORY = 1024  # MiB on a GPU that nobody else uses: the driver's own
PROBE = 2**30  # bytes written to measure the disk


def machine(smoke: bool, device: torch.device, gpus: int) -> Iterator[dict]:
    """Versions, driver, links between GPUs, cores, disk. Raises RuntimeError naming everything that is wrong."""
    import triton

    yield {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
    if listed := ask_driver("--query-gpu=name,driver_version,power.limit,clocks.max.sm", "--format=csv,noheader"):
        topology = ask_driver("topo", "-m")
        print(topology, flush=True)
        yield {"nvidia": listed.splitlines(), "nvlink": bool(re.search(r"\bNV\d", topology))}
    cores = os.cpu_count()
    base_dir().mkdir(parents=True, exist_ok=True)
    free, rate = free_bytes(base_dir()), disk_rate(base_dir(), PROBE // 64 if smoke else PROBE)
    yield {"hardware": describe_hardware(device).name, "gpus": gpus, "cores_per_gpu": cores / gpus}
    yield {"free_disk_bytes": free, "disk_bytes_per_second": rate}
    wrong = []
    if free < (FREE_DISK / 100 if smoke else FREE_DISK):
        wrong.append(f"{base_dir()} has {free / 1e9:.0f} GB free, a run needs {FREE_DISK / 1e9:.0f} GB")
    if cores < gpus:
        wrong.append(f"{cores} CPU cores are too few for {gpus} GPUs: each process needs one")
    if not smoke:
        if rate < DISK_RATE:
            wrong.append(f"{base_dir()} takes {rate / 1e6:.0f} MB/s, checkpoints need {DISK_RATE / 1e6:.0f} MB/s")
        wrong += [*busy_gpus(gpus), *missing_architecture(), *missing_compiler()]
        shared = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").exists() else 0
        if gpus > 1 and shared < SHARED_MEMORY:
            wrong.append(f"/dev/shm has {shared / 1e6:.0f} MB, NCCL needs 1 GB: start Docker with --ipc=host")
    if wrong:
        raise RuntimeError("; ".join(wrong))


def disk_rate(folder: Path, size: int) -> float:
    """Bytes per second of writing a file to the disk itself."""
    path, block = folder / ".gpu_first", os.urandom(2**24)
    try:
        began = time.monotonic()
        with open(path, "wb") as file:
            for _ in range(max(1, size // len(block))):
                file.write(block)
            os.fsync(file.fileno())
        return max(size, len(block)) / (time.monotonic() - began)
    finally:
        path.unlink(missing_ok=True)


def busy_gpus(gpus: int) -> list[str]:
    """A line if other processes use the memory of one of the first GPUs."""
    chosen = ["-i", ",".join(visible_gpus(gpus))]
    used = ask_driver(*chosen, "--query-gpu=memory.used", "--format=csv,noheader,nounits").split()
    busy = [f"GPU {i} {mib} MiB" for i, mib in enumerate(used) if mib.isdigit() and int(mib) > USED_MEMORY]
    return [f"memory is in use ({', '.join(busy)}): end the processes that nvidia-smi lists"] if busy else []


def missing_architecture() -> list[str]:
    """A line if this build of torch has no code for the GPU."""
    built = [re.sub(r"\D", "", name) for name in torch.cuda.get_arch_list() if name.startswith("sm_")]
    major, minor = torch.cuda.get_device_capability()
    if any(int(name[:-1]) == major and int(name[-1]) <= minor for name in built):
        return []  # code for 8.0 also runs on 8.6 and 8.9
    found = ", ".join(torch.cuda.get_arch_list())
    return [f"torch {torch.__version__} has no code for sm_{major}{minor} (it has {found}): set TORCH_BACKEND"]


def missing_compiler() -> list[str]:
    """Lines for what Triton needs to build its launchers: a C compiler and Python's headers."""
    wrong = []
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        wrong.append("there is no C compiler, which Triton needs: install gcc")
    if not (header := Path(sysconfig.get_paths()["include"], "Python.h")).is_file():
        wrong.append(f"{header} is missing, which Triton needs: install the package python3-dev")
    return wrong
