"""One forward and backward pass before the run: compiles, finds a batch that fits the memory."""

import gc
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from nanogka.model import GPT
from nanogka.train.metrics import duration
from nanogka.train.preparation import Preparation
from nanogka.train.sharded import ShardedOptimizer


def dry_run(prep: Preparation, model: GPT, loss_function: Callable, optimizer: ShardedOptimizer) -> Preparation:
    """Try a micro-batch of the full size, with room left for what the optimisers will hold.

    Where it does not fit on some rank and `--device-batch-size` was not given, all ranks go on with half of it, or the
    next smaller number that divides the rows of a step.

    Returns:
        The preparation with the micro-batch that fits.

    Raises:
        ValueError: if the one that was given does not fit, or one row does not.
    """
    began, ranks = time.perf_counter(), prep.ranks
    while (error := _try(prep, model, loss_function, optimizer)) is not None:
        rows = prep.device_batch_size
        given = prep.settings.device_batch_size is not None
        if given or rows == 1:
            advice = "half of it may" if rows > 1 else "try --activation-checkpointing or a shorter context"
            raise ValueError(
                f"--device-batch-size: got {rows}{'' if given else ' (found by halving)'}, which does not fit the "
                f"device's memory; {advice} ({error})"
            )
        of_step = rows * prep.accumulation
        fewer = max(n for n in range(1, rows // 2 + 1) if of_step % n == 0)
        prep = replace(prep, device_batch_size=fewer)
        if ranks.is_main:
            print(
                f"{rows} rows a device do not fit its memory: going on with {fewer} (× {prep.accumulation} "
                "micro-batches)",
                flush=True,
            )
    if ranks.is_main and prep.compile:
        print(f"compiled and tried a batch in {duration(time.perf_counter() - began)}", flush=True)
    return prep


def _try(prep: Preparation, model: GPT, loss_function: Callable, optimizer: ShardedOptimizer) -> str | None:
    """Why a micro-batch does not fit on some rank; None if it does on all."""
    error = None
    try:
        _forward_backward(prep, model, loss_function, optimizer)
    except torch.OutOfMemoryError as raised:
        error = (str(raised).splitlines() or ["no reason given"])[0]
    model.zero_grad(set_to_none=True)
    if error is not None:
        gc.collect()  # the graph of the attempt
    if prep.device.type == "cuda":
        torch.cuda.empty_cache()
    (failed,) = prep.ranks.sum([float(error is not None)], prep.device)
    return (error or "on another rank") if failed else None


def _forward_backward(prep: Preparation, model: GPT, loss_function: Callable, optimizer: ShardedOptimizer) -> None:
    shape = (prep.device_batch_size, prep.row_len)
    ids = torch.zeros(shape, dtype=torch.int64, device=prep.device)
    room = None
    if prep.device.type == "cuda":  # elsewhere there is one back-end, and memory is given out when it is written to
        room = torch.empty(optimizer.state_bytes_to_come(), dtype=torch.uint8, device=prep.device)
        model.measure_backends(shape[0])
    loss_function(ids, ids).backward()
    del room
