"""Lets timm import torchvision's CUDA wheel on a machine with a CPU build of torch, for these tests alone.

PyPI has no CPU wheel of torchvision. The CUDA wheel's operators cannot be loaded next to a CPU torch, and the import
fails with "operator torchvision::nms does not exist". No test uses these operators, so declaring them is enough.
"""

import contextlib

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
if torch.version.cuda is None:
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # a CPU build of torchvision has its own
            LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
