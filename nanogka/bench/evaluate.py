"""The evaluator beside the usual way, on the same items in the same process.

The usual way: item by item, the full prompts of all its choices padded into one batch, the logits of every position.

Shapes: B choices of an item, T positions, V vocabulary.
"""

import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from nanogka.evaluate.in_context import evaluate_task, judge, make_questions
from nanogka.evaluate.prompts import item_order
from nanogka.evaluate.scoring import Score, padded
from nanogka.evaluate.task import LANGUAGE_MODELING, TaskData
from nanogka.formatting import plain_table


def compare(model, tokenizer, data: TaskData, max_items: int, usual_first: bool) -> dict:
    """Run one task both ways, one after the other; the model is in eval mode.

    Returns:
        task, items, usual_seconds and seconds (tokenising included), different (items whose prediction differs) and
        largest_gap (between two mean losses, in nats).
    """
    found, seconds = {}, {}
    for way in (usual_evaluate, fast_evaluate) if usual_first else (fast_evaluate, usual_evaluate):
        began = time.perf_counter()
        found[way] = way(model, tokenizer, data, max_items)
        seconds[way] = time.perf_counter() - began
    pairs = list(zip(found[usual_evaluate], found[fast_evaluate]))
    return {
        "task": data.task.name,
        "items": len(pairs),
        "usual_seconds": seconds[usual_evaluate],
        "seconds": seconds[fast_evaluate],
        "different": sum(one[0] != other[0] for one, other in pairs),
        "largest_gap": max((abs(a - b) for (_, u), (_, o) in pairs for a, b in zip(u, o)), default=0.0),
    }


def fast_evaluate(model, tokenizer, data: TaskData, max_items: int) -> list[tuple]:
    """The evaluator: (prediction, mean losses) of each item in the shuffled order."""
    _, predictions = evaluate_task(model, tokenizer, data, max_items=max_items)
    return [(prediction.prediction, prediction.losses) for prediction in predictions]


@torch.no_grad()
def usual_evaluate(model, tokenizer, data: TaskData, max_items: int) -> list[tuple]:
    """The usual way: (prediction, mean losses) of each item in the shuffled order."""
    order, outcomes = item_order(len(data.items), max_items), []
    for place in range(len(order)):
        (question,) = make_questions(tokenizer, data, order, [place], model.config.sequence_len)
        scores = _usual_scores(model, question.candidates) if question.candidates else []
        gold = data.items[order[place]].get("gold") if data.task.type != LANGUAGE_MODELING else None
        outcomes.append((judge(data.task.type, scores, gold)[0], [score.mean_loss for score in scores]))
    return outcomes


def _usual_scores(model, candidates: Sequence) -> list[Score]:
    tokens = padded([candidate.tokens for candidate in candidates], 0, model.device)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = model(inputs)  # (B, T, V)
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none").view(targets.shape)
    hits = logits.argmax(-1) == targets
    parts = [slice(candidate.start - 1, len(candidate.tokens) - 1) for candidate in candidates]
    return [Score(float(losses[i, part].mean()), bool(hits[i, part].all())) for i, part in enumerate(parts)]


def total(comparisons: Sequence[dict]) -> dict:
    """Sums of items, seconds and differences, the largest gap."""
    sums = {name: sum(c[name] for c in comparisons) for name in ("items", "usual_seconds", "seconds", "different")}
    return {"task": "total", **sums, "largest_gap": max(c["largest_gap"] for c in comparisons)}


def table(comparisons: Sequence[dict]) -> str:
    """The comparisons and their sum as a table of plain text."""
    rows = [["task", "items", "usual s", "ours s", "faster", "differ", "largest gap"]]
    for c in [*comparisons, total(comparisons)]:
        seconds = [f"{c['usual_seconds']:.2f}", f"{c['seconds']:.2f}", f"{c['usual_seconds'] / c['seconds']:.2f}×"]
        rows.append([c["task"], f"{c['items']:,}", *seconds, f"{c['different']}", f"{c['largest_gap']:.1e}"])
    return plain_table(rows)
