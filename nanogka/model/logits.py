"""Logits of hidden states, capped softly; of few of them on a CPU, by one pass of all threads over the matrix.

That matrix is most of what a small model reads for a token: at depth 6 with 32 768 tokens 50 of 82 MB in float32.
torch multiplies it with one row in one thread, at a third of the memory's speed, and caps the logits afterwards
(docs/LOG.md).

Shapes: B rows, V tokens, C features.
"""

import functools
import logging
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogka import native
from nanogka.attention.graphs import constant_in_graphs
from nanogka.model.layers import Linear

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("cpp_logits.cpp")
MOST_ROWS = 64  # from some hundred on torch is faster
DTYPES = (torch.float32, torch.bfloat16)

torch.library.define(
    "nanogka::capped_logits_cpp", "(Tensor x, Tensor weight, float cap) -> Tensor", tags=native.ANY_STRIDES
)
capped_logits_op = torch.ops.nanogka.capped_logits_cpp.default


@torch.library.register_fake("nanogka::capped_logits_cpp")
def _(x, weight, cap):
    return x.new_empty((len(x), len(weight)), dtype=torch.float32)


def capped_logits(x: Tensor, head: Linear, cap: float) -> Tensor:
    """cap · tanh(z / cap) of z = x Wᵀ, float32 (…, V).

    Args:
        x: (…, C) normalised hidden states.
        head: of the matrix (V, C).
        cap: bound of the logits.
    """
    rows, weight = x.shape[:-1].numel(), head.weight
    known = x.device.type == "cpu" and x.dtype in DTYPES and weight.dtype == x.dtype
    if known and 0 < rows <= MOST_ROWS and not torch.is_grad_enabled() and _runs():
        return capped_logits_op(x.reshape(rows, -1), weight, cap).view(*x.shape[:-1], -1)
    logits = head(x).float()
    return cap * torch.tanh(logits / cap)


@constant_in_graphs
def _runs() -> bool:
    return why_not() is None


@functools.cache
def why_not() -> str | None:
    """Why the kernel is not used here, None if it is; logged the first time it is asked."""
    try:
        native.load(SOURCE)
        reason = _disagreement()
    except Exception as error:  # compilers and torch fail in many types
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    log.info("logits on a CPU: %s", f"torch (C++: {reason})" if reason else "C++ (agrees with torch)")
    return reason


@torch.no_grad()
def _disagreement() -> str | None:
    """A few rows against float64; None if the error is the dtype's."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(37, 40, generator=generator)
    for dtype in DTYPES:
        for rows in (1, 2, 3, 7, 19):
            x, w = torch.randn(rows, 40, generator=generator).to(dtype), weight.to(dtype)
            expected = 15 * torch.tanh(F.linear(x.double(), w.double()) / 15)
            error = (capped_logits_op(x, w, 15.0) - expected).abs().max()
            if not error < 1e-4:
                return f"disagrees with float64 by {error:.1e}"
    return None
