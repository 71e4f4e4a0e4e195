"""Runs in columns beside each other and beside the paper: costs, bits per byte, scores.

The paper's numbers are those of arXiv 2605.02144: depth 20 on 8 GPUs, FineWeb-Edu, each mixer at its own horizon (not
compute-matched). Pairs are (GKA, baseline).
"""

from collections.abc import Mapping, Sequence

from nanogka.plots.compare import differing_settings, speeds_compare
from nanogka.plots.runs import Run
from nanogka.plots.tables import MISSING, duration, markdown_table, number, scientific

PAPER_BPB = {"train": (0.818256, 0.7800), "val": (0.819080, 0.7884)}
PAPER_COSTS = {
    "parameters": (378_798_320, 896_535_720),
    "flops_per_token": (2.4143e9, 3.0042e9),
    "tokens": (2.7787e9, 4.5686e9),
    "flops": (6.7088e18, 1.3725e19),
}
SHORT_NAMES = {"gaussian": "GKA", "dot_product": "baseline"}
PAPER_COLUMNS = ["paper's GKA", "paper's baseline"]


def short_name(run: Run) -> str:
    """How a run's column is headed: its mixer, and its tag where the mixer has no name."""
    return SHORT_NAMES.get(run.attention, run.tag)


def in_order(run: Run, other: Run | None) -> list[Run]:
    """The runs from left to right: GKA first, as in the paper's ratios."""
    runs = [run] if other is None else [run, other]
    return sorted(runs, key=lambda r: list(SHORT_NAMES).index(r.attention) if r.attention in SHORT_NAMES else 2)


def speed_sentence(run: Run, other: Run) -> str:
    """How much faster one of two runs trains, or why that cannot be said."""
    first, second = in_order(run, other)
    if first.tokens_per_second is None or not second.tokens_per_second:
        return "Tokens per second were not recorded for both runs."
    if not speeds_compare(first, second):
        return "The two did not run on the same machine in the same way, so their tokens per second do not compare."
    alike = not differing_settings(first, second)  # else it is not the mixers alone that are compared
    named = alike and {"gaussian", "dot_product"} == {first.attention, second.attention}
    names = ("GKA", "the baseline") if named else (first.tag, second.tag)
    ratio = first.tokens_per_second / second.tokens_per_second
    speeds = f"{first.tokens_per_second:,.0f} against {second.tokens_per_second:,.0f}"
    return f"{names[0]} trains {ratio:.2f} × as many tokens per second as {names[1]} (medians: {speeds})."


def bits_per_byte(runs: Sequence[Run], split: str) -> list[float | None]:
    """BPB of each run, all measured in the same way: by the evaluation if all have one, else by training."""
    evaluated = [run.evaluated.get(split) for run in runs]
    if None not in evaluated or split != "val":
        return evaluated
    trained = [run.last_validation for run in runs]
    return trained if None not in trained else [run.validation_bpb for run in runs]


def cost_table(runs: Sequence[Run]) -> str:
    """Bits per byte, speed and costs of one run or two, their ratio, and the paper's."""
    rows = []
    for label, split in (("validation BPB", "val"), ("training-text BPB", "train")):
        rows.append(_cost_row(label, bits_per_byte(runs, split), lambda v: number(v), PAPER_BPB[split]))
    rows.append(_cost_row("tokens / s (median)", [run.tokens_per_second for run in runs], lambda v: number(v, 0)))
    if len(runs) == 2 and not speeds_compare(*runs):
        rows[-1][3] = MISSING
    for label, key, show in (
        ("parameters", "parameters", number),
        ("FLOPs / token", "flops_per_token", scientific),
        ("tokens", "tokens", scientific),
        ("training FLOPs", "flops", scientific),
    ):
        values = [getattr(run, key) if hasattr(run, key) else run.last(key) for run in runs]
        rows.append(_cost_row(label, values, show, PAPER_COSTS[key]))
    rows.append(_cost_row("time in training steps", [run.training_seconds for run in runs], duration))
    header = ["", *map(short_name, runs)]
    header += [f"{header[1]} / {header[2]}"] if len(runs) == 2 else []
    return markdown_table([*header, *PAPER_COLUMNS, "paper's ratio"], rows)


def _cost_row(label: str, values: list, show, paper: tuple[float, float] | None = None) -> list[str]:
    row = [label, *map(show, values)]
    if len(values) == 2:
        row.append(_ratio(*values))
    return row + ([*map(show, paper), _ratio(*paper)] if paper else [MISSING] * 3)


def _ratio(one: float | None, other: float | None) -> str:
    return MISSING if one is None or not other else f"{one / other:.2f}"


def score_table(runs: Sequence[Run], paper_scores: Mapping[str, tuple[float, float]]) -> str:
    """Accuracy and centred score of every task, of one run or two, and the paper's centred scores.

    Args:
        paper_scores: centred scores by task, (baseline, GKA); tasks that were not run get a row as well. The mean of
            them all is among them as "mean of the six".
    """
    tasks = [{task["name"]: task for task in run.tasks} for run in runs]
    names = list(dict.fromkeys([name for by_name in tasks for name in by_name] + list(paper_scores)))
    means = {"mean of the six": "six_task_mean", "CORE": "core"}
    names = [name for name in names if name not in means] + list(means)
    rows = []
    for name in names:
        found = [by_name.get(name, {}) for by_name in tasks]
        chance = next((task["chance"] for task in found if task.get("chance") is not None), None)
        accuracies = [_accuracy(task) for task in found]
        centred = [task.get("centered") for task in found]
        if name in means:
            centred = [run.evaluation.get(means[name]) for run in runs]
        baseline, gka = paper_scores.get(name, (None, None))
        if any(value is not None for value in (*centred, gka)):
            rows.append([name, number(chance, 2), *accuracies, *map(number, (*centred, gka, baseline))])
    heads = list(map(short_name, runs))
    own = [f"{head}: accuracy" for head in heads] + [f"{head}: centred" for head in heads]
    return markdown_table(["task", "chance", *own, *(f"{name}: centred" for name in PAPER_COLUMNS)], rows)


def _accuracy(task: dict) -> str:
    if task.get("accuracy") is None:
        return MISSING
    error = "" if task.get("stderr") is None else f" ± {100 * task['stderr']:.1f}"
    return f"{100 * task['accuracy']:.1f}{error} %"
