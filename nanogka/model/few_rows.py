"""Products of few rows with a matrix on a CPU: one pass of all threads over the matrix.

They are most of a token's work, 82 MB of weights in float32 at depth 6. torch multiplies one row in one thread, at a
third of the memory's speed, and several hardly better (docs/LOG.md). Where there is no C++ compiler, or what it makes
does not agree with float64, torch multiplies; the log says which.

Shapes: B rows, C features, N outputs.
"""

import functools
import logging
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogka import native
from nanogka.attention.graphs import constant_in_graphs
from nanogka.problems import in_one_line

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("few_rows.cpp")
MOST = 64  # rows: streams that are decoded together, or a short prompt
DTYPES = (torch.float32, torch.bfloat16)

torch.library.define("nanogka::few_rows_linear_cpp", "(Tensor x, Tensor weight) -> Tensor", tags=native.ANY_STRIDES)
torch.library.define(
    "nanogka::few_rows_logits_cpp", "(Tensor x, Tensor weight, float cap) -> Tensor", tags=native.ANY_STRIDES
)
linear_op, logits_op = (getattr(torch.ops.nanogka, f"few_rows_{what}_cpp").default for what in ("linear", "logits"))


@torch.library.register_fake("nanogka::few_rows_linear_cpp")
def _(x, weight):
    return x.new_empty((len(x), len(weight)))


@torch.library.register_fake("nanogka::few_rows_logits_cpp")
def _(x, weight, cap):
    return x.new_empty((len(x), len(weight)), dtype=torch.float32)


def taken(x: Tensor, weight: Tensor) -> bool:
    """Whether x (…, C) and weight (N, C) are for the two functions below: few rows, on a CPU, no backward."""
    return (
        0 < x.shape[:-1].numel() <= MOST
        and x.shape[-1] == weight.shape[1]  # else torch says what is wrong
        and weight.is_contiguous()  # else it would be copied each time
        and x.device.type == weight.device.type == "cpu"
        and x.dtype == weight.dtype
        and x.dtype in DTYPES
        and not torch.is_grad_enabled()
        and _runs()
    )


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ (…, N) in the dtype of x; sums are float32."""
    return linear_op(x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], -1)


def capped_logits(x: Tensor, weight: Tensor, cap: float) -> Tensor:
    """cap · tanh(x Wᵀ / cap), float32 (…, N), nothing rounded on the way."""
    return logits_op(x.reshape(-1, x.shape[-1]), weight, cap).view(*x.shape[:-1], -1)


@constant_in_graphs
def _runs() -> bool:
    return why_not() is None


@functools.cache
def why_not() -> str | None:
    """Why our products are not used here, None if they are; logged the first time it is asked."""
    try:
        native.load(SOURCE)
        reason = _disagreement()
    except Exception as error:  # compilers and torch fail in many types
        reason = in_one_line(error)
    log.info("products of few rows on a CPU: %s", f"torch (C++: {reason})" if reason else "C++ (agrees with float64)")
    return reason


@torch.no_grad()
def _disagreement() -> str | None:
    """Small products, of so many rows that each loop is used, against float64; None if the error is the dtype's."""
    generator = torch.Generator().manual_seed(0)
    for dtype in DTYPES:
        weight = torch.randn(37, 70, generator=generator).to(dtype)
        for rows in (1, 2, 3, 7, 19):
            x = torch.randn(rows, 70, generator=generator).to(dtype)
            exact = F.linear(x.double(), weight.double())
            errors = {
                "products": (linear_op(x, weight) - exact).norm() / exact.norm() / torch.finfo(dtype).eps,
                "logits": (logits_op(x, weight, 15.0) - 15 * torch.tanh(exact / 15)).abs().max() / 1e-5,
            }
            for name, error in errors.items():
                if not error < 8:
                    return f"{name} disagree with float64: {rows} rows, {dtype}, {error:.1f} where 8 is allowed"
    return None
