"""Evaluating tasks in context: multiple choice, schema, language modelling (the protocols of DCLM's CORE).

    ((result, predictions),) = evaluate_tasks(model, tokenizer, [data], max_items=500)

Multiple choice and schema predict the candidate of lowest mean loss, the first on a tie; language modelling is right
if every token of the continuation is the model's argmax. An item that cannot be scored counts as wrong and is reported;
no item is left out.

Items are taken in chunks of `ITEMS_PER_CHUNK`. A chunk's batches depend on nothing but the chunk, so that it gives the
same numbers to the last bit whichever process runs it, and before or after an interruption.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from tqdm import tqdm

from nanogka.distributed import Ranks
from nanogka.evaluate.prompts import Question, check_enough_items, draw_examples, item_order, make_question, render
from nanogka.evaluate.results_cache import ResultsCache, task_key
from nanogka.evaluate.scores import Prediction, TaskResult, mean_centered
from nanogka.evaluate.scoring import Score, score_groups
from nanogka.evaluate.task import LANGUAGE_MODELING, TaskData
from nanogka.model import GPT

# Enough to sort well by length; few enough that ranks share evenly, that little is lost to an interruption, and that
# ten-shot prompts of all choices (64 · 4 · 1000 tokens) are small in memory.
ITEMS_PER_CHUNK = 64
# Measured on a CPU at depth 4: larger batches leave its caches and hold more padding. An accelerator wants filling.
BATCH_TOKENS_CPU, BATCH_TOKENS_ACCELERATOR = 2048, 32768


def default_batch_tokens(device: torch.device) -> int:
    """Tokens of a batch that suit the device."""
    return BATCH_TOKENS_CPU if device.type == "cpu" else BATCH_TOKENS_ACCELERATOR


_Chunk = tuple[int, range]  # of a task by its index, the items at these places of the shuffled order
_Done = tuple[list[Prediction], float]  # of a chunk, and the seconds it took


def evaluate_tasks(
    model,
    tokenizer,
    tasks: Sequence[TaskData],
    *,
    max_items: int | None = None,
    batch_tokens: int | None = None,
    ranks: Ranks | None = None,
    cache: ResultsCache | None = None,
) -> list[tuple[TaskResult, list[Prediction]]]:
    """Score the items of the tasks and sum them up.

    Args:
        model: `nanogka.model.GPT` or anything with its `hidden`, `unembed`, `config`, `device`, `training`.
        tokenizer: `encode_batch(texts) -> list of token lists` and `bos_id`.
        max_items: evaluate this many of a task's shuffled items; the examples come from them too, as in nanochat.
        batch_tokens: the most tokens of one batch, padding included; None: what suits the device.
        ranks: the processes that share the items; all of them must call this, and all get everything.
        cache: where to look up and keep what is done.

    Returns:
        For each task its result, with the seconds summed over the processes, and one prediction per item, in shuffled
        order.

    Raises:
        ValueError: if a task has too few items for its examples.
    """
    ranks = ranks or Ranks()
    orders = [item_order(len(data.items), max_items) for data in tasks]
    for data in tasks:
        check_enough_items(data, max_items)
    chunks = [
        (task, range(first, min(first + ITEMS_PER_CHUNK, len(order))))
        for task, order in enumerate(orders)
        for first in range(0, len(order), ITEMS_PER_CHUNK)
    ]
    keys = [task_key(data, len(order)) if cache else "" for data, order in zip(tasks, orders)]
    batch_tokens = batch_tokens or default_batch_tokens(model.device)
    mine = chunks[ranks.rank :: ranks.world_size]
    hidden = None if ranks.is_main else True  # None: unless stderr is a terminal
    done: dict[_Chunk, _Done] = {}
    was_training = model.training
    model.eval()
    try:
        with tqdm(total=sum(len(places) for _, places in mine), unit="item", leave=False, disable=hidden) as bar:
            for chunk in mine:
                task, places = chunk
                data, key, first = tasks[task], keys[task], places.start
                bar.set_description(data.task.name)
                if cache and (found := cache.find(key, first)):
                    done[chunk] = found
                else:
                    began = time.perf_counter()
                    predictions = evaluate_chunk(model, tokenizer, data, orders[task], places, batch_tokens)
                    done[chunk] = predictions, time.perf_counter() - began
                    if cache:
                        cache.add(key, first, *done[chunk])
                bar.update(len(places))
    finally:
        model.train(was_training)
    everything = {chunk: found for part in ranks.gather(done) for chunk, found in part.items()}
    return [_sum_up(data, [everything[c] for c in chunks if c[0] == i]) for i, data in enumerate(tasks)]


def evaluate_task(model, tokenizer, data: TaskData, **options) -> tuple[TaskResult, list[Prediction]]:
    """`evaluate_tasks` of one task."""
    return evaluate_tasks(model, tokenizer, [data], **options)[0]


def evaluate_chunk(
    model, tokenizer, data: TaskData, order: Sequence[int], places: range, batch_tokens: int
) -> list[Prediction]:
    """Score the items at `places` of `order`; nothing here depends on any other chunk.

    Args:
        model, batch_tokens: see `evaluate_tasks`; the model is in eval mode.
        order: the shuffled, cut indices of the items, among which the examples are drawn.
    """
    questions = list(make_questions(tokenizer, data, order, places, model.config.sequence_len))
    groups = [question.candidates for question in questions]
    scores = score_groups(model, groups, batch_tokens=batch_tokens, pad_id=tokenizer.bos_id)
    return [_judged(data, order[place], place, *each) for place, *each in zip(places, questions, scores)]


def make_questions(
    tokenizer, data: TaskData, order: Sequence[int], places: Iterable[int], sequence_len: int
) -> Iterator[Question]:
    """Render and tokenise the items at `places` of `order`, all texts in one parallel call."""
    task, texts, counts = data.task, [], []
    for place in places:
        examples = [data.items[order[other]] for other in draw_examples(place, len(order), task.shots)]
        rendered = render(task, data.items[order[place]], examples)
        texts += rendered
        counts.append(len(rendered))
    sequences = iter(tokenizer.encode_batch(texts))
    for count in counts:
        yield make_question(task.type, [[tokenizer.bos_id, *next(sequences)] for _ in range(count)], sequence_len)


def _judged(data: TaskData, index: int, place: int, question: Question, scores: list[Score]) -> Prediction:
    """The prediction for item `index` of the file, at `place` in the shuffled order."""
    gold = data.items[index].get("gold") if data.task.type != LANGUAGE_MODELING else None
    prediction, correct = judge(data.task.type, scores, gold)
    note = question.unscorable or ""
    if not note and prediction is None:
        note = "no loss is finite"
    elif not note and question.unaligned:
        note = "scored from the first token that the answer changes"
    how = {"note": note, "truncated": question.truncated, "unaligned": question.unaligned}
    losses = [score.mean_loss for score in scores]
    return Prediction(data.task.name, place, data.line(index), gold, prediction, correct, losses, **how)


def judge(type_: str, scores: Sequence[Score], gold: int | None) -> tuple[int | bool | None, bool]:
    """The prediction that follows from an item's scores, and whether it is right; (None, False) without scores."""
    if not scores or not any(math.isfinite(score.mean_loss) for score in scores):
        return None, False
    if type_ == LANGUAGE_MODELING:
        return scores[0].all_argmax, scores[0].all_argmax
    losses = [score.mean_loss if math.isfinite(score.mean_loss) else math.inf for score in scores]
    best = losses.index(min(losses))
    return best, best == gold


