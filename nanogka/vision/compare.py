"""Models of one shape and different attention, trained alike with several seeds: accuracy, cost, speed in a table."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median, stdev

from nanogka.common.formatting import MISSING, markdown_table, number
from nanogka.runs import METRICS, Run
from nanogka.vision.models import model_name
from nanogka.vision.settings import VisionSettings

LABELS = {"": "DeiT (softmax)", "vlt": "VLT (no values)", "gka": "GKA", "gka_affine": "GKA, scales and shifts"}
HEADER = ["attention", "seeds", "top-1 %", "averaged weights %", "parameters", "FLOPs / image", "images / s, training"]


def plan_runs(settings: VisionSettings, attentions: Sequence[str], seeds: int) -> Iterator[VisionSettings]:
    """The settings of every run, seed by seed, so that an unfinished comparison has all models of the first seeds."""
    for seed in range(1, seeds + 1):
        for attention in attentions:
            model = model_name("micro", attention)
            name = f"{settings.run or settings.data}-{attention or 'softmax'}-{seed}"
            yield replace(settings, model=model, seed=seed, run=name, resume="auto")


def collect_outcomes(home: Path, planned: Sequence[VisionSettings]) -> list[dict]:
    """Results of the planned runs that are finished, by attention; accuracies are fractions, one per seed."""
    found: dict[str, list[Run]] = {}
    for settings in planned:
        if not (home / settings.run / METRICS).exists():
            continue
        run = Run.open(home / settings.run)
        last = run.fact("steps_per_epoch") * run.fact("epochs")
        if run.train and run.validations and run.train[-1]["step"] == run.validations[-1]["step"] == last:
            found.setdefault(settings.model, []).append(run)
    outcomes = []
    for attention in LABELS:
        if runs := found.get(model_name("micro", attention)):
            lines = [run.validations[-1] for run in runs]
            top1, averaged = ([line[name] for line in lines if name in line] for name in ("top1", "ema_top1"))
            costs = {"parameters": runs[0].fact("parameters"), "flops": runs[0].fact("flops_per_image")}
            costs["images_per_second"] = median(run.median("images_per_second") for run in runs)
            outcomes.append({"attention": attention, "top1": top1, "averaged": averaged, **costs})
    return outcomes


def format_outcomes(outcomes: Sequence[dict]) -> str:
    """The table in Markdown, and below it as a line of JSON."""
    rows = []
    for o in outcomes:
        costs = [number(o["parameters"]), f"{o['flops'] / 1e6:.2f} M", number(o["images_per_second"], 0)]
        rows.append([LABELS[o["attention"]], f"{len(o['top1'])}", _spread(o["top1"]), _spread(o["averaged"]), *costs])
    return markdown_table(HEADER, rows) + "\n\n" + json.dumps(outcomes)


def _spread(values: Sequence[float]) -> str:
    if not values:
        return MISSING
    spread = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.2f}{spread}"
