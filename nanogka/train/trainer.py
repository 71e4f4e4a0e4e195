"""The training loop, from data to update: the same for language models, their fine-tuning and image models.

A step is: micro-batches forward and backward, gradients averaged over ranks, a check that loss and gradients are
finite, the update. After it: log, save if due, evaluate if due. This order means that an evaluation that fails cannot
lose the step. Training and evaluation never wait for a checkpoint to reach the disk.
"""

import gc
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor, nn

from nanogka.checkpoint import Checkpoint, load_checkpoint, load_weights
from nanogka.common.runtime import peak_memory
from nanogka.common.signals import StopRequest
from nanogka.data.loader import Batch, merge_states
from nanogka.train.metrics import rates
from nanogka.train.profile import profiled
from nanogka.train.run_dir import Run, RunDirectory, Start, claim

SMOOTHING = 0.9  # of the loss that people see
EXIT_NON_FINITE = 3
ASSUMED_MFU = 0.4  # share of the hardware's peak that training is expected to reach, for estimates of its cost
MFU_STEPS = 20  # after which a speed below half of that is worth a warning

LossFunction = Callable[[Tensor, Tensor], Tensor]  # from inputs and targets of a micro-batch to their mean loss


class Optimizer(Protocol):
    """What the loop needs of an optimizer, on one rank or many."""

    def reduce_gradients(self, loss: Tensor) -> tuple[float, list[float]]:
        """Average the gradients over ranks; returns their norm and the losses whose mean the ranks share."""

    def zero_grad(self) -> None:
        """Drop the gradients."""

    def step(self) -> None:
        """Update the weights and drop the gradients."""

    def state_dict(self) -> dict | None:
        """A copy of the whole state in host memory on rank 0; None on the others."""

    def load_state_dict(self, saved: dict) -> None:
        """Take what `state_dict` gave; ValueError if it is not of this model."""

    def expected_state_bytes(self) -> int:
        """Device memory that the state will need in addition to its current memory."""


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
    run: Callable[[nn.Module], dict[str, float | list[str]]]


@dataclass
class LoopState:
    """The loop's own part of a checkpoint, next to weights and optimizer."""

    step: int = 0  # finished updates
    loader: dict | None = None  # state of the data after them; None at the start
    smooth_loss: float = 0.0  # exponential average, not yet corrected for its start at 0
    seconds: float = 0.0  # of all steps
    skipped: int = 0  # batches that were not finite


@contextmanager
def session(run: Run) -> Iterator[Start]:
    """Join the other ranks, lock the run's folder and agree on where training starts."""
    with run.ranks.joined(run.device, run.settings.rank_timeout), claim(run) as start, reproducible_on_cpu(run.device):
        yield start


def restore(start: Start, model: nn.Module, optimizer: Optimizer) -> LoopState:
    """Load weights, optimizer and the loop's state from the checkpoint to resume from, if there is one."""
    if start.checkpoint is None:
        return LoopState()
    checkpoint = load_checkpoint(start.checkpoint)
    load_weights(model, checkpoint.weights, f"--resume: {start.checkpoint}")
    optimizer.load_state_dict(checkpoint.optimizer)
    return LoopState(**{f.name: checkpoint.state[f.name] for f in fields(LoopState) if f.name in checkpoint.state})


