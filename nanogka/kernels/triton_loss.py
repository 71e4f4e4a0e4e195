"""The loss and the logits' gradient in one Triton kernel, in place: the scoring step of `nanogka/model/loss.py`, which
defines the soft cap and the gradient.

A program works on one row of logits: a first pass finds its loss, a second one replaces the logits by their gradient.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

LARGEST_BLOCK = 4096  # logits that a program holds at a time: they must fit its registers


def score(logits: Tensor, targets: Tensor, cap: float, losses: Tensor, row_weight: Tensor | None) -> None:
    """Fill `losses` (rows,) from `logits` (rows, V); with row weights, turn `logits` into their gradient in place.

    Rows of logits and the targets are contiguous. Logits are bfloat16, float16 or float32, losses and row weights
    float32.
    """
    if logits.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"logits: got {logits.dtype}, expected bfloat16, float16 or float32")
    rows, vocabulary = logits.shape
    weights = losses if row_weight is None else row_weight  # an unread pointer in the first case
    with torch.cuda.device(logits.device) if logits.is_cuda else nullcontext():  # Triton launches on the current device
        _score_row[(rows,)](
            logits,
            logits.stride(0),
            targets,
            losses,
            weights,
            vocabulary,
            cap,
            HAS_GRADIENT=row_weight is not None,
            BLOCK=min(LARGEST_BLOCK, triton.next_power_of_2(vocabulary)),
            num_warps=8,
        )


def probe(device: torch.device, dtype: torch.dtype) -> str | None:
    """Compare the kernel with autograd in float64 on a small problem. Return the fault, or None."""
    rows, vocabulary, cap = 5, 700, 15.0
    generator = torch.Generator().manual_seed(0)
    logits = (9 * torch.randn(rows, vocabulary, generator=generator)).to(dtype)
    targets = torch.tensor([3, 699, -1, 0, 41])
    wide = logits.double().requires_grad_()
    exact = F.cross_entropy(cap * torch.tanh(wide / cap), targets, ignore_index=-1, reduction="none")
    (gradient,) = torch.autograd.grad(exact.sum(), wide)
    ours, losses = logits.to(device, copy=True), torch.empty(rows, device=device)
    weights = (targets >= 0).float().to(device)
    score(ours, targets.to(device), cap, losses, weights)
    for name, a, e in (("losses", losses, exact.detach()), ("gradient", ours, gradient)):
        if not (a.cpu().double() - e).norm() <= max(8 * torch.finfo(dtype).eps, 1e-5) * e.norm():
            return f"{name} disagree with float64"
    return None


@triton.jit
def _tanh(logits, cap):
    """tanh(logits / cap) by one exponential; saturates at ±1 without overflowing into NaN."""
    return 1 - 2 / (1 + tl.exp(logits.to(tl.float32) * (2 / cap)))


@triton.jit
def _score_row(
    logits, stride, targets, losses, row_weights, vocabulary, cap, HAS_GRADIENT: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    scored = target != -1
    columns = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.float32) - cap  # no capped logit is smaller
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        inside = start + columns < vocabulary
        capped = cap * _tanh(tl.load(logits + start + columns, mask=inside, other=0.0), cap)
        capped = tl.where(inside, capped, -cap)
        new = tl.maximum(largest, capped)
        total = total * tl.exp(largest - new) + tl.where(inside, tl.exp(capped - new), 0.0)
        largest = new
    top = tl.max(largest, 0)
    lse = top + tl.log(tl.sum(total * tl.exp(largest - top), 0))
    chosen = cap * _tanh(tl.load(logits + tl.where(scored, target, 0)), cap)
    tl.store(losses + row, tl.where(scored, lse - chosen, 0.0))
    # The second pass reads the row again, mostly from the cache: a row of 32,768 logits does not fit the registers.
    if HAS_GRADIENT:
        weight = tl.where(scored, tl.load(row_weights + row), 0.0)
        tl.debug_barrier()  # every warp has read the target's logit before any overwrites it
        for start in range(0, vocabulary, BLOCK):
            inside = start + columns < vocabulary
            tanh = _tanh(tl.load(logits + start + columns, mask=inside, other=0.0), cap)
            share = tl.exp(cap * tanh - lse) - tl.where(start + columns == target, 1.0, 0.0)
            gradient = weight * share * (1 - tanh * tanh)
            tl.store(logits + start + columns, gradient.to(logits.dtype.element_ty), mask=inside)
