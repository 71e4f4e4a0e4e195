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
    """The processes that share an evaluation (`nanogka.distributed.Ranks` is one)."""

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
    """The items at `places` in the order of the task at `task` among all."""

    task: int
    places: range


_Done = tuple[list[Prediction], float]  # of a chunk, and the seconds it took


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
    chunks = [_Chunk(task, _places(order, i)) for task, order in enumerate(orders) for i in _starts(order)]
    keys = [task_key(data, len(order)) if journal else "" for data, order in zip(tasks, orders)]
    options = {"sequence_len": model.config.sequence_len, "new_cache": new_cache}
    options["batch_tokens"] = batch_tokens or default_batch_tokens(model.device)
    mine = chunks[ranks.rank :: ranks.world_size]
    hidden = None if progress and ranks.rank == 0 else True  # None: unless stderr is a terminal
    done: dict[_Chunk, _Done] = {}
    was_training = model.training
    model.eval()
    try:
        with tqdm(total=sum(len(c.places) for c in mine), unit="item", leave=False, disable=hidden) as bar:
            for chunk in mine:
                data, key, first = tasks[chunk.task], keys[chunk.task], chunk.places.start
                bar.set_description(data.task.name, refresh=False)
                if journal and (found := journal.find(key, first)):
                    done[chunk] = found
                    bar.update(len(chunk.places))
                    continue
                began = time.perf_counter()
                predictions = evaluate_chunk(
                    model, tokenizer, data, orders[chunk.task], chunk.places, **options, on_item=bar.update
                )
                done[chunk] = predictions, time.perf_counter() - began
                if journal:
                    journal.add(key, first, *done[chunk])
    finally:
        model.train(was_training)
    everything = {chunk: found for part in ranks.gather(done) for chunk, found in part.items()}
    return [_assemble(data, [everything[c] for c in chunks if c.task == i]) for i, data in enumerate(tasks)]


def _starts(order: Sequence[int]) -> range:
    """Where the chunks of a task begin."""
    return range(0, len(order), ITEMS_PER_CHUNK)


def _places(order: Sequence[int], first: int) -> range:
    """The items of the chunk that begins at `first`, as places in the shuffled order."""
    return range(first, min(first + ITEMS_PER_CHUNK, len(order)))


def _assemble(data: TaskData, chunks: Sequence[_Done]) -> tuple[TaskResult, list[Prediction]]:
    predictions = [prediction for part, _ in chunks for prediction in part]
    return sum_up(data, predictions, sum(seconds for _, seconds in chunks)), predictions


def evaluate_task(model, tokenizer, data: TaskData, **options) -> tuple[TaskResult, list[Prediction]]:
    """`evaluate_tasks` of one task."""
    return evaluate_tasks(model, tokenizer, [data], **options)[0]
