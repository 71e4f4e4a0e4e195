"""From items to token sequences: the draw of the examples, the text of a prompt, the tokens that are scored.

The rules are DCLM's as nanochat runs them, so that scores compare with theirs:

* the items are shuffled with `random.Random(1337)`, then cut to a maximum; item i of what is left draws its examples
  with `random.Random(1234 + i)` from the others;
* a prompt is the examples, each `query + delimiter + answer` and a blank line, then the item; the contexts of
  language modelling are trimmed, and its prompt without the continuation too;
* `bos` comes first; a sequence longer than the model's context loses tokens on its left.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from nanogka.evaluate.task import LANGUAGE_MODELING, MULTIPLE_CHOICE, SCHEMA, Task, TaskData

SHUFFLE_SEED = 1337
EXAMPLES_SEED = 1234
AFTER_EXAMPLE = "\n\n"


@dataclass(frozen=True)
class Candidate:
    """One token sequence of an item, `bos` included; the tokens from `start` (at least 1) on are scored."""

    tokens: list[int]
    start: int

    @property
    def inputs(self) -> list[int]:
        """The tokens that the model reads: all but the last, which is only a target."""
        return self.tokens[:-1]

    @property
    def targets(self) -> list[int]:
        """The tokens that are scored."""
        return self.tokens[self.start :]


@dataclass(frozen=True)
class Question:
    """One item ready for the model.

    Attributes:
        candidates: one per choice (multiple choice, schema), a single one (language modelling); empty if `unscorable`.
        unscorable: the reason why the item cannot be scored (its scored part is empty or does not fit the context).
        truncated: a candidate lost tokens on its left.
        unaligned: language modelling: the prompt without the continuation is not a token prefix of the one with it.
    """

    candidates: list[Candidate] = field(default_factory=list)
    unscorable: str | None = None
    truncated: bool = False
    unaligned: bool = False


def item_order(count: int, max_items: int | None = None) -> list[int]:
    """The indices of the items to evaluate, in order: shuffled, then cut to `max_items`."""
    order = list(range(count))
    random.Random(SHUFFLE_SEED).shuffle(order)
    return order if max_items is None else order[:max_items]


def draw_examples(index: int, count: int, shots: int) -> list[int]:
    """Draw the examples of item `index` of `count` (the shuffled, cut ones): `shots` others, in order."""
    if shots == 0:
        return []
    # sample() looks only at the population's length: drawing places among the others, then skipping `index`, equals
    # sampling the list of the others, without building a list of all items for each item
    places = random.Random(EXAMPLES_SEED + index).sample(range(count - 1), shots)
    return [place if place < index else place + 1 for place in places]


def check_enough_items(data: TaskData, max_items: int | None) -> TaskData:
    """Return `data`. Raises ValueError if, cut to `max_items`, it has too few items for its examples."""
    task = data.task
    count = len(data.items) if max_items is None else min(len(data.items), max_items)
    if count < task.shots + 1:
        raise ValueError(
            f"task {task.name} ({data.source}): got {count} item{'s' * (count != 1)}, takes at least "
            f"{task.shots + 1}: {task.shots} examples and the item itself"
        )
    return data


def render(task: Task, item: dict, examples: Sequence[dict]) -> list[str]:
    """The texts of one item: one per choice or context option; for language modelling without and with the answer."""
    shown = "".join(_solved(task, example) + AFTER_EXAMPLE for example in examples)
    if task.type == MULTIPLE_CHOICE:
        return [shown + item["query"] + task.delimiter + choice for choice in item["choices"]]
    if task.type == SCHEMA:
        return [shown + context + task.delimiter + item["continuation"] for context in item["context_options"]]
    before = shown + item["context"].strip() + task.delimiter
    return [before.strip(), before + item["continuation"]]


def _solved(task: Task, item: dict) -> str:
    """An item with its right answer, as an example shows it."""
    if task.type == MULTIPLE_CHOICE:
        return item["query"] + task.delimiter + item["choices"][item["gold"]]
    if task.type == SCHEMA:
        return item["context_options"][item["gold"]] + task.delimiter + item["continuation"]
    return item["context"].strip() + task.delimiter + item["continuation"]


def make_question(type_: str, sequences: list[list[int]], sequence_len: int) -> Question:
    """Find the scored part of one item's sequences (`bos` first) and fit them into `sequence_len` tokens.

    Multiple choice scores from the first position in which the sequences differ; schema the tokens that all end
    with; language modelling what follows the prompt without the continuation. If tokenisation makes that prompt no
    token prefix (its last word merges with the answer's first letters), everything from the first token that differs
    is scored, so that the whole answer stays inside, and the question is marked `unaligned`.
    """
    unaligned = False
    if type_ == MULTIPLE_CHOICE:
        starts = [common_prefix(sequences)] * len(sequences)
    elif type_ == SCHEMA:
        suffix = common_prefix([sequence[::-1] for sequence in sequences])
        starts = [len(sequence) - suffix for sequence in sequences]
    else:
        assert type_ == LANGUAGE_MODELING
        without, sequence = sequences
        starts, sequences = [common_prefix(sequences)], [sequence]
        unaligned = starts[0] < len(without)
    return _fit(sequences, starts, sequence_len, unaligned)


def _fit(sequences: list[list[int]], starts: list[int], sequence_len: int, unaligned: bool) -> Question:
    """Cut the sequences on the left; an item whose scored part is empty or lost cannot be scored."""
    truncated = any(len(sequence) > sequence_len for sequence in sequences)
    candidates = []
    for sequence, start in zip(sequences, starts):
        if start >= len(sequence):
            return Question([], "a choice has no tokens of its own", truncated, unaligned)
        cut = max(0, len(sequence) - sequence_len)
        if start - cut < 1:  # the first scored token needs one before it that predicts it
            reason = "the scored part does not fit the context" if cut else "the sequences are all the same"
            return Question([], reason, truncated, unaligned)
        candidates.append(Candidate(sequence[cut:], start - cut))
    return Question(candidates, None, truncated, unaligned)


def common_prefix(sequences: Sequence[list[int]]) -> int:
    """The number of tokens with which all the sequences begin."""
    first, others = sequences[0], sequences[1:]
    # by bisection, on slices: ten comparisons in C in place of a loop over a thousand tokens
    low, high = 0, min(map(len, sequences))
    while low < high:
        middle = (low + high + 1) // 2
        if all(other[low:middle] == first[low:middle] for other in others):
            low = middle
        else:
            high = middle - 1
    return low
