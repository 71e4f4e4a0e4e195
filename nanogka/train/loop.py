"""The training loop, from data to update: of language models, their fine-tuning and image models.

A step is: micro-batches forward and backward, gradients averaged over ranks, a check that loss and gradients are
finite, the update. After it: log, save if due, evaluate if due, in this order, so that an evaluation that fails cannot
lose the step. Neither training nor an evaluation waits for a checkpoint to reach the disk.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields

import torch
from torch import nn

from nanogka import dispatch
from nanogka.checkpoint import Checkpoint, load_checkpoint
from nanogka.common.runtime import peak_memory
from nanogka.common.signals import StopRequest
from nanogka.data.loader import Batch
from nanogka.train.context import Optimizer, RunContext
from nanogka.train.folder import RunFolder, locked, tidy
from nanogka.train.profile import profiled
from nanogka.train.survival import NonFiniteReport, fit_batch, locate_non_finite, reproducible_on_cpu

SMOOTHING = 0.9  # of the loss that people see
EXIT_NON_FINITE = 3


@dataclass(frozen=True)
class Evaluation:
    """A measurement during training: `run(model)` returns numbers, or lists of lines, to log under their names.

    All ranks call it, every `every` steps (0: only at the end), the first time before training.
    """

    every: int
    run: Callable[[nn.Module], dict[str, float | list[str]]]


@dataclass
class LoopState:
    """The state of the loop that a checkpoint keeps beside weights and optimizers."""

    step: int = 0  # finished updates
    loader: dict | None = None  # state of the data after them; None at the start, and where the step says it all
    smooth_loss: float = 0.0  # exponential average, not yet corrected for its start at 0
    seconds: float = 0.0  # of all steps
    skipped: int = 0  # batches that were not finite


def train(run: RunContext, evaluations: Sequence[Evaluation]) -> int:
    """Train from the start or a checkpoint to the end of the horizon; all ranks call it, joined.

    Returns the exit code: 0 done, 3 a loss or gradient was not finite once too often (before the update that would have
    spoilt the weights), 130 or 143 stopped by SIGINT or SIGTERM after saving. Raises CheckpointError at the step after
    a checkpoint could not be written.
    """
    if run.complete:
        tidy(run)
        return 0
    settings, ranks, device = run.settings, run.ranks, run.device
    with locked(run), reproducible_on_cpu(device):
        choose_kernels(run)

        # The model, what updates it, and where it goes on from.
        model = run.build_model()
        optimizer = run.build_optimizer(model)
        state = restore(run, model, optimizer)
        loss_function = run.build_loss(model)
        fit_batch(run, model, loss_function, optimizer)
        save_every = settings.save_every * run.period

        with (
            RunFolder(run, state.step) as folder,
            open_loader(run, state) as loader,
            profiled(run, folder.say) as step_done,
            StopRequest() as stop,
        ):
            # Before the first step, a measurement of what was not learned here: initial weights, or a base model.
            evaluate(run, evaluations, model, folder, state.step)
            while state.step < run.num_iterations:
                began, waited = time.perf_counter(), loader.data_wait

                # Forward and backward. A batch that does not fit the memory goes through in micro-batches: `backward`
                # adds to the gradients, so with each loss divided by their number the sum is the batch's mean gradient.
                batches: list[Batch] = []
                losses: list[torch.Tensor] = []
                for _ in range(run.accumulation):
                    batch = next_batch(run, loader, model, optimizer, folder, state)
                    inputs, targets = (t.to(device, non_blocking=True) for t in (batch.inputs, batch.targets))
                    loss = loss_function(inputs, targets) * batch.weight / run.accumulation
                    loss.backward()
                    batches.append(batch)
                    losses.append(loss.detach())
                # Each rank saw other rows of the batch: the mean over ranks is the gradient of the whole, so that the
                # update does not depend on how many devices share it. From here on all ranks have the same numbers.
                grad_norm, rank_losses = optimizer.reduce_gradients(sum(losses))
                loss_value = sum(rank_losses) / ranks.world_size

                # Skip the update if loss or gradient is nan or inf: one such number would spread to every weight.
                if not (math.isfinite(loss_value) and math.isfinite(grad_norm)):
                    optimizer.zero_grad()
                    state.skipped += 1
                    repeat = run.repeats_bad_batches
                    reports = locate_non_finite(run, model, loss_function, batches) if repeat else []
                    report_non_finite(run, folder, state, loss_value, grad_norm, reports)
                    if state.skipped > settings.skip_bad_batches:
                        return EXIT_NON_FINITE
                    continue

                # The update, at the learning rates of this step: large steps first, ever smaller ones at the end, when
                # the noise of single batches would keep the weights from settling.
                rates = run.set_rates(optimizer, state.step)
                optimizer.step()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)  # the update is only queued so far; the clock is to count it
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
                    **rates,
                    **run.costs(state.step, seconds),
                    **{"grad_norm": grad_norm, "seconds": seconds, "total_seconds": state.seconds},
                    "data_wait": loader.data_wait - waited,
                    "peak_memory": peak_memory(device),
                    **loader.progress,
                    **run.observe(model, batches),
                }
                folder.log("train", state.step, **values)
                folder.update(state.step, run.summary(values))
                step_done()

                # Save if due, stop if asked, evaluate if due. All ranks agree before any of them leaves the loop.
                stopped, failed = ranks.any([stop.received is not None, folder.failed], device)
                if failed:
                    folder.raise_failure()
                due = save_every and state.step % save_every == 0
                if due or stopped or state.step == run.num_iterations:
                    save(run, model, optimizer, folder, state)
                if stopped:
                    return folder.stop(ranks, stop.received, state.step)
                evaluate(run, evaluations, model, folder, state.step)
    return 0


def choose_kernels(run: RunContext) -> None:
    """Try the kernels of the device and print the choice; torch.compile could not try one while it traces."""
    kernels = dispatch.prepare(run.device, run.dtype, training=True)
    if run.ranks.is_main and kernels:
        print("kernels    " + ", ".join(f"{name}: {choice}" for name, choice in kernels.items()), flush=True)


def restore(run: RunContext, model: nn.Module, optimizer: Optimizer) -> LoopState:
    """Load weights, optimizers and loop from the checkpoint to resume from, or only the initial weights."""
    if run.resume_from is None:
        if (weights := run.initial_weights()) is not None:
            run.load_weights(model, weights, "the model to start from")
        return LoopState()
    checkpoint = load_checkpoint(run.resume_from)
    run.load_weights(model, checkpoint.weights, f"--resume: {run.resume_from}")
    optimizer.load_state_dict(checkpoint.optimizer)
    return LoopState(**{f.name: checkpoint.state[f.name] for f in fields(LoopState) if f.name in checkpoint.state})


def open_loader(run: RunContext, state: LoopState) -> AbstractContextManager:
    """The batches after those that the state has seen."""
    try:
        return run.loader(state.loader, state.step)
    except ValueError as error:
        raise ValueError(f"{run.resume_from}: {error}" if run.resume_from else str(error)) from error


def save(run: RunContext, model: nn.Module, optimizer: Optimizer, folder: RunFolder, state: LoopState) -> None:
    """Start to write a checkpoint; all ranks call it."""
    loop = vars(state) | {"loader": run.merge_states(run.ranks.gather(state.loader))}
    folder.save(Checkpoint(state.step, run.state_dict(model), optimizer.state_dict(), loop))


def next_batch(
    run: RunContext,
    loader: Iterator[Batch],
    model: nn.Module,
    optimizer: Optimizer,
    folder: RunFolder,
    state: LoopState,
) -> Batch:
    """The next micro-batch. If the data cannot be read, a run with a single rank saves its last finished step first."""
    try:
        return next(loader)
    except ValueError:
        if run.ranks.world_size == 1 and state.step > 0:
            save(run, model, optimizer, folder, state)
            folder.wait()
        raise


def evaluate(
    run: RunContext, evaluations: Sequence[Evaluation], model: nn.Module, folder: RunFolder, step: int
) -> None:
    """Run and log the evaluations that are due."""
    for evaluation in evaluations:
        every = evaluation.every * run.period
        if step == run.num_iterations or (every > 0 and step % every == 0):
            values = evaluation.run(model)
            folder.log("eval", step, **(run.costs(step) | values))
            shown = {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in values.items()}
            numbers = [f"{name} {value}" for name, value in shown.items() if not isinstance(value, list)]
            lines = [line for value in values.values() if isinstance(value, list) for line in value]
            folder.say("\n".join([f"step {step}: {', '.join(numbers)}".rstrip(), *lines]))


def report_non_finite(
    run: RunContext, folder: RunFolder, state: LoopState, loss: float, norm: float, reports: list[NonFiniteReport]
) -> None:
    """Log which batch was not finite, and what follows: it is skipped, or the run stops."""
    cause = f"the gradient norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}"
    lines = "".join(f"\n  {report.describe()}" for report in reports)
    allowed = run.settings.skip_bad_batches
    if state.skipped <= allowed:
        folder.say(f"step {state.step + 1}: {cause}; batch skipped ({state.skipped} of {allowed}){lines}")
        findings = [asdict(report) for report in reports]
        folder.log("skip", state.step, cause=cause, skipped=state.skipped, findings=findings)
    elif run.ranks.is_main:
        had = f" ({allowed} such batches were skipped before it)" if allowed else ""
        print(
            f"stopped at step {state.step + 1} before its update: {cause}{had}. The weights of step {state.step} are "
            f"sound, and the checkpoints under {run.folder / 'checkpoints'} are untouched. Lower the learning rates "
            f"({run.rate_flag}), try --dtype float32, or skip such batches (--skip-bad-batches).{lines}",
            file=sys.stderr,
        )
