"""Count the GPUs that torch can use: `python -m nanogka.common.gpus` prints their number."""

import os
import shutil
import subprocess
import sys

from nanogka.common.cli import run_script

TIMEOUT = 60  # seconds after which `nvidia-smi` hangs


def ask_driver(*words: str) -> str:
    """Return the standard output of `nvidia-smi`, empty if it is not installed.

    Raises ValueError with its first line if it fails or hangs: the driver is broken, and the GPUs cannot be used.
    """
    if not shutil.which("nvidia-smi"):
        return ""
    try:
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, errors="replace", timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        fault = f"no answer in {TIMEOUT:g} s"
    except OSError as error:  # a file of another processor, or cut
        fault = error.strerror
    else:
        if done.returncode == 0:
            return done.stdout
        fault = ((done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"])[0]
    raise ValueError(
        f"GPUS: got {fault!r} from nvidia-smi, expected a list of GPUs. Repair the driver (a reboot often helps), or "
        "use the CPU with GPUS=0"
    )


def count_gpus() -> int:
    """The number of CUDA devices. Raises ValueError if the driver is broken, or lists GPUs and torch finds none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1"):  # the user hides all of them
        return 0
    listed = ask_driver("-L").count("GPU ")
    import torch  # takes seconds

    found = torch.cuda.device_count()
    if listed and not found:
        driver = ask_driver("--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0] or "unknown"
        chosen = "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible!r}"
        raise ValueError(
            f"GPUS: got 0 from torch {torch.__version__}{chosen}, expected the {listed} GPUs that nvidia-smi lists "
            f"(driver {driver}).\nA build of torch for the CPU or for a newer driver cannot use them. Delete .venv and "
            "set up again with TORCH_BACKEND=cu126,\nupdate the driver (the default build needs 580 or newer), or ask "
            "for the small run on the CPU with GPUS=0"
        )
    return found


if __name__ == "__main__":
    sys.exit(run_script(lambda: print(count_gpus()), "speedrun"))
