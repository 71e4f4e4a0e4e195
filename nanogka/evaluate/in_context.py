"""Evaluating tasks in context: multiple choice, schema, language modeling (the protocols of DCLM's CORE).

Multiple choice and schema predict the candidate of lowest mean loss per token, the first on a tie: a sum would favor
short answers. Language modeling is right if every token of the continuation is the model's argmax. An item that cannot
be scored counts as wrong and is reported.

The batches of a chunk of `ITEMS_PER_CHUNK` items depend on nothing but the chunk, so that its numbers are the same to
the last bit whichever process runs it, and before or after an interruption.
"""

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

import torch
from tqdm import tqdm

from nanogka.common.distributed import Ranks
from nanogka.common.files import atomic_write, has_form, read_json
from nanogka.common.formatting import say
from nanogka.evaluate.measures import eval_mode
from nanogka.evaluate.scores import Prediction, TaskResult, mean_centered
from nanogka.evaluate.scoring import Score, score_groups
from nanogka.evaluate.task import (
    LANGUAGE_MODELING,
    Question,
    TaskData,
    draw_examples,
    item_order,
    make_question,
    render,
)
from nanogka.model import GPT

# Enough to sort well by length; few enough that ranks share evenly and that ten-shot prompts of all choices
# (64 · 4 · 1000 tokens) are small in memory.
ITEMS_PER_CHUNK = 64
# Measured on a CPU at depth 4: larger batches leave its caches and hold more padding. An accelerator wants filling.
BATCH_TOKENS_CPU, BATCH_TOKENS_ACCELERATOR = 2048, 32768


def default_batch_tokens(device: torch.device) -> int:
    return BATCH_TOKENS_CPU if device.type == "cpu" else BATCH_TOKENS_ACCELERATOR


Scored = tuple[list[Prediction], float]  # a chunk's predictions, and the seconds they took
PREDICTION = {"task": "", "item": 0, "line": 0, "correct": True, "note": "", "truncated": True, "unaligned": True}


