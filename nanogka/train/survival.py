"""Ways in which a long run meets trouble and goes on, or stops without losing anything.

* `StopRequest`: SIGINT or SIGTERM finishes the step and saves; a second one ends at once.
* `find_culprits`: which micro-batches, rows and documents made a loss or gradient that is not finite.
* `fit_batch`: a micro-batch that fits the device's memory, found before the run.
"""

import gc
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn

from nanogka.checkpoint import shorten
from nanogka.data import Batch
from nanogka.formatting import duration
from nanogka.train.setup import RunContext
from nanogka.train.zero import ShardedOptimizer

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
# torchrun passes on to its workers a signal that a batch system may have sent to them as well: that is one request.
SAME_REQUEST = 1.0
MAX_DOCUMENTS = 1000  # per finding, so that metrics.jsonl stays readable
MAX_SHOWN = 8
LossFunction = Callable[[Tensor, Tensor], Tensor]  # of ids and targets (B, T): the model, perhaps compiled


class StopRequest:
    """A signal's request to stop the run; a context manager that listens while it is open.

    A second signal must also work where the main thread is stuck in a library (a collective whose other side is gone),
    for which Python's own handlers would wait. So a thread listens at the wake-up descriptor, to which the interpreter
    writes the number of each signal the moment it comes. Outside of the main thread it hears nothing.

    Attributes:
        received: the signal, or None.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._grace = SAME_REQUEST if "TORCHELASTIC_RUN_ID" in os.environ else 0.0
        self._previous: dict = {}
        self._pipe: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is not threading.main_thread():
            return self
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in EXIT_CODES:
            self._previous[number] = signal.signal(number, lambda *_: None)  # the default action would end the process
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pipe is None:
            return
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._pipe[1])  # which ends the thread
        self._thread.join()
        os.close(self._pipe[0])
        self._pipe = None

    def _listen(self) -> None:
        first = 0.0
        while heard := os.read(self._pipe[0], 1):
            number = heard[0]
            if number not in EXIT_CODES:
                continue
            if self.received is None:
                first, self.received = time.monotonic(), signal.Signals(number)
            elif time.monotonic() - first >= self._grace:
                os.write(2, b"\nasked again: ending at once, without saving\n")
                os._exit(EXIT_CODES[number])


# ---- numbers that are not finite ----


@dataclass(frozen=True)
class Finding:
    """A micro-batch in which something was not finite.

    Attributes:
        rank, micro_batch: both from 0; no micro-batch if every one was finite when repeated alone.
        cause: the number that was not finite.
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
        return f"rank {self.rank}{where}{rows}: {self.cause}; documents: {list_documents(self.documents)}"

    def to_dict(self) -> dict:
        """All fields, for JSON."""
        return asdict(self)


def find_culprits(
    run: RunContext, model: nn.Module, loss_function: LossFunction, batches: list[Batch]
) -> list[Finding]:
    """Return the findings of all ranks about a step whose loss or gradients are not finite; all ranks call it.

    When the step notices, the gradients of all micro-batches and ranks are one sum already. But the weights have not
    moved, so each rank repeats its micro-batches one by one. A finite step pays nothing for this.
    """
    rank = run.ranks.rank
    mine = examine(model, loss_function, batches, rank, run.device, run.locate)
    found = sum(run.ranks.gather(mine), [])
    if not found:
        cause = "every micro-batch is finite when repeated alone: a sum that overflowed, or an error of the machine"
        documents = [name for batch in batches for name in documents_of(batch, (), run.locate)][:MAX_DOCUMENTS]
        found = run.ranks.gather(Finding(rank, None, cause, [], documents))
    return found


