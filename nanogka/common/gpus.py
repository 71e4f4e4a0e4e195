"""Count the GPUs that torch can use: `python -m nanogka.common.gpus` prints their number."""

import shutil
import subprocess
import sys

from nanogka.common.cli import run_script


def ask_driver(*words: str) -> str:
    """Return the standard output of `nvidia-smi`, empty if there is none."""
    if not shutil.which("nvidia-smi"):
        return ""
    return subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=60).stdout


def count_gpus() -> int:
    """The number of CUDA devices. Raises ValueError if the driver lists GPUs and torch finds none."""
    import torch

    found, listed = torch.cuda.device_count(), ask_driver("-L").count("GPU ")
    if listed and not found:
        driver = ask_driver("--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0] or "unknown"
        raise ValueError(
            f"GPUS: got 0 from torch {torch.__version__}, expected the {listed} GPUs that nvidia-smi lists (driver "
            f"{driver}).\nA build of torch for the CPU or for a newer driver cannot use them. Delete .venv and set up "
            "again with TORCH_BACKEND=cu126,\nupdate the driver (the default build needs 580 or newer), or ask for the "
            "small run on the CPU with GPUS=0"
        )
    return found


if __name__ == "__main__":
    sys.exit(run_script(lambda: print(count_gpus()), "speedrun"))
