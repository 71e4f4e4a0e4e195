"""Models of one shape and different attention, trained alike with several seeds: accuracy, cost, speed in a table."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev

from nanogka.formatting import MISSING, markdown_table
from nanogka.runs import METRICS, Run
from nanogka.vision.models import ATTENTION, model_name
from nanogka.vision.settings import VisionSettings

LABELS = {"": "DeiT (softmax)", "vlt": "VLT (no values)", "gka": "GKA"}
HEADER = ["attention", "seeds", "top-1 %", "averaged weights %", "parameters", "FLOPs / image", "images / s, training"]


@dataclass(frozen=True)
class Outcome:
    """Results of the finished runs of one attention."""

    attention: str
    top1: list[float]  # fractions, one per seed
    averaged: list[float]
    parameters: int
    flops: int
    images_per_second: float


def plan_runs(settings: VisionSettings, attentions: Sequence[str], seeds: int) -> Iterator[VisionSettings]:
    """The settings of every run, seed by seed, so that an unfinished comparison has all models of the first seeds."""
    for seed in range(1, seeds + 1):
        for attention in attentions:
            model = model_name("micro", attention)
            name = f"{settings.run or settings.data}-{attention or 'softmax'}-{seed}"
            yield replace(settings, model=model, seed=seed, run=name, resume="auto")


def collect_outcomes(home: Path, planned: Sequence[VisionSettings]) -> list[Outcome]:
    """The outcomes of the planned runs that are finished, by attention; `home` is the folder of runs."""
    found: dict[str, list[Run]] = {}
    for settings in planned:
        if not (home / settings.run / METRICS).exists():
            continue
        run = Run.open(home / settings.run)
        last = run.fact("steps_per_epoch") * run.fact("epochs")
        if run.train and run.validations and run.train[-1]["step"] == run.validations[-1]["step"] == last:
            attention = next(a for a in ATTENTION if model_name("micro", a) == settings.model)
            found.setdefault(attention, []).append(run)
    outcomes = []
    for attention, runs in found.items():
        lines = [run.validations[-1] for run in runs]
        top1, averaged = ([line[name] for line in lines if name in line] for name in ("top1", "ema_top1"))
        costs = runs[0].fact("parameters"), runs[0].fact("flops_per_image")
        outcomes.append(Outcome(attention, top1, averaged, *costs, median(r.median("images_per_second") for r in runs)))
    return outcomes


def format_outcomes(outcomes: Sequence[Outcome]) -> str:
    """The table in Markdown, and below it as a line of JSON."""
    rows = []
    for o in outcomes:
        costs = [f"{o.parameters:,}", f"{o.flops / 1e6:.2f} M", f"{o.images_per_second:,.0f}"]
        rows.append([LABELS[o.attention], f"{len(o.top1)}", _spread(o.top1), _spread(o.averaged), *costs])
    return markdown_table(HEADER, rows) + "\n\n" + json.dumps([vars(o) for o in outcomes])


def _spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation, in percent."""
    if not values:
        return MISSING
    spread = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.2f}{spread}"
