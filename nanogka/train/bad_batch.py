"""Whose fault a loss or gradient that is not finite was: rank, micro-batch, rows, documents.

The step that meets one finds out too late: by then the gradients of all micro-batches and ranks are one sum. But the
weights have not moved, so each rank repeats its micro-batches one by one and looks. Finite steps pay nothing for this.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import nn

from nanogka.data.loader import Batch

MOST_DOCUMENTS = 1000  # of a finding; metrics.jsonl shall stay readable
MOST_SHOWN = 8


class NonFiniteError(RuntimeError):
    """Loss or gradients are not finite; nothing was updated."""


@dataclass(frozen=True)
class Finding:
    """One micro-batch in which something was not finite.

    Attributes:
        rank, micro_batch: where, both from 0; no micro-batch if none of them showed it when repeated alone.
        cause: what was not finite.
        rows: of the micro-batch, those that show it alone; empty if none does.
        documents: in those rows, or in all.
    """

    rank: int
    micro_batch: int | None
    cause: str
    rows: list[int]
    documents: list[str]

    def describe(self) -> str:
        """One line for people."""
        where = "" if self.micro_batch is None else f", micro-batch {self.micro_batch}"
        rows = f", row{'s' * (len(self.rows) > 1)} {', '.join(map(str, self.rows))}" if self.rows else ""
        return f"rank {self.rank}{where}{rows}: {self.cause}; documents: {shorten(self.documents)}"

    def to_dict(self) -> dict:
        """All fields, for JSON."""
        return asdict(self)


def shorten(documents: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    if not documents:
        return "not known"
    more = len(documents) - MOST_SHOWN
    return "; ".join(documents[:MOST_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def documents_of(batch: Batch, rows: Sequence[int], locate: Callable[[int], str]) -> list[str]:
    """Where the documents in some rows of a batch (all if there are none) lie, each once."""
    chosen = [batch.documents[row] for row in rows] if rows else batch.documents
    return [locate(document) for document in dict.fromkeys(d for row in chosen for d in row)][:MOST_DOCUMENTS]


def examine(
    model: nn.Module,
    loss_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    batches: Sequence[Batch],
    rank: int,
    device: torch.device,
    locate: Callable[[int], str],
) -> list[Finding]:
    """Repeat this rank's micro-batches of a step, and say which of them are at fault; leaves no gradients.

    Args:
        model: with the weights as they were.
        loss_function: of inputs and targets, as in the step: `model`, compiled maybe.
        batches: of the step.
        rank: of this process.
        device: of the model.
        locate: where the document with some number lies, for people.
    """
    findings = []
    for micro, batch in enumerate(batches):
        cause = _cause(model, loss_function, batch.inputs.to(device), batch.targets.to(device))
        if cause is None:
            continue
        rows = []
        for row in range(len(batch.inputs)) if len(batch.inputs) > 1 else ():
            one = slice(row, row + 1)
            if (batch.targets[one] < 0).all():  # nothing in it is scored
                continue
            # The plain model, since one row is a new shape to a compiled one.
            if _cause(model, model, batch.inputs[one].to(device), batch.targets[one].to(device)) is not None:
                rows.append(row)
        findings.append(Finding(rank, micro, cause, rows, documents_of(batch, rows, locate)))
    return findings


def unexplained(batches: Sequence[Batch], rank: int, locate: Callable[[int], str]) -> Finding:
    """What to say where every rank's micro-batches are fine one by one: their sum overflowed, or a machine erred."""
    documents = [name for batch in batches for name in documents_of(batch, (), locate)][:MOST_DOCUMENTS]
    cause = "every micro-batch is finite when repeated alone: a sum that overflowed, or an error of the machine"
    return Finding(rank, None, cause, [], documents)


def _cause(model: nn.Module, loss_function: Callable, inputs: torch.Tensor, targets: torch.Tensor) -> str | None:
    """What is not finite in the loss or the gradients of one batch."""
    try:
        loss = loss_function(inputs, targets)
        if not math.isfinite(value := loss.item()):
            return f"the loss is {value}"
        loss.backward()
        for name, p in model.named_parameters():
            if p.grad is not None and not torch.isfinite(p.grad).all():
                return f"the gradient of {name} is not finite"
        return None
    finally:
        model.zero_grad(set_to_none=True)
