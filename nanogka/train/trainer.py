"""The training loop, from data to update: the same for pretraining, fine-tuning and reinforcement learning.

A step is: micro-batches forward and backward, gradients averaged over ranks, a check that loss and gradients are
finite, the update. After it: log, save if due, evaluate if due. This order means that an evaluation that fails cannot
lose the step. Training and evaluation never wait for a checkpoint to reach the disk.
"""

import gc
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from nanogka.checkpoint import Checkpoint, load_checkpoint, load_weights
from nanogka.common.runtime import peak_memory
from nanogka.common.signals import EXIT_CODES, StopRequest, stop_request
from nanogka.data.loader import Batch, merge_states
from nanogka.model import GPT
from nanogka.train.metrics import describe_numbers, rates
from nanogka.train.optimizer import Schedule
from nanogka.train.profile import profiled
from nanogka.train.resume import Start
from nanogka.train.run_dir import RunDirectory
from nanogka.train.sharded_optimizer import ShardedOptimizer

SMOOTHING = 0.9  # of the loss that people see: an average over about ten steps
EXIT_NON_FINITE = 3

LossFunction = Callable[[Tensor, Tensor], Tensor]  # from inputs and targets of a micro-batch to their mean loss


class Loader(Protocol):
    """An endless iterator over batches."""

    data_wait: float  # seconds that the loop has waited for batches
    progress: Mapping[str, object]  # values to log, up to the last batch

    def __next__(self) -> Batch: ...


@dataclass(frozen=True)
class Evaluation:
    """A measurement during training: `run(model)` returns numbers, or lists of lines, to log under their names.

    All ranks call it, every `every` steps (0: only at the end), the first time before training.
    """

    every: int
    run: Callable[[GPT], dict[str, float | list[str]]]


@dataclass
class LoopState:
    """The loop's own part of a checkpoint, next to weights and optimizer."""

    step: int = 0  # finished updates
    loader: dict | None = None  # state of the data after them; None at the start
    smooth_loss: float = 0.0  # exponential average, not yet corrected for its start at 0
    seconds: float = 0.0  # that all steps took
    skipped: int = 0  # batches that were not finite


def restore(start: Start, model: GPT, optimizer: ShardedOptimizer) -> LoopState:
    """Load weights, optimizer and the loop's state from the checkpoint to resume from, if there is one."""
    if start.checkpoint is None:
        return LoopState()
    checkpoint = load_checkpoint(start.checkpoint)
    load_weights(model, checkpoint.weights, f"--resume: {start.checkpoint}")
    optimizer.load_state_dict(checkpoint.optimizer)
    return LoopState(**{f.name: checkpoint.state[f.name] for f in fields(LoopState) if f.name in checkpoint.state})


def train(
    model: GPT,
    optimizer: ShardedOptimizer,
    schedule: Schedule,
    loader: Loader,
    loss_fn: LossFunction,
    run_dir: RunDirectory,
    evaluations: Sequence[Evaluation],
    state: LoopState,
) -> int:
    """Train from `state` to the end of the run; all ranks call it, joined. Returns the exit code (docs/training.md).

    A step is as many batches of the loader on each rank as the run has micro-batches per step. Raises CheckpointError
    at the step after a checkpoint could not be written.
    """
    run, ranks, device, settings = run_dir.run, run_dir.run.ranks, run_dir.run.device, run_dir.run.settings
    first = state.step
    trace = run.folder / "profile" / f"rank{ranks.rank}.json.gz"
    with (
        profiled(settings.profile, trace, device.type == "cuda", run_dir.say) as step_done,
        stop_request() as stop,
        ExitStack() as at_end,
    ):
        # Evaluate the starting weights (random, or the base model's) before the first step.
        evaluate(evaluations, model, run_dir, state.step)
        while state.step < run.num_iterations:
            began, waited = time.perf_counter(), loader.data_wait

            batch, loss = forward_backward(loader, loss_fn, run.batch.accumulation, device)
            # Each rank saw other rows of the batch: the mean over ranks is the gradient of the whole batch, so the
            # update does not depend on how many devices share it. From here on all ranks have the same numbers.
            grad_norm, rank_losses = optimizer.reduce_gradients(loss)
            loss_value = sum(rank_losses) / ranks.world_size

            # Skip the update if loss or gradient is nan or inf: one such number would spread to every weight.
            if not (math.isfinite(loss_value) and math.isfinite(grad_norm)):
                optimizer.zero_grad()
                state.skipped += 1
                report_non_finite(run_dir, state, loss_value, grad_norm)
                if state.skipped > settings.skip_bad_batches:
                    return EXIT_NON_FINITE
                continue

            # The update, at the learning rates of this step: large steps first, smaller ones at the end, when the noise
            # of single batches would keep the weights from settling.
            learning_rates = schedule.apply(optimizer.optimizers, state.step)
            optimizer.step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # the update is only queued so far, and its time counts
            seconds = time.perf_counter() - began

            # The loader's state counts only now: had this step failed, a resumed run would read its batch again.
            state.step, state.loader = state.step + 1, batch.state
            timing = {"seconds": seconds, "data_wait": loader.data_wait - waited, "peak_memory": peak_memory(device)}
            values = {"grad_norm": grad_norm, **learning_rates, **timing, **loader.progress, **observations(model)}
            log_step(run_dir, state, loss_value, values)
            step_done()
            if state.step == first + 1:
                # From now on the garbage collector skips what exists, mainly objects of torch and its compiler.
                # A full collection would visit all of them for 0.3 s, while the other ranks wait.
                gc.collect()
                gc.freeze()
                at_end.callback(gc.unfreeze)

            # Save before evaluating, which may fail or take long. All ranks agree before any of them leaves the loop: a
            # rank that left alone would keep the others waiting in the next collective.
            stopped, failed = ranks.any([stop.received is not None, run_dir.failed], device)
            if failed:
                run_dir.raise_failure()
            due = settings.save_every and state.step % settings.save_every == 0
            if due or stopped or state.step == run.num_iterations:
                save(model, optimizer, run_dir, state)
            if stopped:
                return report_stop(run_dir, stop, state)
            evaluate(evaluations, model, run_dir, state.step)
    return 0


