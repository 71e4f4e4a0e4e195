"""The machine: choose device and dtype, and describe the hardware."""

import os
import platform
import re
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nanogka.common.errors import Errors
from nanogka.common.files import first_line


@dataclass(frozen=True)
class Hardware:
    """A device. An unknown peak is None."""

    name: str  # for people
    peak_flops: float | None = None  # FLOP/s in 16 bits, dense
    peak_bandwidth: float | None = None  # bytes/s
    family: str = ""  # GPUs that reach the same shares of their peaks (nanogka/train/estimate.py)
    link: float = 0.0  # bytes/s of messages between GPUs of one node
    fp8: bool = True  # multiplies in 8-bit floating point
    measured: bool = False  # the peak is that of a matrix product on this machine, and not from a data sheet

    @property
    def usual_mfu(self) -> float:
        """Share of the peak that training is expected to reach, where nothing better is known."""
        return MEASURED_MFU if self.measured else DATA_SHEET_MFU


NVSWITCH, PCIE = 330e9, 20e9  # bytes/s that messages reach: published for H100 SXM, typical for PCIe 4 and 5
HOPPER, A100, GEFORCE, TURING = "Hopper and Blackwell", "A100", "GeForce and Ada", "Turing"

# GPUs by a part of their names, first match wins. Peaks are from the vendors' data sheets, without sparsity. NVIDIA
# states none for RTX 4070 and RTX 5060 Ti (scaled from others by units and clock) and GB10 (1/8 of its sparse FP4).
GPUS = {
    gpu.name: gpu
    for gpu in (
        Hardware("B300", 2.25e15, 8.0e12, HOPPER, NVSWITCH),
        Hardware("GB200", 2.5e15, 8.0e12, HOPPER, NVSWITCH),
        Hardware("B200", 2.25e15, 8.0e12, HOPPER, NVSWITCH),
        Hardware("GH200", 989e12, 4.0e12, HOPPER, PCIE),
        Hardware("H200 NVL", 835e12, 4.8e12, HOPPER, PCIE),
        Hardware("H200", 989e12, 4.8e12, HOPPER, NVSWITCH),
        Hardware("H100 NVL", 835e12, 3.9e12, HOPPER, PCIE),
        Hardware("H100 PCIe", 756e12, 2.0e12, HOPPER, PCIE),
        Hardware("H100", 989e12, 3.35e12, HOPPER, NVSWITCH),
        Hardware("A100-SXM4-80GB", 312e12, 2.039e12, A100, NVSWITCH, fp8=False),
        Hardware("A100-SXM4-40GB", 312e12, 1.555e12, A100, NVSWITCH, fp8=False),
        Hardware("A100 80GB PCIe", 312e12, 1.935e12, A100, PCIE, fp8=False),
        Hardware("A100", 312e12, 1.555e12, A100, PCIE, fp8=False),
        Hardware("A10G", 70e12, 600e9, GEFORCE, PCIE, fp8=False),
        Hardware("L40S", 362e12, 864e9, GEFORCE, PCIE),
        Hardware("L4", 121e12, 300e9, GEFORCE, PCIE),
        Hardware("RTX PRO 6000", 503.8e12, 1.792e12, GEFORCE, PCIE),
        Hardware("GB10", 125e12, 273e9, GEFORCE, PCIE),
        Hardware("RTX 5090", 209.5e12, 1.792e12, GEFORCE, PCIE),
        Hardware("RTX 5060 Ti", 47.4e12, 448e9, GEFORCE, PCIE),
        Hardware("RTX 4090", 165.2e12, 1.008e12, GEFORCE, PCIE),
        Hardware("RTX 4070", 58.3e12, 504e9, GEFORCE, PCIE),
        Hardware("RTX 3090", 71e12, 936e9, GEFORCE, PCIE, fp8=False),
        Hardware("T4", 65e12, 320e9, TURING, PCIE, fp8=False),
    )
}
# A name with one of these words is another chip, or a part of one: RTX 4070 Ti, RTX 4090 Laptop GPU, H100 MIG 1g.10gb.
OTHER_CHIPS = "Ti|SUPER|D|Laptop|Max-Q|MIG"

DATA_SHEET_MFU = 0.4
# Lower next to the measured peak of a CPU: a step of a small model spends most of its time in passes over memory. The
# default run reached 18 to 22 % on an Intel Xeon.
MEASURED_MFU = 0.2

