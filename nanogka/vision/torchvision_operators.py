"""The one thing that keeps `import timm` from working beside a CPU build of torch.

torchvision's plain package is a CUDA build. Its compiled operators cannot be loaded beside a CPU torch, which it takes
in its stride but for two operators whose shape functions it registers all the same: "operator torchvision::nms does
not exist". None of it is used here; declared, they are enough.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import torch

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_library: torch.library.Library | None = None  # what it declares goes when it does


def declare_operators() -> None:
    """Declare torchvision's operators where its build cannot bring them; nothing elsewhere, or without torchvision."""
    global _library
    found = find_spec("torchvision")
    if _library is not None or found is None or found.origin is None or torch.version.cuda is not None:
        return
    version = Path(found.origin).with_name("version.py")
    if version.is_file() and re.search(r"\+cu\d|cuda *= *['\"]", version.read_text(encoding="utf-8")):
        _library = torch.library.Library("torchvision", "DEF")
        for operator in OPERATORS:
            _library.define(operator)