def examine(
    model: nn.Module,
    loss_function: LossFunction,
    batches: Sequence[Batch],
    rank: int,
    device: torch.device,
    locate: Callable[[int], str],
) -> list[Finding]:
    """Repeat this rank's micro-batches one by one and return those that are not finite; leaves no gradients.

    `locate`: the place of the document with some number, for people.
    """
    findings = []
    for micro, batch in enumerate(batches):
        cause = _not_finite(model, loss_function, batch.inputs.to(device), batch.targets.to(device))
        if cause is None:
            continue
        rows = []
        for row in range(len(batch.inputs)) if len(batch.inputs) > 1 else ():
            one = slice(row, row + 1)
            if (batch.targets[one] < 0).all():  # nothing in it is scored
                continue
            # The plain model, since one row is a new shape to a compiled one.
            if _not_finite(model, model, batch.inputs[one].to(device), batch.targets[one].to(device)) is not None:
                rows.append(row)
        findings.append(Finding(rank, micro, cause, rows, documents_of(batch, rows, locate)))
    return findings


def _not_finite(model: nn.Module, loss_function: LossFunction, inputs: Tensor, targets: Tensor) -> str | None:
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


def documents_of(batch: Batch, rows: Sequence[int], locate: Callable[[int], str]) -> list[str]:
    """The places of the documents in some rows of a batch (in all, if `rows` is empty), each once."""
    chosen = [batch.documents[row] for row in rows] if rows else batch.documents
    return [locate(document) for document in dict.fromkeys(d for row in chosen for d in row)][:MAX_DOCUMENTS]


def list_documents(documents: list[str]) -> str:
    """The first few of them, for people."""
    return shorten(documents, MAX_SHOWN) if documents else "not known"


# ---- memory ----


def fit_batch(
    run: RunContext, model: nn.Module, loss_function: LossFunction, optimizer: ShardedOptimizer
) -> RunContext:
    """Try a micro-batch forward and backward (which also compiles), with room left for the optimisers' state.

    Where it does not fit on some rank and `--device-batch-size` was not given, all ranks go on with half of it, or the
    next smaller number that divides the rows of a step.

    Returns:
        The run with the micro-batch that fits.

    Raises:
        ValueError: if the one that was given does not fit, or one row does not.
    """
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
        run = replace(run, device_batch_size=max(n for n in range(1, rows // 2 + 1) if rows_per_step % n == 0))
        if ranks.is_main:
            micro_batches = f"{run.device_batch_size} (× {run.accumulation} micro-batches)"
            print(f"{rows} rows per device do not fit its memory: going on with {micro_batches}", flush=True)
    if ranks.is_main and run.compile:
        print(f"compiled and tried a batch in {duration(time.perf_counter() - began)}", flush=True)
    return run


def _does_not_fit(
    run: RunContext, model: nn.Module, loss_function: LossFunction, optimizer: ShardedOptimizer
) -> str | None:
    """Return why a micro-batch does not fit on some rank; None if it does on all."""
    error = None
    try:
        try_batch(run, loss_function, optimizer)
    except torch.OutOfMemoryError as raised:
        error = (str(raised).splitlines() or ["no reason given"])[0]
    model.zero_grad(set_to_none=True)
    if error is not None:
        gc.collect()  # the graph of the attempt
    if run.device.type == "cuda":
        torch.cuda.empty_cache()
    (failed,) = run.ranks.any([error is not None], run.device)
    return (error or "on another rank") if failed else None


def try_batch(run: RunContext, loss_function: LossFunction, optimizer: ShardedOptimizer) -> None:
    """One forward and backward pass of a micro-batch of the full size."""
    ids = torch.zeros((run.device_batch_size, run.row_len), dtype=torch.int64, device=run.device)
    reserved = None
    if run.device.type == "cuda":  # elsewhere memory is given out when it is written to
        reserved = torch.empty(optimizer.expected_state_bytes(), dtype=torch.uint8, device=run.device)
    loss_function(ids, ids).backward()
    del reserved


@contextmanager
def reproducible_on_cpu(device: torch.device) -> Iterator[None]:
    """Keep sums in one order on a CPU, where a resumed run promises the same losses bit for bit.

    A compiled embedding's gradient is else added up by all threads at once, in the order in which they come.
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