BFLOAT16_CAPABILITY = (8, 0)  # of the first GPUs that compute in bfloat16: Ampere
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str = "auto") -> torch.device:
    """The device of a name: auto, cpu, cuda, cuda:N or mps. `auto` prefers CUDA, then MPS. Raises ValueError."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind, colon, index = name.partition(":")
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in available or (colon and not (index.isascii() and index.isdecimal() and len(index) < 10)):
        raise ValueError(f"device: got {name!r}, expected auto, cpu, cuda, cuda:N or mps")
    if not available[kind]:
        raise ValueError(f"device: got {name!r}, but this machine has no {kind} device that torch can use")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if colon and int(index) >= count:
        expected = f"cuda:0 to cuda:{count - 1}" if kind == "cuda" else kind
        raise ValueError(f"device: got {name!r}, expected {expected} on this machine")
    return torch.device(kind, int(index)) if colon else torch.device(kind)


def cpu_has_fast_bfloat16() -> bool:
    """True if this CPU multiplies matrices faster in bfloat16 than in float32: with AMX, or AMD's with AVX512-BF16.

    Intel's AVX512-BF16 alone does not: a training step in float32 takes 0.65 of the time (docs/research/log.md).
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    avx = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    amx = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool((amx and amx()) or (avx and avx() and _cpu_info("vendor_id") == "AuthenticAMD"))


def _cpu_info(name: str) -> str:
    """The first value of `name` in /proc/cpuinfo, or an empty string."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


def pick_dtype(name: str, device: torch.device, decode: bool = False) -> torch.dtype:
    """The compute dtype called `name`; `auto` is bfloat16 where the hardware is faster with it, else float32.

    With `decode` it is float32 on every CPU: a decode step multiplies matrices by a few rows, which torch does faster
    in float32 (docs/research/log.md).
    """
    if name != "auto":
        if name not in DTYPES:
            raise ValueError(f"dtype: got {name!r}, expected auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY else torch.float32
    if device.type == "cpu":
        return torch.bfloat16 if cpu_has_fast_bfloat16() and not decode else torch.float32
    return torch.float32


def pick_device_and_dtype(
    device: str, dtype: str, errors: Errors, decode: bool = False
) -> tuple[torch.device, torch.dtype]:
    """The device and dtype of two flags. One that is not available is None, and `errors` has the reason."""
    chosen = errors.capture(lambda: pick_device(device))
    return chosen, errors.capture(lambda: pick_dtype(dtype, chosen or torch.device("cpu"), decode))


VECTOR_BITS = {"AVX512": 512, "AVX2": 256, "SVE256": 256}  # of the capabilities that torch names


def can_compile(device: torch.device) -> tuple[bool, str]:
    """Set `torch.compile` up and try it on `device` with a small function. Returns whether it works, and the reason."""
    if device.type == "mps":
        return False, "torch.compile on MPS is not reliable yet"

    def probe(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu()

    try:
        import torch._inductor.config as compiler  # takes seconds, as the next line does
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        # The compiler unpickles files of this folder, which anybody could create under /tmp.
        cache = Path(default_cache_dir())
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if cache.is_symlink() or cache.stat().st_uid != os.geteuid():
            return False, f"{cache}, where torch.compile keeps its work, is a link or another user's"
        # A graph is for one width of vectors. On a CPU with another one it computes wrong numbers or damages memory.
        # The cache's key has the compiler's settings but not the CPU, and machines may share the folder (the volume
        # of a container, say). So the width becomes a setting.
        compiler.cpp.simdlen = VECTOR_BITS.get(torch.backends.cpu.get_cpu_capability())
        torch.compile(probe)(torch.ones(8, device=device))
    except Exception as error:  # the compiler's failures (no C++ compiler, say) have no common type
        return False, f"torch.compile does not work here: {first_line(error)[:120]}"
    finally:
        torch._dynamo.reset()
    return True, "probe compiled and ran"


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: of tensors on a GPU, of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def find_gpu(name: str) -> Hardware | None:
    """The GPU that a name means: the driver's full name, or a part of it such as h100. None if it is not in `GPUS`."""
    for part, gpu in GPUS.items():
        found = re.search(rf"(?<![\w-]){part}(?!\w)(.*)", name, re.IGNORECASE)
        if found and not re.search(rf"\b({OTHER_CHIPS})\b", found[1], re.IGNORECASE):
            return gpu
    return None


def describe_hardware(device: torch.device) -> Hardware:
    """The hardware behind `device`."""
    if device.type == "cuda":
        name = torch.cuda.get_device_properties(device).name
        return replace(find_gpu(name) or Hardware(name), name=name)
    cpu = _cpu_info("model name") or platform.processor() or platform.machine()
    return Hardware(f"{cpu} (Metal)" if device.type == "mps" else f"{cpu}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    # For speedrun.sh: what `--device auto` and `--dtype auto` choose on this machine, such as "cpu float32".
    device = pick_device("auto")
    print(device.type, str(pick_dtype("auto", device)).removeprefix("torch."))
