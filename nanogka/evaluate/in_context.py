"""Evaluating one task in context: multiple choice, schema, language modelling (DCLM's CORE protocols).

    result, predictions = evaluate_task(model, tokenizer, data, max_items=500)

Multiple choice and schema predict the candidate of lowest mean loss, the first on a tie; language modelling is right
where every token of the continuation is the model's argmax. An item that cannot be scored counts as wrong and is
reported; no item is left out.
"""

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from nanogka.evaluate.prompts import Question, check_enough_items, draw_examples, item_order, make_question, render
from nanogka.evaluate.scores import TaskResult
from nanogka.evaluate.scoring import Row, Score, first_alike, score_groups
from nanogka.evaluate.task import LANGUAGE_MODELING, TaskData

# Measured on a CPU at depth 4: larger batches leave its caches and hold more padding. An accelerator wants filling.
BATCH_TOKENS_CPU, BATCH_TOKENS_ACCELERATOR = 2048, 32768
# Items tokenised at a time: enough to sort well by length, few enough that the full prompts of 10 000 ten-shot items
# (50 million tokens for HellaSwag) are never in memory together.
ITEMS_PER_CHUNK = 512


@dataclass(frozen=True)
class Prediction:
    """What became of one item.

    Attributes:
        task, item, line: the task's name, the item's place in the shuffled order, its line in the file.
        gold: the right choice; None for language modelling.
        prediction: the chosen one; for language modelling whether all tokens were the argmax; None if unscorable.
        losses: mean loss of each candidate in nats; empty if unscorable.
        note: why the item is unscorable, or how it was scored otherwise than the text says; empty as a rule.
    """

    task: str
    item: int
    line: int
    gold: int | None
    prediction: int | bool | None
    correct: bool
    losses: list[float]
    note: str = ""

    def to_json(self) -> dict:
        """As a line of a predictions file; a loss that is not finite becomes null, which JSON can say."""
        return asdict(self) | {"losses": [loss if math.isfinite(loss) else None for loss in self.losses]}


class PredictionsFile:
    """A JSONL file with one prediction a line; nothing at all if `path` is empty. A context manager."""

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).expanduser().open("w", encoding="utf-8") if path else None

    def write(self, predictions: Iterable[Prediction]) -> None:
        """Append the predictions of a task, at once visible to other programs."""
        if self._file is not None:
            self._file.writelines(json.dumps(prediction.to_json()) + "\n" for prediction in predictions)
            self._file.flush()

    def __enter__(self) -> "PredictionsFile":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()


def evaluate_task(
    model,
    tokenizer,
    data: TaskData,
    *,
    max_items: int | None = None,
    batch_tokens: int | None = None,
    sequence_len: int | None = None,
    progress: bool = True,
) -> tuple[TaskResult, list[Prediction]]:
    """Score the items of one task and sum them up.

    Args:
        model: `nanogka.model.GPT` or anything with its `hidden`, `unembed`, `config`, `device`, `training`.
        tokenizer: `encode_batch(texts) -> list of token lists` and `bos_id`.
        max_items: evaluate this many of the shuffled items; the examples come from them too, as nanochat has it.
        batch_tokens: the most tokens of one batch, padding included; None: what suits the device.
        sequence_len: the context to cut prompts to; the model's if None.
        progress: show a bar if stderr is a terminal.

    Returns:
        The result, and one prediction an item, in the shuffled order.

    Raises:
        ValueError: if there are too few items for the task's examples.
    """
    began = time.perf_counter()
    order = item_order(len(data.items), max_items)
    check_enough_items(data, len(order))
    length = model.config.sequence_len if sequence_len is None else sequence_len
    batch_tokens = batch_tokens or default_batch_tokens(model.device)
    was_training = model.training
    model.eval()
    questions, predictions = [], []
    bar = tqdm(total=len(order), desc=data.task.name, unit="item", leave=False, disable=None if progress else True)
    try:
        with bar:
            for first in range(0, len(order), ITEMS_PER_CHUNK):
                places = range(first, min(first + ITEMS_PER_CHUNK, len(order)))
                chunk = list(make_questions(tokenizer, data, order, places, length))
                scores = _score_chunk(model, tokenizer, chunk, batch_tokens, bar)
                questions += [_without_tokens(question) for question in chunk]
                predictions += _judge_chunk(data, order, places, chunk, scores)
    finally:
        model.train(was_training)
    return _sum_up(data, questions, predictions, time.perf_counter() - began), predictions


def default_batch_tokens(device: torch.device) -> int:
    """Tokens of a batch that suit the device."""
    return BATCH_TOKENS_CPU if device.type == "cpu" else BATCH_TOKENS_ACCELERATOR


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


def _score_chunk(model, tokenizer, questions: list[Question], batch_tokens: int, bar: tqdm) -> list[list[Score]]:
    """The scores of each question's candidates; moves the bar one item on when its last row is done."""
    left = [len(set(first_alike(question.candidates))) for question in questions]

    def advance(row: Row) -> None:
        index = row.readers[0][0]
        left[index] -= len(row.readers)
        if left[index] == 0:
            bar.update()

    bar.update(sum(not question.candidates for question in questions))
    groups = [question.candidates for question in questions]
    return score_groups(model, groups, batch_tokens=batch_tokens, pad_id=tokenizer.bos_id, on_row=advance)


def _judge_chunk(
    data: TaskData, order: Sequence[int], places: Iterable[int], questions: list[Question], scores: list[list[Score]]
) -> Iterator[Prediction]:
    for place, question, own in zip(places, questions, scores):
        index = order[place]
        gold = data.items[index].get("gold") if data.task.type != LANGUAGE_MODELING else None
        prediction, correct = judge(data.task.type, own, gold)
        note = question.unscorable or ""
        if not note and prediction is None:
            note = "no loss is finite"
        elif question.unaligned:
            note = note or "scored from the first token that the answer changes"
        losses = [score.mean_loss for score in own]
        yield Prediction(data.task.name, place, data.line(index), gold, prediction, correct, losses, note)


def judge(type_: str, scores: Sequence[Score], gold: int | None) -> tuple[int | bool | None, bool]:
    """The prediction that follows from an item's scores, and whether it is right; (None, False) without scores."""
    if not scores or not any(math.isfinite(score.mean_loss) for score in scores):
        return None, False
    if type_ == LANGUAGE_MODELING:
        return scores[0].all_argmax, scores[0].all_argmax
    losses = [score.mean_loss if math.isfinite(score.mean_loss) else math.inf for score in scores]
    best = losses.index(min(losses))
    return best, best == gold


def _without_tokens(question: Question) -> Question:
    """The question's counts alone: what is kept of the chunks that are done."""
    return Question([], question.unscorable, question.truncated, question.unaligned)


def _sum_up(data: TaskData, questions: list[Question], predictions: list[Prediction], seconds: float) -> TaskResult:
    return TaskResult(
        name=data.task.name,
        type=data.task.type,
        shots=data.task.shots,
        chance=data.chance,
        correct=sum(prediction.correct for prediction in predictions),
        items=len(predictions),
        seconds=seconds,
        truncated=sum(question.truncated for question in questions),
        unaligned=sum(question.unaligned for question in questions),
        unscorable=sum(prediction.prediction is None for prediction in predictions),
    )