@dataclass
class ResultsCache:
    """Finished tasks on disk: one JSON file per task, or per task and process if several share its items.

    The name of a file contains a hash of everything that could change a prediction. A file that cannot be read counts
    as absent.
    """

    folder: Path
    settings: Mapping[str, object]  # what all tasks share: weights, tokenizer, dtype and so on
    rank: int = 0
    read: bool = True  # use the files of earlier evaluations; files are written in any case
    reused: list[str] = field(default_factory=list)  # names of tasks of which nothing was left to score

    def load(self, data: TaskData, count: int) -> dict[int, Scored]:
        """The scored chunks of a task of which `count` items are evaluated, by the place of their first item."""
        key, chunks = self._key(data, count), {}
        for file in sorted(self.folder.glob(f"{key}*.json")) if self.read else ():
            try:
                content = read_json(file)
                for first, (predictions, seconds) in content["chunks"].items():
                    if not all(has_form(prediction, PREDICTION) for prediction in predictions) or seconds < 0:
                        raise ValueError("a forged prediction")
                    chunks[int(first)] = [Prediction(**prediction) for prediction in predictions], seconds
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                say(f"{file}: damaged, not used")
        return chunks

    def save(self, data: TaskData, count: int, chunks: Mapping[int, Scored]) -> None:
        """Write what is known of a task, which includes what `load` found."""
        key = self._key(data, count)
        content = {"task": data.task.name, "settings": dict(self.settings)}
        content["chunks"] = {
            first: ([asdict(prediction) for prediction in predictions], seconds)
            for first, (predictions, seconds) in chunks.items()
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(self.folder / f"{key}{f'-rank{self.rank}' * bool(self.rank)}.json", json.dumps(content) + "\n")

    def _key(self, data: TaskData, count: int) -> str:
        task, lines = data.task, [data.line(index) for index in range(len(data.items))]
        deciding = [dict(self.settings), task.name, task.type, task.shots, task.delimiter, count, lines, [*data.items]]
        digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
        return f"{re.sub(r'[^a-zA-Z0-9_]', '_', task.name)[:64]}-{digest[:16]}"


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

    For each task its result, with the seconds summed over the processes, and one prediction per item, in shuffled
    order. `model` is a `GPT` or anything with its `hidden`, `unembed`, `config`, `device`, `training`. `max_items` of a
    task's shuffled items are evaluated; the examples come from them too, as in nanochat. `batch_tokens` counts padding.
    All of `ranks` must call this, and all get everything.
    """
    ranks = ranks or Ranks()
    batch_tokens = batch_tokens or default_batch_tokens(model.device)
    orders = [item_order(len(data.check_enough_items(max_items).items), max_items) for data in tasks]
    chunks = [(task, i) for task, order in enumerate(orders) for i in range(0, len(order), ITEMS_PER_CHUNK)]
    mine = chunks[ranks.rank :: ranks.world_size]
    done: dict[tuple[int, int], Scored] = {}
    disable = None if ranks.is_main else True  # None: unless stderr is a terminal
    with eval_mode(model), tqdm(total=len(mine), unit="chunk", leave=False, disable=disable) as bar:
        for task, own in groupby(mine, key=lambda chunk: chunk[0]):
            data, order, firsts = tasks[task], orders[task], [first for _, first in own]
            bar.set_description(data.task.name)
            scored = cache.load(data, len(order)) if cache else {}
            missing = [first for first in firsts if first not in scored]
            for first in missing:
                began = time.perf_counter()
                places = range(first, min(first + ITEMS_PER_CHUNK, len(order)))
                predictions = evaluate_chunk(model, tokenizer, data, order, places, batch_tokens)
                scored[first] = predictions, time.perf_counter() - began
                bar.update()
            bar.update(len(firsts) - len(missing))
            if cache and missing:
                cache.save(data, len(order), scored)
            elif cache:
                cache.reused.append(data.task.name)
            done |= {(task, first): scored[first] for first in firsts}
    everything = {chunk: scored for part in ranks.gather(done) for chunk, scored in part.items()}
    return [_sum_up(data, [everything[c] for c in chunks if c[0] == i]) for i, data in enumerate(tasks)]


def evaluate_task(model, tokenizer, data: TaskData, **options) -> tuple[TaskResult, list[Prediction]]:
    return evaluate_tasks(model, tokenizer, [data], **options)[0]


def evaluate_chunk(
    model, tokenizer, data: TaskData, order: Sequence[int], places: range, batch_tokens: int
) -> list[Prediction]:
    """Score the items at `places` of `order`, the shuffled, cut indices of the items; the model is in eval mode."""
    questions = list(make_questions(tokenizer, data, order, places, model.config.sequence_len))
    groups = [question.candidates for question in questions]
    scores = score_groups(model, groups, batch_tokens=batch_tokens, pad_id=tokenizer.bos_id)
    return [_judged(data, order[place], place, *each) for place, *each in zip(places, questions, scores)]


def make_questions(
    tokenizer, data: TaskData, order: Sequence[int], places: Iterable[int], sequence_len: int
) -> Iterator[Question]:
    """Render and tokenize the items at `places` of `order`, all texts in one parallel call."""
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
    gold = data.items[index].get("gold") if data.task.type != LANGUAGE_MODELING else None
    prediction, correct = judge(data.task.type, scores, gold)
    note = question.unscorable or ""
    if not note and prediction is None:
        note = "no loss is finite"
    elif not note and question.unaligned:
        note = "scored from the first token that the answer changes"
    flags = {"truncated": question.truncated, "unaligned": question.unaligned}
    losses = [score.mean_loss for score in scores]
    return Prediction(data.task.name, place, data.line(index), gold, prediction, correct, losses, note, **flags)


def judge(type_: str, scores: Sequence[Score], gold: int | None) -> tuple[int | bool | None, bool]:
    """The prediction that follows from an item's scores, and whether it is right; (None, False) without scores."""
    if not any(math.isfinite(score.mean_loss) for score in scores):
        return None, False
    if type_ == LANGUAGE_MODELING:
        return scores[0].all_argmax, scores[0].all_argmax
    losses = [score.mean_loss if math.isfinite(score.mean_loss) else math.inf for score in scores]
    best = losses.index(min(losses))
    return best, best == gold


def _sum_up(data: TaskData, chunks: Sequence[Scored]) -> tuple[TaskResult, list[Prediction]]:
    predictions = [prediction for part, _ in chunks for prediction in part]
    task, seconds = data.task, sum(seconds for _, seconds in chunks)
    correct, count = sum(prediction.correct for prediction in predictions), len(predictions)
    counts = {name: sum(getattr(p, name) for p in predictions) for name in ("truncated", "unaligned")}
    counts["unscorable"] = sum(prediction.prediction is None for prediction in predictions)
    result = TaskResult(task.name, task.type, task.shots, data.chance, correct, count, seconds, **counts)
    return result, predictions


def core_evaluation(
    tasks: Sequence[TaskData], core: Sequence[str], tokenizer, ranks: Ranks, max_per_task: int | None = None
) -> Callable[[GPT], dict[str, float]]:
    """Return a function that measures CORE of a model in training, its items shared by the ranks, which all call it.

    It returns `{"core": value}`, or `{"core_partial": value}`, the mean over the tasks there are, if some are missing.
    """

    def measure(model: GPT) -> dict[str, float]:
        done = evaluate_tasks(model, tokenizer, tasks, max_items=max_per_task, ranks=ranks)
        results = [result for result, _ in done]
        whole = mean_centered(results, core)
        if whole is not None:
            return {"core": whole}
        return {"core_partial": mean_centered(results, [result.name for result in results])}

    return measure
