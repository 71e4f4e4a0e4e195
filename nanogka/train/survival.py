"""Non-finite losses, out-of-memory and the order of sums in long runs."""

import gc
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanogka.common.formatting import duration, first_few
from nanogka.data.loader import Batch
from nanogka.train.context import LossFunction, Optimizer, RunContext

MAX_DOCUMENTS = 1000  # per report, so that metrics.jsonl stays readable
MAX_SHOWN = 8


# ---- numbers that are not finite ----


@dataclass(frozen=True)
class NonFiniteReport:
    """A micro-batch with a loss or gradient that is not finite."""

    rank: int
    micro_batch: int | None  # from 0; None if every one was finite when repeated alone
    cause: str  # the number that was not finite
    documents: list[str]

    def describe(self) -> str:
        """One line for people."""
        where = "" if self.micro_batch is None else f", micro-batch {self.micro_batch}"
        documents = first_few(self.documents, MAX_SHOWN) if self.documents else "not known"
        return f"rank {self.rank}{where}: {self.cause}; documents: {documents}"


def locate_non_finite(
    run: RunContext, model: nn.Module, loss_function: LossFunction, batches: list[Batch]
) -> list[NonFiniteReport]:
    """Return the reports of all ranks about a step whose loss or gradients are not finite; all ranks call it.

    When the step notices, the gradients of all micro-batches and ranks are one sum already. But the weights have not
    moved, so each rank repeats its micro-batches one by one. A finite step pays nothing for this.
    """

    def documents_of(*batches: Batch) -> list[str]:
        numbers = dict.fromkeys(document for batch in batches for row in batch.documents for document in row)
        return [run.locate(number) for number in numbers][:MAX_DOCUMENTS]

    rank, mine = run.ranks.rank, []
    for micro_batch, batch in enumerate(batches):
        cause = _non_finite(model, loss_function, batch.inputs.to(run.device), batch.targets.to(run.device))
        if cause is not None:
            mine.append(NonFiniteReport(rank, micro_batch, cause, documents_of(batch)))
    found = sum(run.ranks.gather(mine), [])
    if not found:
        cause = "every micro-batch is finite when repeated alone: a sum that overflowed, or an error of the machine"
        found = run.ranks.gather(NonFiniteReport(rank, None, cause, documents_of(*batches)))
    return found


def _non_finite(model: nn.Module, loss_function: LossFunction, inputs: Tensor, targets: Tensor) -> str | None:
    """Name the loss or gradient of one batch that is not finite; None if all are."""
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


# ---- memory ----


def fit_batch(run: RunContext, model: nn.Module, loss_function: LossFunction, optimizer: Optimizer) -> None:
    """Try a micro-batch forward and backward (which also compiles), with room left for the optimizers' state.

    Where it does not fit on some rank and `--device-batch-size` was not given, `run.device_batch_size` becomes half of
    it, or the next smaller number that divides the rows of a step, on all ranks; ValueError if one row does not fit.
    """
    if run.device_batch_size is None:
        return
    began, ranks = time.perf_counter(), run.ranks
    while (error := _does_not_fit(run, model, loss_function, optimizer)) is not None:
        rows = run.device_batch_size
        given = run.settings.device_batch_size is not None
        if given or rows == 1:
            advice = "half of it may" if rows > 1 else "try --activation-checkpointing or a shorter context"
            raise ValueError(
                f"--device-batch-size: got {rows}{'' if given else ' (found by halving)'}, which does not fit the "
                f"device's memory; {advice} ({error})"
            )
        rows_per_step = rows * run.accumulation
        run.device_batch_size = max(n for n in range(1, rows // 2 + 1) if rows_per_step % n == 0)
        if ranks.is_main:
            micro_batches = f"{run.device_batch_size} (× {run.accumulation} micro-batches)"
            print(f"{rows} rows per device do not fit its memory: going on with {micro_batches}", flush=True)
    if ranks.is_main and run.compile:
        print(f"compiled and tried a batch in {duration(time.perf_counter() - began)}", flush=True)


def _does_not_fit(run: RunContext, model: nn.Module, loss_function: LossFunction, optimizer: Optimizer) -> str | None:
    """Return why a micro-batch does not fit on some rank; None if it does on all."""
    error = None
    try:
        try_batch(run, loss_function, optimizer)
    except torch.OutOfMemoryError as raised:
        error = (str(raised).splitlines() or ["no reason given"])[0]
    model.zero_grad(set_to_none=True)
    gc.collect()  # the graph of an attempt that failed
    if run.device.type == "cuda":
        torch.cuda.empty_cache()
    (failed,) = run.ranks.any([error is not None], run.device)
    return (error or "on another rank") if failed else None


def try_batch(run: RunContext, loss_function: LossFunction, optimizer: Optimizer) -> None:
    """One forward and backward pass of a full micro-batch, with room left for the optimizer state."""
    ids = torch.zeros((run.device_batch_size, run.row_len), dtype=torch.int64, device=run.device)
    reserved = None
    if run.device.type == "cuda":  # elsewhere the system allocates pages when they are first written
        reserved = torch.empty(optimizer.expected_state_bytes(), dtype=torch.uint8, device=run.device)
    loss_function(ids, ids).backward()
    if run.device.type == "cuda" and run.accumulation > 1:
        loss_function(ids, ids).backward()  # from the second micro-batch on, gradients lie beside the activations
    del reserved


@contextmanager
def reproducible_on_cpu(device: torch.device) -> Iterator[None]:
    """Keep sums in one order on a CPU, where a resumed run promises the same losses bit for bit.

    Otherwise all threads add to a compiled embedding's gradient at once, in an order that varies.
    """
    before, filled = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid that costs time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = filled
