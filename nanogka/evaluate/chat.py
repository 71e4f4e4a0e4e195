"""Evaluating a model in conversations: what it replies to a question, right or wrong.

    task = ChatTask("addition", [ChatItem("What is 1 + 2?", "3")], majority([…]))
    result, replies = evaluate_chat_task(responder, task)

Two ways to ask. Generation: the reply is written greedily and compared with the answer, as a whole or by its last
number. Letters: the choices are listed with letters, and the likeliest of these letters as the reply's first token is
the choice. Who replies is a `Responder`; this room knows no engine.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nanogka.data.conversation import Conversation
from nanogka.evaluate.scores import TaskResult
from nanogka.evaluate.task import TaskData

GENERATION, LETTER = "generation", "letter"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
INSTRUCTION = "Reply with the letter of the right answer only."
# As GSM8K marks the final answer, else the last number there is.
_MARKED = re.compile(r"####\s*(-?[\d,]*\.?\d+)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def exactly(reply: str, answer: str) -> bool:
    """Whether the reply is the answer, white space around it aside."""
    return reply.strip() == answer.strip()


def same_number(reply: str, answer: str) -> bool:
    """Whether the final numbers of the two are equal."""
    said, wanted = final_number(reply), final_number(answer)
    return said is not None and said == wanted


def final_number(text: str) -> float | None:
    """The number behind the last `####`, else the last number; None where there is none. Commas part thousands."""
    found = _MARKED.findall(text) or _NUMBER.findall(text)
    try:
        return float(found[-1].replace(",", "")) if found else None
    except ValueError:
        return None


@dataclass(frozen=True)
class ChatItem:
    """A question: what the user says, the right answer (a letter if there are `choices` to choose among)."""

    prompt: str
    answer: str
    choices: int = 0


@dataclass(frozen=True)
class ChatTask:
    """Questions of one kind.

    Attributes:
        chance: what an answer without regard to the question can score: guessing, or always the commonest answer.
        max_tokens: of a generated reply.
        is_right: (reply, answer) for generated replies.
    """

    name: str
    items: Sequence[ChatItem]
    chance: float
    max_tokens: int = 32
    is_right: Callable[[str, str], bool] = exactly
    measures: str = ""

    @property
    def type(self) -> str:
        """`generation` or `letter`."""
        return LETTER if self.items and self.items[0].choices else GENERATION


@dataclass(frozen=True)
class Reply:
    """What became of an item; `text` is None where the question does not fit the context, which counts as wrong."""

    item: ChatItem
    text: str | None
    right: bool


class Responder(Protocol):
    """A model that can be asked."""

    def replies(self, prompts: Sequence[Conversation], max_tokens: int) -> list[str | None]:
        """The greedy reply to each; None where a prompt does not fit."""

    def letters(self, prompts: Sequence[Conversation], choices: Sequence[int]) -> list[int | None]:
        """Which of the first so many letters is the likeliest reply to each; None where a prompt does not fit."""


def evaluate_chat_task(responder: Responder, task: ChatTask) -> tuple[TaskResult, list[Reply]]:
    """Ask everything; the result and a reply for each item."""
    began = time.perf_counter()
    prompts = [Conversation.of(item.prompt) for item in task.items]
    if task.type == LETTER:
        found = responder.letters(prompts, [item.choices for item in task.items])
        texts = [None if index is None else LETTERS[index] for index in found]
        right = [text == item.answer for text, item in zip(texts, task.items)]
    else:
        texts = responder.replies(prompts, task.max_tokens)
        right = [text is not None and task.is_right(text, item.answer) for text, item in zip(texts, task.items)]
    result = TaskResult(
        name=task.name,
        type=task.type,
        shots=0,
        chance=task.chance,
        correct=sum(right),
        items=len(right),
        seconds=time.perf_counter() - began,
        unscorable=sum(text is None for text in texts),
    )
    return result, [Reply(*each) for each in zip(task.items, texts, right)]


def format_results(results: Sequence[TaskResult]) -> str:
    """The results as a table of plain text."""
    width = max(len("task"), *(len(result.name) for result in results))
    lines = [f"{'task':<{width}}  {'asked by':<10}  {'right':>14}  {'chance':>7}  questions"]
    for result in results:
        error = f"± {100 * result.stderr:4.1f}" if result.items > 1 else "      "
        right, chance = f"{100 * result.accuracy:5.1f} {error} %", f"{100 * result.chance:5.1f} %"
        lines.append(f"{result.name:<{width}}  {result.type:<10}  {right}  {chance}  {result.items:>9,}")
        if result.unscorable:
            lines.append(f"{'':<{width}}  {result.unscorable:,} do not fit the context and count as wrong")
    return "\n".join(lines)


def majority(answers: Sequence[str]) -> float:
    """The share of the commonest answer: what a model scores that always gives it."""
    return Counter(answers).most_common(1)[0][1] / len(answers)


def letter_task(data: TaskData, max_items: int | None = None) -> ChatTask:
    """A multiple-choice task as a chat: the first `max_items` items, each with its choices listed by letters."""
    chosen = data.items[:max_items]
    items = [
        ChatItem(letter_prompt(item["query"], item["choices"]), LETTERS[item["gold"]], len(item["choices"]))
        for item in chosen
    ]
    chance = sum(1 / item.choices for item in items) / len(items)
    return ChatTask(data.task.name, items, chance, measures=data.task.measures)


def letter_prompt(query: str, choices: Sequence[str]) -> str:
    """A question with its choices."""
    if len(choices) > len(LETTERS):
        raise ValueError(f"choices: got {len(choices)}, takes at most {len(LETTERS)}")
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices))
    return f"{query}\n\n{listed}\n\n{INSTRUCTION}"


def number_task(data: TaskData, max_tokens: int, max_items: int | None = None) -> ChatTask:
    """A task of questions whose answer is a number, as a chat: the first `max_items` items."""
    items = [ChatItem(item["context"], item["continuation"]) for item in data.items[:max_items]]
    chance = majority([str(final_number(item.answer)) for item in items])
    return ChatTask(data.task.name, items, chance, max_tokens, same_number, data.task.measures)
