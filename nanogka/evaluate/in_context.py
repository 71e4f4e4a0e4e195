"""Evaluating items in context: multiple choice, schema, language modelling (DCLM's CORE protocols).

Multiple choice and schema predict the candidate of lowest mean loss, the first on a tie; language modelling is right
where every token of the continuation is the model's argmax. An item that cannot be scored counts as wrong and is
reported; no item is left out.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from nanogka.evaluate.prompts import Question, draw_examples, make_question, render
from nanogka.evaluate.scores import TaskResult
from nanogka.evaluate.scoring import Row, Score, first_alike, score_groups
from nanogka.evaluate.stems import CacheMaker
from nanogka.evaluate.task import LANGUAGE_MODELING, TaskData

# Measured on a CPU at depth 4: larger batches leave its caches and hold more padding. An accelerator wants filling.
BATCH_TOKENS_CPU, BATCH_TOKENS_ACCELERATOR = 2048, 32768


@dataclass(frozen=True)
class Prediction:
    """What became of one item.

    Attributes:
        task, item, line: the task's name, the item's place in the shuffled order, its line in the file.
        gold: the right choice; None for language modelling.
        prediction: the chosen one; for language modelling whether all tokens were the argmax; None if unscorable.
        losses: mean loss of each candidate in nats; empty if unscorable.
        note: why the item is unscorable, or how it was scored otherwise than the text says; empty as a rule.
        truncated: a candidate lost tokens on its left to fit the context.
        unaligned: language modelling: the prompt is no token prefix of prompt and answer.
    """

    task: str
    item: int
    line: int
    gold: int | None
    prediction: int | bool | None
    correct: bool
    losses: list[float]
    note: str = ""
    truncated: bool = False
    unaligned: bool = False

    def to_json(self) -> dict:
        """As a line of a predictions file; a loss that is not finite becomes null, which JSON can say."""
        return asdict(self) | {"losses": [loss if math.isfinite(loss) else None for loss in self.losses]}


def write_predictions(file: Path, tasks: Iterable[Iterable[Prediction]]) -> None:
    """Write a line of JSON for each prediction of each task."""
    with file.open("w", encoding="utf-8") as opened:
        opened.writelines(json.dumps(prediction.to_json()) + "\n" for task in tasks for prediction in task)


def evaluate_chunk(
    model,
    tokenizer,
    data: TaskData,
    order: Sequence[int],
    places: range,
    *,
    sequence_len: int,
    batch_tokens: int,
    new_cache: CacheMaker | None = None,
    on_item: Callable[[], None] = lambda: None,
) -> list[Prediction]:
    """Score the items at `places` of `order`; nothing here depends on any other chunk.

    Args:
        model, new_cache: see `nanogka.evaluate.suite.evaluate_tasks`; the model is in eval mode.
        order: the shuffled, cut indices of the items, among which the examples are drawn.
        on_item: called as each item is done, for a progress bar.
    """
    questions = list(make_questions(tokenizer, data, order, places, sequence_len))
    left = [len(set(first_alike(question.candidates))) for question in questions]

    def advance(row: Row) -> None:
        index = row.readers[0][0]
        left[index] -= len(row.readers)
        if left[index] == 0:
            on_item()

    for question in questions:
        if not question.candidates:
            on_item()
    groups = [question.candidates for question in questions]
    options = {"batch_tokens": batch_tokens, "pad_id": tokenizer.bos_id, "new_cache": new_cache, "on_row": advance}
    scores = score_groups(model, groups, **options)
    return list(_judge_chunk(data, order, places, questions, scores))


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
        how = {"note": note, "truncated": question.truncated, "unaligned": question.unaligned}
        yield Prediction(data.task.name, place, data.line(index), gold, prediction, correct, losses, **how)


def judge(type_: str, scores: Sequence[Score], gold: int | None) -> tuple[int | bool | None, bool]:
    """The prediction that follows from an item's scores, and whether it is right; (None, False) without scores."""
    if not scores or not any(math.isfinite(score.mean_loss) for score in scores):
        return None, False
    if type_ == LANGUAGE_MODELING:
        return scores[0].all_argmax, scores[0].all_argmax
    losses = [score.mean_loss if math.isfinite(score.mean_loss) else math.inf for score in scores]
    best = losses.index(min(losses))
    return best, best == gold


def sum_up(data: TaskData, predictions: Sequence[Prediction], seconds: float) -> TaskResult:
    """The task's result, of the predictions of all its items."""
    return TaskResult(
        name=data.task.name,
        type=data.task.type,
        shots=data.task.shots,
        chance=data.chance,
        correct=sum(prediction.correct for prediction in predictions),
        items=len(predictions),
        seconds=seconds,
        truncated=sum(prediction.truncated for prediction in predictions),
        unaligned=sum(prediction.unaligned for prediction in predictions),
        unscorable=sum(prediction.prediction is None for prediction in predictions),
    )
