"""The evaluator beside the usual way, on the same items in the same process.

The usual way: item by item, the full prompts of all its choices padded into one batch, the logits of every position.

Shapes: B choices of an item, T positions, V vocabulary.
"""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from nanogka.evaluate.in_context import judge, make_questions
from nanogka.evaluate.prompts import item_order
from nanogka.evaluate.scoring import Score
from nanogka.evaluate.stems import CacheMaker
from nanogka.evaluate.suite import evaluate_task
from nanogka.evaluate.task import LANGUAGE_MODELING, TaskData


@dataclass(frozen=True)
class Comparison:
    """One task both ways.

    Attributes:
        usual_seconds, seconds: the usual way's and ours, tokenising included.
        usual_cpu, cpu: the same in processor time of all threads, which other programs on the machine disturb less.
        different: items whose prediction differs.
        largest_gap: the largest difference between two mean losses, in nats.
        usual_peak, peak: the most memory the process held meanwhile, in bytes; None where the system does not say.
    """

    task: str
    items: int
    usual_seconds: float
    seconds: float
    usual_cpu: float
    cpu: float
    different: int
    largest_gap: float
    usual_peak: int | None
    peak: int | None

    @property
    def speedup(self) -> float:
        """Usual time over ours."""
        return self.usual_seconds / self.seconds

    @property
    def cpu_speedup(self) -> float:
        """The same of processor time."""
        return self.usual_cpu / self.cpu

    def to_dict(self) -> dict:
        """For JSON."""
        return asdict(self) | {"speedup": round(self.speedup, 3), "cpu_speedup": round(self.cpu_speedup, 3)}


def compare(model, tokenizer, data: TaskData, max_items: int, new_cache: CacheMaker, usual_first: bool) -> Comparison:
    """Run one task both ways, one after the other; the model is in eval mode."""

    def ours() -> list[tuple]:
        _, predictions = evaluate_task(model, tokenizer, data, max_items=max_items, new_cache=new_cache, progress=False)
        return [(prediction.prediction, prediction.losses) for prediction in predictions]

    ways: dict[str, Callable[[], list[tuple]]] = {"ours": ours}
    ways["usual"] = lambda: usual_evaluate(model, tokenizer, data, max_items)
    found, seconds, cpu, peaks = {}, {}, {}, {}
    for name in sorted(ways, reverse=usual_first):
        _reset_peak()
        began, began_cpu = time.perf_counter(), time.process_time()
        found[name] = ways[name]()
        seconds[name], cpu[name] = time.perf_counter() - began, time.process_time() - began_cpu
        peaks[name] = peak_memory()
    pairs = list(zip(found["usual"], found["ours"]))
    gaps = [abs(a - b) for (_, one), (_, other) in pairs for a, b in zip(one, other)]
    return Comparison(
        task=data.task.name,
        items=len(pairs),
        usual_seconds=seconds["usual"],
        seconds=seconds["ours"],
        usual_cpu=cpu["usual"],
        cpu=cpu["ours"],
        different=sum(one[0] != other[0] for one, other in pairs),
        largest_gap=max(gaps, default=0.0),
        usual_peak=peaks["usual"],
        peak=peaks["ours"],
    )


@torch.no_grad()
def usual_evaluate(model, tokenizer, data: TaskData, max_items: int | None) -> list[tuple]:
    """The usual way: (prediction, mean losses) of each item in the shuffled order."""
    order, outcomes = item_order(len(data.items), max_items), []
    for place in range(len(order)):
        (question,) = make_questions(tokenizer, data, order, [place], model.config.sequence_len)
        scores = _usual_scores(model, question.candidates) if question.candidates else []
        gold = data.items[order[place]].get("gold") if data.task.type != LANGUAGE_MODELING else None
        outcomes.append((judge(data.task.type, scores, gold)[0], [score.mean_loss for score in scores]))
    return outcomes


def _usual_scores(model, candidates: Sequence) -> list[Score]:
    longest = max(len(candidate.tokens) for candidate in candidates)
    tokens = torch.zeros(len(candidates), longest, dtype=torch.long)
    for row, candidate in zip(tokens, candidates):
        row[: len(candidate.tokens)] = torch.tensor(candidate.tokens)
    tokens = tokens.to(model.device)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = model(inputs)  # (B, T, V)
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none").view(targets.shape)
    hits = logits.argmax(-1) == targets
    parts = [slice(candidate.start - 1, len(candidate.tokens) - 1) for candidate in candidates]
    return [Score(float(losses[i, part].mean()), bool(hits[i, part].all())) for i, part in enumerate(parts)]


def table(comparisons: Sequence[Comparison]) -> list[str]:
    """The comparisons and their sum as lines of text."""
    head = f"{'task':34} {'items':>6} {'usual s':>9} {'ours s':>9} {'faster':>7} {'by cpu':>7}"
    lines = [f"{head} {'differ':>7} {'largest gap':>12}"]
    lines.append("-" * len(lines[0]))
    for c in [*comparisons, total(comparisons)]:
        lines.append(
            f"{c.task:34} {c.items:6,} {c.usual_seconds:9.2f} {c.seconds:9.2f} {c.speedup:6.2f}× {c.cpu_speedup:6.2f}× "
            f"{c.different:7} {c.largest_gap:12.1e}"
        )
    return lines


def total(comparisons: Sequence[Comparison]) -> Comparison:
    """Sums of items and seconds, the largest of gaps and peaks."""
    peaks = [[p for p in column if p is not None] for column in zip(*((c.usual_peak, c.peak) for c in comparisons))]
    summed = ("items", "usual_seconds", "seconds", "usual_cpu", "cpu", "different")
    return Comparison(
        "total",
        *(sum(getattr(c, name) for c in comparisons) for name in summed),
        max(c.largest_gap for c in comparisons),
        *(max(column, default=None) for column in peaks),
    )


def _reset_peak() -> None:
    """Let the kernel count the process's peak anew, where it can (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory() -> int | None:
    """The most bytes of memory this process held since `_reset_peak`, or, where that cannot be, since its start."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
