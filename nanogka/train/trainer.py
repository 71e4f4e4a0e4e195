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
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from nanogka.checkpoint import Checkpoint
from nanogka.common.distributed import Ranks
from nanogka.common.runtime import peak_memory
from nanogka.common.signals import EXIT_CODES, StopRequest, stop_request
from nanogka.data.loader import Batch
from nanogka.model import GPT
from nanogka.train.optimizer import Schedule
from nanogka.train.plan import TrainPlan
from nanogka.train.profile import profiled
from nanogka.train.progress import describe_numbers, rates
from nanogka.train.resume import LoopState
from nanogka.train.run_log import RunLog
from nanogka.train.sharded_optimizer import ShardedOptimizer

SMOOTHING = 0.9  # of the loss that people see: an average over about ten steps
EXIT_NON_FINITE = 3

# From inputs, targets and, if the batch has them, weights of its tokens, to the loss of a micro-batch.
LossFunction = Callable[..., Tensor]


class Loader(Protocol):
    """An endless iterator over batches."""

    data_wait: float  # seconds that the loop has waited for batches

    @property
    def progress(self) -> Mapping[str, object]:
        """Values to log, up to the last batch."""

    def __next__(self) -> Batch: ...

    def merge(self, states: Sequence[dict]) -> dict:
        """Merge the states of all ranks after a step into one from which any number of ranks can resume."""


@dataclass(frozen=True)
class Evaluation:
    """A measurement during training: `run(model)` returns numbers, or lists of lines, to log under their names.

    All ranks call it, every `every` steps (0: only at the end), the first time before training.
    """

    every: int
    run: Callable[[GPT], Mapping[str, float | list[str]]]


def train(
    plan: TrainPlan,
    model: GPT,
    optimizer: ShardedOptimizer,
    schedule: Schedule,
    loader: Loader,
    loss_fn: LossFunction,
    log: RunLog,
    evaluations: Sequence[Evaluation],
    state: LoopState,
) -> int:
    """Train from `state` to the end of the run; all ranks call it, joined. Returns the exit code (docs/training.md).

    A step is as many batches of the loader on each rank as the run has micro-batches per step. Raises CheckpointError
    at the step after a checkpoint could not be written.
    """
    ranks, device, settings = plan.machine.ranks, plan.machine.device, plan.settings
    first = saved = state.step
    trace = plan.folder / "profile" / f"rank{ranks.rank}.json.gz"
    with (
        profiled(settings.profile, trace, device.type == "cuda", log.say) as step_done,
        stop_request() as stop,
        ExitStack() as at_end,
    ):
        # Evaluate the starting weights (random, or the base model's) before the first step.
        evaluate(plan, evaluations, model, log, state)
        while state.step < plan.num_iterations:
            began, waited = time.perf_counter(), loader.data_wait

            batch, loss, tokens = forward_backward(loader, loss_fn, plan.batch.accumulation, ranks.world_size, device)
            # Each rank saw other rows of the batch: the mean over ranks is the gradient of the whole batch, so the
            # update does not depend on how many devices share it. From here on all ranks have the same numbers.
            grad_norm, rank_losses = optimizer.reduce_gradients(loss)
            loss_value = sum(rank_losses) / ranks.world_size

            # Skip the update if loss or gradient is nan or inf: one such number would spread to every weight.
            finite = math.isfinite(loss_value) and math.isfinite(grad_norm)
            if finite:
                # The update, at the learning rates of this step: large steps first, smaller ones at the end, when the
                # noise of single batches would keep the weights from settling.
                learning_rates = schedule.apply(optimizer.optimizers, state.step)
                optimizer.step()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)  # the update is only queued so far, and its time counts
                seconds, data_wait = time.perf_counter() - began, loader.data_wait - waited
                state.step, state.tokens = state.step + 1, state.tokens + tokens
                timing = {"seconds": seconds, "data_wait": data_wait, "peak_memory": peak_memory(device)}
                values = {"grad_norm": grad_norm, **learning_rates, **timing, **loader.progress, **observations(model)}
                log_step(plan, log, state, tokens, loss_value, values)
                if step_done is not None:
                    step_done()
            else:
                optimizer.zero_grad()
                state.skipped += 1
                report_non_finite(plan, log, state, loss_value, grad_norm)
                if state.skipped > settings.skip_bad_batches:
                    return EXIT_NON_FINITE
            # The loader's state counts only now: had this step failed, a resumed run would read its batch again.
            state.loader = batch.state
            if finite and state.step == first + 1:
                # From now on the garbage collector skips what exists, mainly objects of torch and its compiler.
                # A full collection would visit all of them for 0.3 s, while the other ranks wait.
                gc.collect()
                gc.freeze()
                at_end.callback(gc.unfreeze)

            # Save before evaluating, which may fail or take long. All ranks agree before any of them leaves the loop: a
            # rank that left alone would keep the others waiting in the next collective.
            stopped, failed = ranks.any([stop.received is not None, log.failed], device)
            if failed:
                log.raise_failure()
            due = settings.save_every and state.step % settings.save_every == 0
            if state.step > saved and (due or stopped or state.step == plan.num_iterations):
                save(plan, model, optimizer, loader, log, state)
                saved = state.step
            if stopped:
                return report_stop(ranks, log, stop, state)
            if finite:
                evaluate(plan, evaluations, model, log, state)
    return 0


