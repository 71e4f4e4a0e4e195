"""Evaluating tasks, alone or shared over processes, with a journal of what is done.

    ((result, predictions),) = evaluate_tasks(model, tokenizer, [data], max_items=500, new_cache=DecodeCache)

Items are taken in chunks of `ITEMS_PER_CHUNK`. A chunk's batches depend on nothing but the chunk; so it gives the same
numbers to the last bit whichever process runs it, and before or after an interruption.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tqdm import tqdm

from nanogka.evaluate.in_context import Prediction, default_batch_tokens, evaluate_chunk, sum_up
from nanogka.evaluate.journal import Journal, task_key
from nanogka.evaluate.prompts import check_enough_items, item_order
from nanogka.evaluate.scores import TaskResult
from nanogka.evaluate.stems import CacheMaker
from nanogka.evaluate.task import TaskData

# Enough to sort well by length; few enough that ranks share evenly, that little is lost to an interruption, and that
# ten-shot prompts of all choices (64 · 4 · 1000 tokens) are small in memory.
ITEMS_PER_CHUNK = 64


class Ranks(Protocol):
    """The processes that share an evaluation (`nanogka.train.distributed.Ranks` is one)."""

    rank: int
    world_size: int

    def gather(self, value: object) -> list:
        """Every process's value, by rank."""


@dataclass(frozen=True)
class Alone:
    """One process."""

    rank: int = 0
    world_size: int = 1

    def gather(self, value: object) -> list:
        """The value in a list."""
        return [value]


@dataclass(frozen=True)
class _Chunk:
    """Items from place `first` of the task at `task` among all."""

    task: int
    first: int


def evaluate_tasks(
    model,
    tokenizer,
    tasks: Sequence[TaskData],
    *,
    max_items: int | None = None,
    batch_tokens: int | None = None,
    new_cache: CacheMaker | None = None,
    ranks: Ranks | None = None,
    journal: Journal | None = None,
    progress: bool = True,
) -> list[tuple[TaskResult, list[Prediction]]]:
    """Score the items of the tasks and sum them up.

    Args:
        model: `nanogka.model.GPT` or anything with its `hidden`, `unembed`, `config`, `device`, `training`.
        tokenizer: `encode_batch(texts) -> list of token lists` and `bos_id`.
        max_items: evaluate this many of a task's shuffled items; the examples come from them too, as nanochat has it.
        batch_tokens: the most tokens of one batch, padding included; None: what suits the device.
        new_cache: makes a decode cache of the model, to run once what an item's choices begin with; None for a model
            without: every choice is then run whole.
        ranks: the processes that share the items; all of them must call this, and all get everything.
        journal: where to look up and keep what is done.
        progress: show a bar (of this process's share) if stderr is a terminal.

    Returns:
        Of each task the result, its seconds summed over the processes, and one prediction an item, in shuffled order.

    Raises:
        ValueError: if a task has too few items for its examples.
    """
    ranks = ranks or Alone()
    orders = [item_order(len(data.items), max_items) for data in tasks]
    for data, order in zip(tasks, orders):
        check_enough_items(data, len(order))
    chunks = [_Chunk(task, i) for task, order in enumerate(orders) for i in range(0, len(order), ITEMS_PER_CHUNK)]
    mine = chunks[ranks.rank :: ranks.world_size]
    keys = [task_key(data, len(order)) if journal else "" for data, order in zip(tasks, orders)]
    options = {"sequence_len": model.config.sequence_len, "new_cache": new_cache}
    options["batch_tokens"] = batch_tokens or default_batch_tokens(model.device)
    was_training = model.training
    model.eval()
    done: dict[_Chunk, tuple[list[Prediction], float]] = {}
    total = sum(len(_places(chunk, orders)) for chunk in mine)
    try:
        with tqdm(total=total, unit="item", leave=False, disable=None if progress and ranks.rank == 0 else True) as bar:
            for chunk in mine:
                bar.set_description(tasks[chunk.task].task.name, refresh=False)
                done[chunk] = journal.find(keys[chunk.task], chunk.first) if journal else None
                if done[chunk] is not None:
                    bar.update(len(_places(chunk, orders)))
                    continue
                data, order, began = tasks[chunk.task], orders[chunk.task], time.perf_counter()
                places = _places(chunk, orders)
                found = evaluate_chunk(model, tokenizer, data, order, places, **options, on_item=bar.update)
                done[chunk] = found, time.perf_counter() - began
                if journal:
                    journal.add(keys[chunk.task], chunk.first, *done[chunk])
    finally:
        model.train(was_training)
    for part in ranks.gather(done):
        done |= part
    return [_assemble(data, [done[chunk] for chunk in chunks if chunk.task == i]) for i, data in enumerate(tasks)]


def _places(chunk: _Chunk, orders: Sequence[Sequence[int]]) -> range:
    """The items of a chunk, as places in the shuffled order."""
    return range(chunk.first, min(chunk.first + ITEMS_PER_CHUNK, len(orders[chunk.task])))


def _assemble(data: TaskData, chunks: Sequence[tuple[list[Prediction], float]]) -> tuple[TaskResult, list[Prediction]]:
    predictions = [prediction for part, _ in chunks for prediction in part]
    return sum_up(data, predictions, sum(seconds for _, seconds in chunks)), predictions


def evaluate_task(model, tokenizer, data: TaskData, **options) -> tuple[TaskResult, list[Prediction]]:
    """`evaluate_tasks` of one task."""
    return evaluate_tasks(model, tokenizer, [data], **options)[0]