def train(
    model: nn.Module,
    optimizer: Optimizer,
    loader: Loader,
    loss_fn: LossFunction,
    schedule: Callable[[int], dict[str, float]],
    run_dir: RunDirectory,
    evaluations: Sequence[Evaluation],
    state: LoopState,
    *,
    accumulation: int = 1,
    observe: Callable[[], dict[str, object]] = dict,
) -> int:
    """Train from `state` to the end of the run; all ranks call it, joined.

    `schedule(step)` sets the learning rates of the update after `step` and returns what to log of them. A step is
    `accumulation` batches of the loader on each rank. `observe()` returns further values to log after a step.

    Returns the exit code: 0 done; 3 too many losses or gradients were not finite, the last before an update; 130 or 143
    stopped by SIGINT or SIGTERM after saving. Raises CheckpointError at the step after a checkpoint could not be
    written.
    """
    run, ranks, device, settings = run_dir.run, run_dir.run.ranks, run_dir.run.device, run_dir.run.settings
    first, per_step = state.step, run_dir.per_step
    trace = run.folder / "profile" / f"rank{ranks.rank}.json.gz"
    with (
        profiled(settings.profile, trace, device.type == "cuda", run_dir.say) as step_done,
        StopRequest() as stop,
        few_collections() as freeze,
    ):
        # Evaluate the starting weights (random, or the base model's) before the first step.
        evaluate(evaluations, model, run_dir, state.step)
        while state.step < run.num_iterations:
            began, waited = time.perf_counter(), loader.data_wait

            # Forward and backward. A batch that does not fit the memory is divided into micro-batches. `backward` adds
            # to the gradients, so with each loss divided by their number the sum is the batch's mean gradient.
            losses: list[Tensor] = []
            for _ in range(accumulation):
                batch = next_batch(loader, model, optimizer, run_dir, state)
                inputs, targets = to_device(batch.inputs, device), to_device(batch.targets, device)
                loss = loss_fn(inputs, targets) * batch.weight / accumulation
                loss.backward()
                losses.append(loss.detach())
            # Each rank saw other rows of the batch: the mean over ranks is the gradient of the whole batch, so the
            # update does not depend on how many devices share it. From here on all ranks have the same numbers.
            grad_norm, rank_losses = optimizer.reduce_gradients(sum(losses))
            loss_value = sum(rank_losses) / ranks.world_size

            # Skip the update if loss or gradient is nan or inf: one such number would spread to every weight.
            if not (math.isfinite(loss_value) and math.isfinite(grad_norm)):
                optimizer.zero_grad()
                state.skipped += 1
                cause = (
                    f"the gradient norm is {grad_norm}" if math.isfinite(loss_value) else f"the loss is {loss_value}"
                )
                report_non_finite(run_dir, state, cause)
                if state.skipped > settings.skip_bad_batches:
                    return EXIT_NON_FINITE
                continue

            # The update, at the learning rates of this step: large steps first, smaller ones at the end, when the noise
            # of single batches would keep the weights from settling.
            learning_rates = schedule(state.step)
            optimizer.step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # the update is only queued so far, and the clock is to count it
            state.step += 1
            state.loader = batch.state
            state.smooth_loss = SMOOTHING * state.smooth_loss + (1 - SMOOTHING) * loss_value
            seconds = time.perf_counter() - began
            state.seconds += seconds

            # Log it.
            values = {
                "loss": loss_value,
                # The average began at 0, which weighs SMOOTHING**step in it: divide by the rest (as Adam does).
                "smooth_loss": state.smooth_loss / (1 - SMOOTHING**state.step),
                **learning_rates,
                **{name: state.step * amount for name, amount in per_step.items()},
                **rates(per_step, seconds),
                **{"grad_norm": grad_norm, "seconds": seconds, "total_seconds": state.seconds},
                "data_wait": loader.data_wait - waited,
                "peak_memory": peak_memory(device),
                **loader.progress,
                **observe(),
            }
            run_dir.log("train", state.step, **values)
            run_dir.update(state.step, values)
            step_done()
            if state.step == first + 1:
                freeze()
                steady = state.seconds  # the first step still fills caches
            elif state.step == first + MFU_STEPS:
                warn_if_slow(run_dir, (state.seconds - steady) / (MFU_STEPS - 1))

            # Save if due, stop if asked, evaluate if due. All ranks agree before any of them leaves the loop.
            stopped, failed = ranks.any([stop.received is not None, run_dir.failed], device)
            if failed:
                run_dir.raise_failure()
            due = run.save_every and state.step % run.save_every == 0
            if due or stopped or state.step == run.num_iterations:
                save(model, optimizer, run_dir, state)
            if stopped:
                return run_dir.stop(stop.received, state.step)
            evaluate(evaluations, model, run_dir, state.step)
    return 0


