"""nanogka: GPT pretraining with Gaussian Kernel Attention.

import nanogka

model = nanogka.load("d4-gaussian")     # see nanogka.api
model.generate("The with statement", max_tokens=64)
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanogka.api import Model, load

__all__ = ["Model", "__version__", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`load` and `Model` of `nanogka.api`, imported when they are asked for: every module imports this one."""
    if name in ("Model", "load"):
        return getattr(importlib.import_module("nanogka.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