def _sum_up(data: TaskData, chunks: Sequence[_Done]) -> tuple[TaskResult, list[Prediction]]:
    """The task's result and predictions, of all its chunks in order."""
    predictions = [prediction for part, _ in chunks for prediction in part]
    result = TaskResult(
        name=data.task.name,
        type=data.task.type,
        shots=data.task.shots,
        chance=data.chance,
        correct=sum(prediction.correct for prediction in predictions),
        items=len(predictions),
        seconds=sum(seconds for _, seconds in chunks),
        truncated=sum(prediction.truncated for prediction in predictions),
        unaligned=sum(prediction.unaligned for prediction in predictions),
        unscorable=sum(prediction.prediction is None for prediction in predictions),
    )
    return result, predictions


def core_evaluation(
    tasks: Sequence[TaskData], core: Sequence[str], tokenizer, ranks: Ranks, max_per_task: int | None = None
) -> Callable[[GPT], dict[str, float]]:
    """Return a function that measures CORE of a model in training, its items shared by the ranks, which all call it.

    It returns `{"core": value}`, or `{"core_partial": value}`, the mean over the tasks there are, if `tasks` lacks some
    of `core`.
    """

    def measure(model: GPT) -> dict[str, float]:
        done = evaluate_tasks(model, tokenizer, tasks, max_items=max_per_task, ranks=ranks)
        results = [result for result, _ in done]
        whole = mean_centered(results, core)
        if whole is not None:
            return {"core": whole}
        return {"core_partial": mean_centered(results, [result.name for result in results])}

    return measure
