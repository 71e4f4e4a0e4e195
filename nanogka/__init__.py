"""nanogka: GPT pretraining with Gaussian Kernel Attention.

    import nanogka

    model = nanogka.load("d3-successor-chat")               # a run's tag or folder; None for the latest run
    model.chat("How do you spell banana?", temperature=0)   # the reply of a chat model
    model.generate("The with statement", max_tokens=64)     # the continuation of a text

`help(nanogka.Model)` describes everything that a loaded model can do.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from nanogka.api import Model

__all__ = ["Model", "__version__", "load"]
__version__ = "0.1.0"


def load(
    run: "str | Path | None" = None, *, step: int | None = None, device: str = "auto", dtype: str = "auto"
) -> "Model":
    """Load a trained model: a run's tag or folder, or None for the latest run.

    `step`: a checkpoint's step; None for the newest checkpoint that verifies. `device`: auto, cpu, cuda, cuda:N or mps.
    `dtype`, in which the model computes: auto, float32, bfloat16 or float16.

        nanogka.load("d3-successor-chat", device="cpu")
    """
    # Imported here, with torch: every module imports this one.
    return importlib.import_module("nanogka.api").load(run, step=step, device=device, dtype=dtype)


def __getattr__(name: str) -> object:
    """`Model` of `nanogka.api`, imported when it is asked for."""
    if name == "Model":
        return importlib.import_module("nanogka.api").Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
