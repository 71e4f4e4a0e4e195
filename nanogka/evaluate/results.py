"""Predictions, centered scores and their means, and the table of results.

Guessing earns more in some tasks than in others: half of the points with two choices, none with a word to predict. A
centered score, (accuracy − chance) / (1 − chance), is 0 for guessing and 1 if everything is right. Only then does a
mean over tasks say how much was learned; of plain accuracies, tasks with few choices would dominate it.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from nanogka.common.files import atomic_write
from nanogka.common.formatting import plain_table
from nanogka.evaluate.intervals import Interval, share_interval

# Centered scores in the paper's table (arXiv 2605.02144), depth 20 on FineWeb-Edu: the baseline's, and GKA's.
PAPER_SCORES = {
    "hellaswag_zeroshot": (0.2650, 0.2267),
    "copa": (0.3000, 0.3000),
    "openbook_qa": (0.1520, 0.2000),
    "lambada_openai": (0.3627, 0.2750),
    "winograd": (0.3040, 0.2800),
    "winogrande": (0.0671, 0.0900),
}
PAPER_MEAN = (0.2418, 0.2286)
PAPER_TASKS = tuple(PAPER_SCORES)


@dataclass(frozen=True)
class Prediction:
    """The outcome of one item."""

    task: str
    item: int  # place in the shuffled order
    line: int  # in the file
    gold: int | None  # the right choice; None for language modeling
    prediction: int | bool | None  # for language modeling whether all tokens were the argmax; None if unscorable
    correct: bool
    losses: list[float]  # mean of each candidate in nats; empty if unscorable
    note: str = ""  # why the item is unscorable
    truncated: bool = False  # a candidate lost tokens on its left to fit the context

    def to_json(self) -> dict:
        """A line of a predictions file; a loss that is not finite becomes null."""
        return asdict(self) | {"losses": [loss if math.isfinite(loss) else None for loss in self.losses]}


def write_predictions(file: Path, predictions: Iterable[Prediction]) -> None:
    """Write predictions, one line of JSON each."""
    atomic_write(file, "".join(json.dumps(prediction.to_json()) + "\n" for prediction in predictions))


def write_json(file: Path, document: dict) -> None:
    """Write a results file. Lists of numbers are one line each."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)
    # JSON escapes the line ends of strings, so a line end is always one of the indentation, and no text is changed.
    text = re.sub(r"\[\n\s*([-+.\de,\s]+?)\n\s*\]", lambda found: f"[{''.join(found[1].split())}]", text)
    atomic_write(file, text + "\n")


@dataclass(frozen=True)
class TaskResult:
    """The score of one task."""

    name: str
    type: str
    shots: int
    chance: float  # accuracy of guessing, in [0, 1)
    correct: int
    items: int
    seconds: float  # wall-clock time, tokenizing included
    truncated: int = 0  # prompts that were cropped
    unscorable: int = 0  # the scored part is empty or does not fit the context; counted as wrong
    distinct: int = 0  # different items, if several prompts ask for one; 0: each prompt is an item

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.items

    @property
    def centered(self) -> float:
        """(accuracy − chance) / (1 − chance); 0 where guessing is always right."""
        return (self.accuracy - self.chance) / (1 - self.chance or math.inf)

    @property
    def sample(self) -> int:
        """The number of independent items: a model that knows an item tends to know it in every wording."""
        return self.distinct or self.items

    @property
    def stderr(self) -> float:
        """Standard error of the accuracy; NaN for a single item."""
        if self.sample < 2:
            return math.nan
        # Of n independent items that are right with probability p; n − 1 because p is estimated from the same items.
        return math.sqrt(self.accuracy * (1 - self.accuracy) / (self.sample - 1))

    @property
    def interval(self) -> Interval:
        """The accuracy with its 95 % interval."""
        return share_interval(self.accuracy, self.sample)

    @property
    def centered_stderr(self) -> float:
        """Standard error of the centered score."""
        return self.stderr / (1 - self.chance or math.inf)

    def to_json(self) -> dict:
        """The entry of a results file."""
        finite = math.isfinite(self.stderr)
        scores = {
            "accuracy": self.accuracy,
            "centered": self.centered,
            "stderr": self.stderr if finite else None,
            "centered_stderr": self.centered_stderr if finite else None,
            "interval": [self.interval.low, self.interval.high],
        }
        return asdict(self) | scores | {"seconds": round(self.seconds, 3)}

    @classmethod
    def from_json(cls, entry: dict) -> "TaskResult":
        """The result in an entry of a results file; KeyError if the entry lacks something."""
        return cls(**{field.name: entry[field.name] for field in fields(cls)})


def mean_centered(results: Iterable[TaskResult], names: Sequence[str]) -> float | None:
    """Mean of the centered scores of the tasks called `names`; None unless all of them were run."""
    centered = {result.name: result.centered for result in results}
    if not names or not all(name in centered for name in names):
        return None
    return sum(centered[name] for name in names) / len(names)


def format_table(results: Sequence[TaskResult], core: Sequence[str] = ()) -> str:
    """The results as a table of plain text, and notes; `core` names the tasks over which CORE is the mean."""
    lines, notes = (
        [["task", "type", "shots", "accuracy", "95 % interval", "centered", "chance", "items", "seconds"]],
        [],
    )
    for result in results:
        ends = f"{result.interval.low:.3f} to {result.interval.high:.3f}"
        numbers = [f"{result.accuracy:.4f}", ends, f"{result.centered:.4f}"]
        numbers += [f"{result.chance:.3f}", f"{result.items:,}", f"{result.seconds:.1f}"]
        lines.append([result.name, result.type, str(result.shots), *numbers])
        if result.truncated:
            notes.append(f"{result.name}: {result.truncated:,} prompts were cropped on the left to fit the context")
        if result.unscorable:
            notes.append(f"{result.name}: {result.unscorable:,} items could not be scored and count as wrong")
    for label, names in (("mean of the paper's six", PAPER_TASKS), ("CORE", core)):
        mean = mean_centered(results, names)
        if mean is not None:
            lines.append([label, "", "", "", "", f"{mean:.4f}", "", "", ""])
    return "\n".join([plain_table(lines, left=2), *notes])
