"""The training loop, from data to update.

    run = prepare(settings, ranks, problems)
    with ranks.joined(run.device):
        exit_code = train(run, [Evaluation(250, measure)])

A step is: micro-batches forward and backward, gradients averaged over ranks, a check that loss and gradients are
finite, the update. After it: log, save if due, evaluate if due, in this order, so that an evaluation cannot lose the
step. Training does not wait for a checkpoint to reach the disk; an evaluation does.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from nanogka.checkpoint import Checkpoint, load_checkpoint, load_weights
from nanogka.data import Batch
from nanogka.formatting import si
from nanogka.model import GPT
from nanogka.signals import StopRequest
from nanogka.train.folder import RunFolder, locked
from nanogka.train.optimizer import Schedule
from nanogka.train.setup import RunContext
from nanogka.train.survival import (
    NonFiniteReport,
    fit_batch,
    locate_non_finite,
    reproducible_on_cpu,
)
from nanogka.train.zero import ShardedOptimizer

SMOOTHING = 0.9  # of the loss that people see
EXIT_NON_FINITE = 3


@dataclass(frozen=True)
class Evaluation:
    """A measurement during training: `run(model)` returns numbers, or lists of lines, to log under their names.

    All ranks call it, every `every` steps (0: only at the end).
    """

    every: int
    run: Callable[[GPT], dict[str, float | list[str]]]


@dataclass
class LoopState:
    """The state of the loop that a checkpoint keeps beside weights and optimisers.

    Attributes:
        step: finished updates.
        loader: state of the data after them; None at the start.
        smooth_loss: exponential average, not yet corrected for its start at 0.
        seconds: of all steps.
        skipped: batches that were not finite.
    """

    step: int = 0
    loader: dict | None = None
    smooth_loss: float = 0.0
    seconds: float = 0.0
    skipped: int = 0


def train(run: RunContext, evaluations: Sequence[Evaluation]) -> int:
    """Train from the start or a checkpoint to the end of the horizon; all ranks call it, joined.

    Returns:
        Exit code: 0 done, 3 a loss or gradient was not finite once too often (before the update that would have spoilt
        the weights), 130 or 143 stopped by SIGINT or SIGTERM after saving.

    Raises:
        ValueError: if a micro-batch does not fit the device's memory, or the run cannot be entered, see `locked`.
        CheckpointError: at the step after a checkpoint could not be written.
    """
    if run.complete:
        return 0
    settings, ranks, device, horizon = run.settings, run.ranks, run.device, run.horizon
    with locked(run), reproducible_on_cpu(device):
        # The model, what updates it, and where it goes on from.
        model = GPT(run.config, seed=settings.seed, compute_dtype=run.dtype).to(device)
        model.activation_checkpointing = settings.activation_checkpointing
        muon_dtype = torch.bfloat16 if run.dtype == torch.bfloat16 else torch.float32
        optimizer = ShardedOptimizer(model, settings.rates, horizon, muon_dtype, ranks)
        schedule = Schedule(
            horizon.num_iterations, settings.warmup_ratio, settings.warmdown_ratio, settings.final_lr_frac
        )
        state = restore(run, model, optimizer)
        loss_function = torch.compile(model, dynamic=False) if run.compile else model
        run = fit_batch(run, model, loss_function, optimizer)

        with RunFolder(run, state.step) as folder, run.loader(state.loader) as loader, StopRequest() as stop:
            evaluate(run, evaluations, model, folder, state.step)
            while state.step < horizon.num_iterations:
                began, waited = time.perf_counter(), loader.data_wait

                # Forward and backward: the gradients of all micro-batches add up.
                batches: list[Batch] = []
                losses: list[torch.Tensor] = []
                for _ in range(run.accumulation):
                    batch = next_batch(run, loader, model, optimizer, folder, state)
                    inputs, targets = (t.to(device, non_blocking=True) for t in (batch.inputs, batch.targets))
                    loss = loss_function(inputs, targets) * batch.weight / run.accumulation
                    loss.backward()
                    batches.append(batch)
                    losses.append(loss.detach())
                grad_norm, rank_losses = optimizer.reduce_gradients(sum(losses))
                loss_value = sum(rank_losses) / ranks.world_size

                # Skip the update if the loss or a gradient is NaN or infinite.
                if not (math.isfinite(loss_value) and math.isfinite(grad_norm)):
                    optimizer.zero_grad()
                    state.skipped += 1
                    reports = locate_non_finite(run, model, loss_function, batches)
                    report_non_finite(run, folder, state, loss_value, grad_norm, reports)
                    if state.skipped > settings.skip_bad_batches:
                        return EXIT_NON_FINITE
                    continue

                # The update.
                lr_scale = schedule.apply(optimizer.optimizers, state.step)
                optimizer.step()
                state.step += 1
                state.loader = batch.state
                state.smooth_loss = SMOOTHING * state.smooth_loss + (1 - SMOOTHING) * loss_value
                seconds = time.perf_counter() - began
                state.seconds += seconds

                # Log it.
                values = {
                    "loss": loss_value,
                    "smooth_loss": state.smooth_loss / (1 - SMOOTHING**state.step),
                    "lr_scale": lr_scale,
                    **costs(run, state.step, seconds),
                    "grad_norm": grad_norm,
                    "seconds": seconds,
                    "total_seconds": state.seconds,
                    "data_wait": loader.data_wait - waited,
                    **loader.progress,
                    **observations(model),
                }
                folder.log("train", state.step, **values)
                folder.update(state.step, summary(run, values))

                # Save if due, stop if asked, evaluate if due.
                stopped, failed = ranks.any([stop.received is not None, folder.failed], device)
                if failed:
                    folder.raise_failure()
                due = settings.save_every and state.step % settings.save_every == 0
                if due or stopped or state.step == horizon.num_iterations:
                    save(run, model, optimizer, folder, state)
                if stopped:
                    return folder.stop(ranks, stop.received, state.step)
                evaluate(run, evaluations, model, folder, state.step)
    return 0


def restore(run: RunContext, model: GPT, optimizer: ShardedOptimizer) -> LoopState:
    """Load weights, optimisers and loop from the checkpoint to resume from, or only the initial weights."""
    if run.resume_from is None:
        if (weights := run.initial_weights()) is not None:
            load_weights(model, weights, "the model to start from")
        return LoopState()
    checkpoint = load_checkpoint(run.resume_from)
    load_weights(model, checkpoint.weights, f"--resume: {run.resume_from}")
    optimizer.load_state_dict(checkpoint.optimizer)
    saved = checkpoint.state
    loss, seconds = saved["smooth_loss"], saved["seconds"]
    return LoopState(checkpoint.step, saved["loader"], loss, seconds, saved.get("skipped", 0))


def save(run: RunContext, model: GPT, optimizer: ShardedOptimizer, folder: RunFolder, state: LoopState) -> None:
    """Start to write a checkpoint; all ranks call it."""
    loaders, optimizer_state = run.ranks.gather(state.loader), optimizer.state_dict()
    loop = {
        "loader": run.merge_states(loaders),
        "smooth_loss": state.smooth_loss,
        "seconds": state.seconds,
        "skipped": state.skipped,
    }
    folder.save(Checkpoint(state.step, model.state_dict(), optimizer_state, loop))


def next_batch(
    run: RunContext,
    loader: Iterator[Batch],
    model: GPT,
    optimizer: ShardedOptimizer,
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


def evaluate(run: RunContext, evaluations: Sequence[Evaluation], model: GPT, folder: RunFolder, step: int) -> None:
    """Run and log the evaluations that are due."""
    for evaluation in evaluations:
        due = evaluation.every > 0 and step % evaluation.every == 0
        if due or step == run.horizon.num_iterations:
            folder.wait()  # an evaluation that brings the process down must not lose the step
            values = evaluation.run(model)
            folder.score(step, values)
            tokens = step * run.horizon.total_batch_size
            folder.log("eval", step, tokens=tokens, flops=tokens * run.accounting.flops_per_token, **values)
            numbers = [f"{name} {value:.4f}" for name, value in values.items() if not isinstance(value, list)]
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
        findings = [report.to_dict() for report in reports]
        folder.log("skip", state.step, cause=cause, skipped=state.skipped, findings=findings)
    elif run.ranks.is_main:
        had = f" ({allowed} such batches were skipped before it)" if allowed else ""
        print(
            f"stopped at step {state.step + 1} before its update: {cause}{had}. The weights of step {state.step} are "
            f"sound, and the checkpoints under {run.folder / 'checkpoints'} are untouched. Lower the learning rates "
            f"(--lr-scale), try --dtype float32, or skip such batches (--skip-bad-batches).{lines}",
            file=sys.stderr,
        )


def costs(run: RunContext, step: int, seconds: float) -> dict[str, float]:
    """Tokens and FLOPs up to a step, and their rates in it."""
    tokens, flops_per_token = run.horizon.total_batch_size, run.accounting.flops_per_token
    return {
        "tokens": step * tokens,
        "flops": step * tokens * flops_per_token,
        "tokens_per_second": tokens / seconds,
        "flops_per_second": tokens * flops_per_token / seconds,
    }


def observations(model: GPT) -> dict[str, object]:
    """Values that the mixers want logged, σ among them: of each head in the layers that have them, and these layers."""
    values: dict[str, object] = {}
    for name, layers in ({"bandwidth": {}} | model.observations()).items():
        heads = [vector.tolist() for vector in layers.values()]
        every = [value for vector in heads for value in vector]
        values |= {f"{name}_min": min(every, default=None), f"{name}_max": max(every, default=None)}
        values |= {name: heads, f"{name}_layers": list(layers)}
    return values


def summary(run: RunContext, values: dict) -> str:
    """A step in half a line, for the progress bar."""
    flops, peak = values["flops_per_second"], run.hardware.peak_flops
    mfu = f" ({flops / (peak * run.ranks.world_size):.0%} MFU)" if peak else ""
    wait = values["data_wait"] / values["seconds"]
    waiting = f"  data wait {wait:.0%}" if wait > 0.01 else ""
    return f"loss {values['smooth_loss']:.3f}  {si(values['tokens_per_second'])} tok/s  {si(flops)}FLOP/s{mfu}{waiting}"