def next_batch(
    loader: Iterator[Batch], model: nn.Module, optimizer: Optimizer, run_dir: RunDirectory, state: LoopState
) -> Batch:
    """The next micro-batch. If the data cannot be read, a run with a single rank saves its last finished step first."""
    try:
        return next(loader)
    except ValueError:
        if run_dir.run.ranks.world_size == 1 and state.step > 0:
            save(model, optimizer, run_dir, state)
            run_dir.wait()
        raise


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device; to a GPU from page-locked memory, the only kind that can travel while the CPU continues."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def save(model: nn.Module, optimizer: Optimizer, run_dir: RunDirectory, state: LoopState) -> None:
    """Start to write a checkpoint; all ranks call it."""
    run_dir.wait_for_turn()  # before the optimizer's copy is made: the host holds one at a time
    states = run_dir.run.ranks.gather(state.loader)
    loop = vars(state) | {"loader": merge_states(states) if "streams" in (states[0] or {}) else states[0]}
    run_dir.save(Checkpoint(state.step, model.state_dict(), optimizer.state_dict(), loop))


def evaluate(evaluations: Sequence[Evaluation], model: nn.Module, run_dir: RunDirectory, step: int) -> None:
    """Run and log the evaluations that are due."""
    for evaluation in evaluations:
        if step == run_dir.run.num_iterations or (evaluation.every > 0 and step % evaluation.every == 0):
            values = evaluation.run(model)
            done = {name: step * amount for name, amount in run_dir.per_step.items()}
            run_dir.log("eval", step, **done, **values)
            shown = {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in values.items()}
            numbers = [f"{name} {value}" for name, value in shown.items() if not isinstance(value, list)]
            lines = [line for value in values.values() if isinstance(value, list) for line in value]
            run_dir.say("\n".join([f"step {step}: {', '.join(numbers)}".rstrip(), *lines]))


def report_non_finite(run_dir: RunDirectory, state: LoopState, cause: str) -> None:
    """Log that a step was not finite, and what follows: its batch is skipped, or the run stops."""
    run, allowed = run_dir.run, run_dir.run.settings.skip_bad_batches
    if state.skipped <= allowed:
        run_dir.say(f"step {state.step + 1}: {cause}; batch skipped ({state.skipped} of {allowed})")
        run_dir.log("skip", state.step, cause=cause, skipped=state.skipped)
    elif run.ranks.is_main:
        had = f" ({allowed} such batches were skipped before it)" if allowed else ""
        print(
            f"stopped at step {state.step + 1} before its update: {cause}{had}. The weights are those of the last "
            f"update, and the checkpoints under {run.folder / 'checkpoints'} are untouched. Lower the learning rates "
            f"({run.lr_flag}), try --dtype float32, or skip such batches (--skip-bad-batches).",
            file=sys.stderr,
        )


def warn_if_slow(run_dir: RunDirectory, seconds: float) -> None:
    """Print a warning if steps of this length reach less than half of the FLOP/s that the cost estimate assumed."""
    peak = (run_dir.run.hardware.peak_flops or 0) * run_dir.run.ranks.world_size
    mfu = run_dir.per_step.get("flops", 0) / seconds / peak if peak else ASSUMED_MFU
    if mfu < ASSUMED_MFU / 2:
        run_dir.say(
            f"WARNING: training runs at {mfu:.0%} of the hardware's peak, expected about {ASSUMED_MFU:.0%}. It will "
            f"take {ASSUMED_MFU / mfu:.1f} times as long as the `cost` line says; scripts.gpu_first finds out why"
        )


@contextmanager
def few_collections() -> Iterator[Callable[[], None]]:
    """Yield a function that exempts all present objects from garbage collection until the end of the block.

    A full collection looks at every object of torch and its compiler. It takes 0.3 s, and all ranks wait for the one
    that collects.
    """

    def freeze() -> None:
        gc.collect()
        gc.freeze()

    try:
        yield freeze
    finally:
        gc.unfreeze()


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
