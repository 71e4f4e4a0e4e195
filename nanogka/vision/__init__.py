"""Images: DeiT with Gaussian Kernel Attention, on timm (the extra `vision`: timm and scikit-learn).

Shapes: B images, T tokens ([CLS], then the patches by rows), C width, H heads, D = C / H.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch

from nanogka.common.errors import Errors

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_library: torch.library.Library | None = None  # what it declares goes when it does


def declare_operators() -> None:
    """Declare two operators of torchvision where its build cannot bring them, so that `import timm` works.

    The plain package is a CUDA build, whose operators cannot be loaded beside a CPU build of torch: "operator
    torchvision::nms does not exist". None of them is used here.
    """
    global _library
    found = find_spec("torchvision")
    if _library is not None or found is None or found.origin is None or torch.version.cuda is not None:
        return
    version = Path(found.origin).with_name("version.py")
    if version.is_file() and re.search(r"\+cu\d|cuda *= *['\"]", version.read_text(encoding="utf-8")):
        _library = torch.library.Library("torchvision", "DEF")
        for operator in OPERATORS:
            _library.define(operator)


@contextmanager
def needs_timm(errors: Errors) -> Iterator[None]:
    """Around imports that need timm: without it, raises the errors found so far and the command that installs it."""
    try:
        yield
    except ImportError as error:
        errors.lines.append(f'takes timm: pip install "nanogka[vision]" ({error})')
        errors.raise_if_any()


declare_operators()