def forward_backward(
    loader: Loader, loss_fn: LossFunction, accumulation: int, world_size: int, device: torch.device
) -> tuple[Batch, Tensor, int]:
    """Add the gradients of a step's micro-batches to the parameters.

    Returns the last batch, the mean loss, and the number of tokens that passed through the model on all ranks.
    A batch that does not fit the memory is divided into micro-batches. `backward` adds to the gradients, so with each
    loss divided by their number the sum is the batch's mean gradient.
    """
    losses: list[Tensor] = []
    tokens, batch = 0, None
    for _ in range(accumulation):
        batch = next(loader)
        parts = [batch.inputs, batch.targets, *([] if batch.token_weights is None else [batch.token_weights])]
        loss = loss_fn(*(to_device(part, device) for part in parts)) * batch.weight / accumulation
        loss.backward()
        losses.append(loss.detach())  # stays on the device: reading the number here would wait for the GPU
        tokens += batch.inputs.numel() * world_size if batch.tokens is None else batch.tokens
    assert batch is not None, "a step has at least one micro-batch"
    return batch, sum(losses[1:], losses[0]), tokens


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device; to a GPU from page-locked memory, the only kind that can travel while the CPU continues."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def log_step(
    plan: TrainPlan, log: RunLog, state: LoopState, tokens: int, loss: float, values: Mapping[str, Any]
) -> None:
    """Log a step of so many tokens: its loss, amounts and speeds, and `values`. Updates the sums in `state`."""
    state.seconds += values["seconds"]
    state.smooth_loss = SMOOTHING * state.smooth_loss + (1 - SMOOTHING) * loss
    done, speeds = plan.amounts(state.tokens), rates(plan.amounts(tokens), values["seconds"])
    # The average began at 0, which weighs SMOOTHING**step in it: divide by the rest (as Adam does).
    smooth = state.smooth_loss / (1 - SMOOTHING**state.step)
    totals = {"loss": loss, "smooth_loss": smooth, **done, **speeds, "total_seconds": state.seconds}
    log.log("train", state.step, **totals, **values)


def observations(model: GPT) -> dict[str, object]:
    """Values of the mixers to log, such as σ: per head, and the layers that have them."""
    values: dict[str, object] = {}
    for name, layers in ({"bandwidth": {}} | model.observations()).items():
        heads = [vector.tolist() for vector in layers.values()]
        every = [value for vector in heads for value in vector]
        values |= {f"{name}_min": min(every, default=None), f"{name}_max": max(every, default=None)}
        values |= {name: heads, f"{name}_layers": list(layers)}
    return values


def save(
    plan: TrainPlan, model: GPT, optimizer: ShardedOptimizer, loader: Loader, log: RunLog, state: LoopState
) -> None:
    """Start to write a checkpoint; all ranks call it."""
    loop = vars(state) | {"loader": loader.merge(plan.machine.ranks.all_gather(state.loader))}
    log.save(lambda: Checkpoint(state.step, model.state_dict(), optimizer.state_dict() or {}, loop))


def evaluate(plan: TrainPlan, evaluations: Sequence[Evaluation], model: GPT, log: RunLog, state: LoopState) -> None:
    """Run and log the evaluations that are due."""
    step, seconds = state.step, dict[int, float]()
    for evaluation in evaluations:
        if step == plan.num_iterations or (evaluation.every > 0 and step % evaluation.every == 0):
            began = time.perf_counter()
            values = evaluation.run(model)
            seconds[evaluation.every] = seconds.get(evaluation.every, 0.0) + time.perf_counter() - began
            log.log("eval", step, **plan.amounts(state.tokens), **values)
            numbers = ", ".join(describe_numbers(values))
            lines = [line for value in values.values() if isinstance(value, list) for line in value]
            log.say("\n".join([f"step {step}: {numbers}".rstrip(), *lines]))
    log.evaluated(seconds)


def report_stop(ranks: Ranks, log: RunLog, stop: StopRequest, state: LoopState) -> int:
    """Wait for the checkpoint, print which signal ended the run, and return its exit code. All ranks call it."""
    log.wait()
    number = max(ranks.all_gather(stop.received or 0))  # the signal may have reached one rank alone
    name = next(signal.name for signal in EXIT_CODES if signal == number)
    log.say(f"stopped by {name} after step {state.step}; --resume auto continues from there")
    return EXIT_CODES[number]


def report_non_finite(plan: TrainPlan, log: RunLog, state: LoopState, loss: float, grad_norm: float) -> None:
    """Log that a step was not finite, and what follows: its batch is skipped, or the run stops."""
    allowed = plan.settings.skip_bad_batches
    cause = f"the gradient norm is {grad_norm}" if math.isfinite(loss) else f"the loss is {loss}"
    if state.skipped <= allowed:
        log.say(f"step {state.step + 1}: {cause}; batch skipped ({state.skipped} of {allowed})")
        log.log("skip", state.step, cause=cause, skipped=state.skipped)
    elif plan.machine.ranks.is_main:
        had = f" ({allowed} such batches were skipped before it)" if allowed else ""
        print(
            f"stopped at step {state.step + 1} before its update: {cause}{had}. The weights are those of the last "
            f"update, and the checkpoints under {plan.folder / 'checkpoints'} are untouched. Lower the learning rates "
            f"(--lr-scale), try --dtype float32, or skip such batches (--skip-bad-batches).",
            file=sys.stderr,
        )


@contextmanager
def reproducible_on_cpu(device: torch.device) -> Iterator[None]:
    """Keep sums in one order on a CPU, where a resumed run promises the same losses bit for bit.

    Otherwise all threads add to a compiled embedding's gradient at once, in an order that varies.
    """
    options: Any = torch.utils.deterministic  # a module of properties, which torch does not declare
    before, filled = torch.are_deterministic_algorithms_enabled(), options.fill_uninitialized_memory
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
        options.fill_uninitialized_memory = False  # a debugging aid that costs time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        options.fill_uninitialized_memory = filled
