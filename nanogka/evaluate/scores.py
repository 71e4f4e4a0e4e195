"""Centred scores, CORE, the paper's six-task mean, and the table that shows them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Table of the paper (arXiv 2605.02144), depth 20 on FineWeb-Edu: centred scores of the baseline and of GKA.
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
class TaskResult:
    """The score of one task.

    Attributes:
        chance: accuracy of guessing, in [0, 1).
        correct, items: counts; an item that could not be scored is among `items` and not among `correct`.
        seconds: wall-clock time, tokenising included.
        truncated: items that lost tokens on their left to fit the context.
        unaligned: language-modelling items whose prompt is no token prefix of prompt and answer.
        unscorable: items of which what is scored is empty or does not fit the context; counted as wrong.
    """

    name: str
    type: str
    shots: int
    chance: float
    correct: int
    items: int
    seconds: float
    truncated: int = 0
    unaligned: int = 0
    unscorable: int = 0

    @property
    def accuracy(self) -> float:
        return self.correct / self.items

    @property
    def centered(self) -> float:
        """0 at chance, 1 when all is right, below 0 when worse than chance."""
        return (self.accuracy - self.chance) / (1 - self.chance)

    @property
    def stderr(self) -> float:
        """Standard error of the accuracy, from the sample; NaN for a single item."""
        if self.items < 2:
            return math.nan
        return math.sqrt(self.accuracy * (1 - self.accuracy) / (self.items - 1))

    @property
    def centered_stderr(self) -> float:
        """Standard error of the centred score."""
        return self.stderr / (1 - self.chance)

    def to_json(self) -> dict:
        """As in `evaluation.json`; `stderr` is the accuracy's, `centered_stderr` the centred score's."""
        finite = math.isfinite(self.stderr)
        return {
            "name": self.name,
            "type": self.type,
            "shots": self.shots,
            "accuracy": self.accuracy,
            "centered": self.centered,
            "stderr": self.stderr if finite else None,
            "centered_stderr": self.centered_stderr if finite else None,
            "chance": self.chance,
            "items": self.items,
            "seconds": round(self.seconds, 3),
            "truncated": self.truncated,
            "unaligned": self.unaligned,
            "unscorable": self.unscorable,
        }


def mean_centered(results: Iterable[TaskResult], names: Sequence[str]) -> float | None:
    """Mean of the centred scores of the tasks called `names`; None unless all of them are there."""
    centered = {result.name: result.centered for result in results}
    if not names or not all(name in centered for name in names):
        return None
    return sum(centered[name] for name in names) / len(names)


def six_task_mean(results: Iterable[TaskResult]) -> float | None:
    """The mean the paper reports, over its six tasks; None unless all six were run."""
    return mean_centered(results, PAPER_TASKS)


def core_score(results: Iterable[TaskResult], names: Sequence[str]) -> float | None:
    """CORE: the mean over all of its tasks, whose names are given; None unless all were run."""
    return mean_centered(results, names)


def format_table(results: Sequence[TaskResult], core_names: Sequence[str] = ()) -> str:
    """The results as a table of plain text, the paper's two columns beside ours."""
    header = ["task", "type", "shots", "accuracy", "centred", "± s.e.", "chance", "items", "seconds"]
    header += ["paper base", "paper GKA"]
    lines = [header]
    for result in results:
        paper = [f"{score:.4f}" for score in PAPER_SCORES.get(result.name, ())] or ["", ""]
        numbers = [f"{result.accuracy:.4f}", f"{result.centered:.4f}", f"{result.centered_stderr:.4f}"]
        numbers += [f"{result.chance:.3f}", f"{result.items:,}", f"{result.seconds:.1f}"]
        lines.append([result.name, result.type, str(result.shots), *numbers, *paper])
    for label, mean, paper in (
        ("mean of the paper's six", six_task_mean(results), [f"{score:.4f}" for score in PAPER_MEAN]),
        ("CORE", core_score(results, core_names), ["", ""]),
    ):
        if mean is not None:
            lines.append([label, "", "", "", f"{mean:.4f}", "", "", "", "", *paper])
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    rows = []
    for line in lines:
        # names to the left, numbers to the right
        cells = [cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths))]
        rows.append("  ".join(cells).rstrip())
    rows.insert(1, "-" * max(map(len, rows)))
    return "\n".join(rows + [note for result in results for note in _notes(result)])


def _notes(result: TaskResult) -> list[str]:
    """What a reader of the table must know about how a task was scored."""
    notes = []
    if result.truncated:
        notes.append(f"{result.name}: {result.truncated} of {result.items} prompts cut on the left to fit the context")
    if result.unaligned:
        notes.append(f"{result.name}: {result.unaligned} answers share a token with their prompt, scored with it")
    if result.unscorable:
        notes.append(f"{result.name}: {result.unscorable} items could not be scored and count as wrong")
    return notes
