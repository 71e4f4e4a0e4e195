"""Tasks asked in context: their settings, their items, and the token sequences that a model reads.

An item is a mapping with the keys of its task's type, as DCLM and nanochat store them:

    multiple_choice     query, choices, gold                    one query, several endings
    schema              context_options, continuation, gold     several beginnings, one ending
    language_modeling   context, continuation                   the continuation must be predicted word for word

The prompts follow DCLM's rules as nanochat implements them, so that scores are comparable with theirs. The items are
shuffled, then cut to a maximum. A prompt consists of solved examples, then the item. An example is
`query + delimiter + answer` and a blank line. The contexts of language modeling are stripped, and so is the prompt
without the continuation. `bos` comes first. Only for models of other libraries, a sequence longer than the model's
context loses tokens on its left.
"""

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass

MULTIPLE_CHOICE, SCHEMA, LANGUAGE_MODELING = TYPES = ("multiple_choice", "schema", "language_modeling")
OPTIONS = {MULTIPLE_CHOICE: "choices", SCHEMA: "context_options"}  # the key of the strings of which `gold` names one
SHUFFLE_SEED = 1337
EXAMPLES_SEED = 1234


@dataclass(frozen=True)
class Task:
    """A task of a bundle: its name, its kind of question and its prompt settings."""

    name: str  # as in the bundle's `core.yaml`
    type: str  # one of `TYPES`
    num_fewshot: int = 0  # solved examples before each item
    chance: float | None = None  # accuracy of guessing, in [0, 1); None: from the number of choices of each item
    path: str | None = None  # the items' file, relative to the bundle's `eval_data/`
    delimiter: str = " "  # between a query (or context) and its answer


@dataclass(frozen=True)
class LoadedTask:
    """A task with its items, in the order of the file."""

    task: Task
    items: Sequence[dict]

    @property
    def chance(self) -> float:
        if self.task.chance is not None:
            return self.task.chance
        key = OPTIONS.get(self.task.type)
        return sum(1 / len(item[key]) for item in self.items) / len(self.items) if key else 0.0

    def check_enough_items(self, max_items: int | None) -> "LoadedTask":
        """Return the task itself. Raises ValueError if `max_items` items are too few for the examples of a prompt."""
        count, needed = len(self.items[:max_items]), self.task.num_fewshot + 1
        if count < needed:
            why = f"{self.task.num_fewshot} examples and the item itself"
            raise ValueError(f"task {self.task.name}: got {count} items, expected at least {needed}: {why}")
        return self


# ---- prompts ----


def item_order(count: int, max_items: int | None = None) -> list[int]:
    """The indices of the items to evaluate, in order: shuffled, then cut to `max_items`."""
    # Files are often sorted, for example by subject, so their first items are no fair sample.
    order = list(range(count))
    random.Random(SHUFFLE_SEED).shuffle(order)
    return order[:max_items]


def draw_examples(index: int, count: int, num_fewshot: int) -> list[int]:
    """Draw the examples of item `index` of `count` (the shuffled, cut ones): `num_fewshot` others, in order."""
    if num_fewshot == 0:
        return []
    # Each item has its own seed, so its examples do not depend on which items were evaluated before it.
    # sample() depends on the population's length only. So drawing places among the others and skipping `index` equals
    # sampling from the list of the others, without building that list for each item.
    places = random.Random(EXAMPLES_SEED + index).sample(range(count - 1), num_fewshot)
    return [place if place < index else place + 1 for place in places]


def render(task: Task, item: dict, examples: Sequence[dict]) -> list[str]:
    """The texts of one item: one per choice or context option; for language modeling without and with the answer."""
    # A base model continues text and follows no instructions. The examples show it the form of an answer.
    shown = "".join(_solved(task, example) + "\n\n" for example in examples)
    if task.type == MULTIPLE_CHOICE:
        return [shown + item["query"] + task.delimiter + choice for choice in item["choices"]]
    if task.type == SCHEMA:
        return [shown + context + task.delimiter + item["continuation"] for context in item["context_options"]]
    before = shown + item["context"].strip() + task.delimiter
    # Most tokens begin with their blank. A prompt that ends with one would force an unusual split of the next word.
    return [before.strip(), before + item["continuation"]]


def _solved(task: Task, item: dict) -> str:
    if task.type == MULTIPLE_CHOICE:
        return item["query"] + task.delimiter + item["choices"][item["gold"]]
    if task.type == SCHEMA:
        return item["context_options"][item["gold"]] + task.delimiter + item["continuation"]
    return item["context"].strip() + task.delimiter + item["continuation"]


# ---- token sequences ----


@dataclass(frozen=True)
class Candidate:
    """One token sequence of an item, `bos` included; the tokens from `start` (at least 1) on are scored."""

    tokens: list[int]
    start: int

    @property
    def inputs(self) -> list[int]:  # the last token is a target only
        return self.tokens[:-1]

    @property
    def targets(self) -> list[int]:
        return self.tokens[self.start :]


@dataclass(frozen=True)
class Question:
    """One item ready for the model."""

    candidates: list[Candidate]  # one per choice, a single one in language modeling; empty if `unscorable`
    truncated: bool  # a candidate lost tokens on its left
    unscorable: str = ""  # the reason: the scored part is empty or does not fit the context


def make_question(type_: str, sequences: list[list[int]], limit: int | None) -> Question:
    """Find the scored part of one item's sequences, which begin with `bos`, and crop them to `limit` tokens, if any."""
    if type_ == MULTIPLE_CHOICE:
        # The query is the same for all choices, so its loss would only add noise. Score from the first difference on.
        starts = [common_prefix(sequences)] * len(sequences)
    elif type_ == SCHEMA:
        # The ending is the same after each beginning: the better beginning makes it likelier.
        suffix = common_prefix([sequence[::-1] for sequence in sequences])
        starts = [len(sequence) - suffix for sequence in sequences]
    else:
        # The last word of the prompt may merge with the first letters of the answer into one token. The prompt's tokens
        # are then no prefix: score from the first token that differs, so that the whole answer is included.
        starts, sequences = [common_prefix(sequences)], sequences[1:]
    cuts = [0 if limit is None else max(0, len(sequence) - limit) for sequence in sequences]
    candidates = []
    for sequence, start, cut in zip(sequences, starts, cuts):
        if start >= len(sequence):
            return Question([], any(cuts), "a choice adds no tokens to the prompt")
        if start - cut < 1:  # the first scored token needs one before it that predicts it
            reason = "the scored part does not fit the context" if cut else "the sequences are all the same"
            return Question([], any(cuts), reason)
        candidates.append(Candidate(sequence[cut:], start - cut))
    return Question(candidates, any(cuts))


def common_prefix(sequences: Sequence[list[int]]) -> int:
    """The number of tokens with which all the sequences begin."""
    return len(os.path.commonprefix(sequences))  # which works on lists of anything, despite its module
