"""Benchmarks: how each is declared, its items, and the check that an item is well formed.

An item is a mapping with the keys of its task's type, as DCLM and nanochat store them:

    multiple_choice     query, choices, gold            one query, several endings
    schema              context_options, continuation, gold     several beginnings, one ending
    language_modeling   context, continuation           the continuation must be predicted word for word
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from reprlib import repr as shortened

MULTIPLE_CHOICE, SCHEMA, LANGUAGE_MODELING = TYPES = ("multiple_choice", "schema", "language_modeling")
TEXTS = {MULTIPLE_CHOICE: ("query",), SCHEMA: ("continuation",), LANGUAGE_MODELING: ("context", "continuation")}
OPTIONS = {MULTIPLE_CHOICE: "choices", SCHEMA: "context_options"}  # the key of the strings of which `gold` names one
DEFAULT_DELIMITER = " "


@dataclass(frozen=True)
class HubSource:
    """A task's place on the Hugging Face hub.

    Attributes:
        dataset, config, split: as `datasets.load_dataset` takes them; `config` may be empty.
        convert: turns a row's columns into an item of the task's type, worded as the evaluation bundle words it.
    """

    dataset: str
    config: str
    split: str
    convert: Callable[[dict], dict]


@dataclass(frozen=True)
class Task:
    """One benchmark: what it measures, how it is asked, and where its items come from.

    Attributes:
        name: as in the bundle's `core.yaml`.
        type: one of `TYPES`.
        shots: solved examples put before each item.
        chance: accuracy of guessing, in [0, 1); None: worked out from the number of choices of each item.
        path: the items' file, relative to the bundle's `eval_data/`; None for a task made from text.
        delimiter: the string between a query (or context) and its answer.
        measures: one sentence for people.
        hub: the same items on the Hugging Face hub, if they are there.
        make_items: makes the items from documents, for a task that needs no file.
    """

    name: str
    type: str
    shots: int = 0
    chance: float | None = None
    path: str | None = None
    delimiter: str = DEFAULT_DELIMITER
    measures: str = ""
    hub: HubSource | None = field(default=None, compare=False)
    make_items: Callable[[Iterable[str]], list[dict]] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            raise ValueError(f"task {self.name}: got type {self.type!r}, takes {', '.join(TYPES)}")
        if isinstance(self.shots, bool) or not isinstance(self.shots, int) or self.shots < 0:
            raise ValueError(f"task {self.name}: got {shortened(self.shots)} shots, takes an integer of at least 0")
        if self.chance is not None and not 0 <= self.chance < 1:
            raise ValueError(f"task {self.name}: got chance {self.chance!r}, takes a number from 0 up to, not with, 1")


@dataclass(frozen=True)
class TaskData:
    """A task with its items, in the order of the file; `lines[i]` is the line of item i, `source` the file's name."""

    task: Task
    items: Sequence[dict]
    source: str = "memory"
    lines: Sequence[int] = field(default=())

    def line(self, index: int) -> int:
        """The line of item `index` in its file, from 1."""
        return self.lines[index] if self.lines else index + 1

    @property
    def chance(self) -> float:
        """The task's chance level; if the task states none, the mean of 1 / number of choices."""
        if self.task.chance is not None:
            return self.task.chance
        key = OPTIONS.get(self.task.type)
        return sum(1 / len(item[key]) for item in self.items) / len(self.items) if key else 0.0


def item_problem(type_: str, item: object) -> str | None:
    """The reason why `item` is not a well-formed item of a task of this type; None if it is."""
    if not isinstance(item, dict):
        return f"takes an object, got {type(item).__name__}"
    texts, options = TEXTS[type_], OPTIONS.get(type_)
    for key in (*texts, *([options, "gold"] if options else [])):
        if key not in item:
            return f"the key {key!r} is missing"
    for key in texts:
        if not isinstance(item[key], str):
            return f"{key!r} takes a string, got {shortened(item[key])}"
    if "continuation" in texts and not item["continuation"].strip():
        return "'continuation' is blank: there is nothing to score"
    choices = item[options] if options else []
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        return f"{options!r} takes a list of strings, got {shortened(choices)}"
    try:
        "".join([*(item[key] for key in texts), *choices]).encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair, which JSON can spell and no tokenizer can encode"
    if not options:
        return None
    if len(choices) < 2:
        return f"{options!r} takes at least two, got {len(choices)}"
    gold = item["gold"]
    if isinstance(gold, bool) or not isinstance(gold, int) or not 0 <= gold < len(choices):
        return f"'gold' takes an index from 0 to {len(choices) - 1}, got {shortened(gold)}"
    return None
