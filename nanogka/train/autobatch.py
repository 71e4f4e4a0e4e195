"""Find the largest micro-batch that fits the device's memory, by trying."""

import gc
import time

import torch

from nanogka.common.distributed import Ranks
from nanogka.common.formatting import duration
from nanogka.model import activation_bytes
from nanogka.train.estimate import held_bytes
from nanogka.train.plan import MicroBatch, TrainPlan
from nanogka.train.sharded_optimizer import ShardedOptimizer
from nanogka.train.trainer import LossFunction

MEMORY_SHARE = 0.95  # of the device's memory that the estimate may fill


def largest_batch(plan: TrainPlan, memory: int) -> MicroBatch:
    """Return the largest micro-batch that fits the memory by the estimate, or the plan's where there is none.

    A try that fails costs the compilation of its graph, minutes in which all devices are idle.
    """
    held = held_bytes(plan.config, plan.machine.ranks.world_size)
    batch, checkpointing, itemsize = plan.batch, plan.settings.activation_checkpointing, plan.machine.dtype.itemsize
    while batch.rows > 1:
        activations = activation_bytes(plan.config, batch.rows * batch.row_len, itemsize, checkpointing)
        if activations is None or held + activations < MEMORY_SHARE * memory:
            break
        batch = batch.smaller()
    return batch


def fit_batch(
    loss_fn: LossFunction,
    optimizer: ShardedOptimizer,
    batch: MicroBatch,
    device: torch.device,
    ranks: Ranks,
    *,
    fixed: bool = False,
    say_time: bool = False,
) -> MicroBatch:
    """Try a micro-batch forward and backward, and return the first of it and smaller ones that fits on every rank.

    The first try also compiles. Raises ValueError if one row does not fit, or if `batch` does not and is `fixed`.
    """
    began = time.perf_counter()
    while (error := _does_not_fit(loss_fn, optimizer, batch, device, ranks)) is not None:
        if fixed or batch.rows == 1:
            advice = "half of it may" if batch.rows > 1 else "try --activation-checkpointing or a shorter context"
            raise ValueError(
                f"device_batch_size: got {batch.rows}{'' if fixed else ' (found by halving)'}, which does not fit "
                f"the device's memory; {advice} ({error})"
            )
        rows, batch = batch.rows, batch.smaller()
        if ranks.is_main:
            smaller = f"{batch.rows} (× {batch.accumulation} micro-batches)"
            print(f"{rows} rows per device do not fit its memory: continuing with {smaller}", flush=True)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # a failed try is not part of the training's peak
    if ranks.is_main and say_time:
        print(f"compiled and tried a batch in {duration(time.perf_counter() - began)}", flush=True)
    return batch


def _does_not_fit(
    loss_fn: LossFunction, optimizer: ShardedOptimizer, batch: MicroBatch, device: torch.device, ranks: Ranks
) -> str | None:
    """Return why a micro-batch does not fit on some rank; None if it fits on all."""
    error = None
    try:
        try_batch(loss_fn, optimizer, batch, device)
    except torch.OutOfMemoryError as raised:
        error = (str(raised).splitlines() or ["no reason given"])[0]
    optimizer.zero_grad()
    if error is not None:
        gc.collect()  # its graph; to collect takes a tenth of a second or more
    if device.type == "cuda":
        torch.cuda.empty_cache()  # cached blocks of other sizes would fragment the next attempt
    (failed,) = ranks.any([error is not None], device)
    return (error or "on another rank") if failed else None


def try_batch(loss_fn: LossFunction, optimizer: ShardedOptimizer, batch: MicroBatch, device: torch.device) -> None:
    """One forward and backward pass of a full micro-batch, with room left for the optimizer state."""
    ids = torch.zeros((batch.rows, batch.row_len), dtype=torch.int64, device=device)
    reserved = None
    # The state exists only after the first step, which must not be the one that runs out of memory.
    if device.type == "cuda":  # elsewhere the system allocates pages when they are first written
        reserved = torch.empty(optimizer.expected_state_bytes(), dtype=torch.uint8, device=device)
    targets = ids.clone()  # with one tensor as both, torch.compile makes a graph that training cannot use
    loss_fn(ids, targets).backward()
    if device.type == "cuda" and batch.accumulation > 1:
        # From the second micro-batch on, the gradients occupy memory during the forward pass.
        loss_fn(ids, targets).backward()
    del reserved