def forward_backward(
    loader: Iterator[Batch], loss_fn: LossFunction, accumulation: int, device: torch.device
) -> tuple[Batch, Tensor]:
    """Add the gradients of a step's micro-batches to the parameters. Returns the last batch and the mean loss.

    A batch that does not fit the memory is divided into micro-batches. `backward` adds to the gradients, so with each
    loss divided by their number the sum is the batch's mean gradient.
    """
    losses: list[Tensor] = []
    for _ in range(accumulation):
        batch = next(loader)
        inputs, targets = to_device(batch.inputs, device), to_device(batch.targets, device)
        loss = loss_fn(inputs, targets) * batch.weight / accumulation
        loss.backward()
        losses.append(loss.detach())  # stays on the device: reading the number here would wait for the GPU
    return batch, sum(losses)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device; to a GPU from page-locked memory, the only kind that can travel while the CPU continues."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def log_step(run_dir: RunDirectory, state: LoopState, loss: float, values: Mapping[str, object]) -> None:
    """Log a step: its loss, amounts and speeds, and `values`. Updates the sums in `state`."""
    state.seconds += values["seconds"]
    state.smooth_loss = SMOOTHING * state.smooth_loss + (1 - SMOOTHING) * loss
    done = {name: state.step * amount for name, amount in run_dir.run.per_step.items()}
    speeds = rates(run_dir.run.per_step, values["seconds"])
    # The average began at 0, which weighs SMOOTHING**step in it: divide by the rest (as Adam does).
    smooth = state.smooth_loss / (1 - SMOOTHING**state.step)
    totals = {"loss": loss, "smooth_loss": smooth, **done, **speeds, "total_seconds": state.seconds}
    run_dir.log("train", state.step, **totals, **values)


def observations(model: GPT) -> dict[str, object]:
    """Values of the mixers to log, such as σ: per head, and the layers that have them."""
    values: dict[str, object] = {}
    for name, layers in ({"bandwidth": {}} | model.observations()).items():
        heads = [vector.tolist() for vector in layers.values()]
        every = [value for vector in heads for value in vector]
        values |= {f"{name}_min": min(every, default=None), f"{name}_max": max(every, default=None)}
        values |= {name: heads, f"{name}_layers": list(layers)}
    return values


def save(model: GPT, optimizer: ShardedOptimizer, run_dir: RunDirectory, state: LoopState) -> None:
    """Start to write a checkpoint; all ranks call it."""
    states = run_dir.run.ranks.all_gather(state.loader)
    loop = vars(state) | {"loader": merge_states(states) if "streams" in (states[0] or {}) else states[0]}
    run_dir.save(lambda: Checkpoint(state.step, model.state_dict(), optimizer.state_dict(), loop))


def evaluate(evaluations: Sequence[Evaluation], model: GPT, run_dir: RunDirectory, step: int) -> None:
    """Run and log the evaluations that are due."""
    seconds: dict[int, float] = {}
    for evaluation in evaluations:
        if step == run_dir.run.num_iterations or (evaluation.every > 0 and step % evaluation.every == 0):
            began = time.perf_counter()
            values = evaluation.run(model)
            seconds[evaluation.every] = seconds.get(evaluation.every, 0.0) + time.perf_counter() - began
            done = {name: step * amount for name, amount in run_dir.run.per_step.items()}
            run_dir.log("eval", step, **done, **values)
            numbers = ", ".join(describe_numbers(values))
            lines = [line for value in values.values() if isinstance(value, list) for line in value]
            run_dir.say("\n".join([f"step {step}: {numbers}".rstrip(), *lines]))
    run_dir.evaluated(seconds)


def report_stop(run_dir: RunDirectory, stop: StopRequest, state: LoopState) -> int:
    """Wait for the checkpoint, print which signal ended the run, and return its exit code. All ranks call it."""
    run_dir.wait()
    number = max(run_dir.run.ranks.all_gather(stop.received or 0))  # the signal may have reached one rank alone
    name = next(signal.name for signal in EXIT_CODES if signal == number)
    run_dir.say(f"stopped by {name} after step {state.step}; --resume auto continues from there")
    return EXIT_CODES[number]


def report_non_finite(run_dir: RunDirectory, state: LoopState, loss: float, grad_norm: float) -> None:
    """Log that a step was not finite, and what follows: its batch is skipped, or the run stops."""
    run, allowed = run_dir.run, run_dir.run.settings.skip_bad_batches
    cause = f"the gradient norm is {grad_norm}" if math.isfinite(loss) else f"the loss is {loss}"
    if state.skipped <= allowed:
        run_dir.say(f"step {state.step + 1}: {cause}; batch skipped ({state.skipped} of {allowed})")
        run_dir.log("skip", state.step, cause=cause, skipped=state.skipped)
    elif run.ranks.is_main:
        had = f" ({allowed} such batches were skipped before it)" if allowed else ""
        print(
            f"stopped at step {state.step + 1} before its update: {cause}{had}. The weights are those of the last "
            f"update, and the checkpoints under {run.folder / 'checkpoints'} are untouched. Lower the learning rates "
            f"(--lr-scale), try --dtype float32, or skip such batches (--skip-bad-batches).",
            file=sys.stderr,
        )


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
