"""The experiments of `scripts.induction`: families by tasks, depths and seeds, their results, a table and plots.

Every family trains with each of `lr_scales` at the greatest depth with the first seed, on each task, and with the best
of them everywhere else. Trials are lines of a results file, as of a study, and are not repeated.
"""

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

import pandas as pd
import torch
from matplotlib import rc_context
from pydantic import BaseModel

from nanogka.common.cli import flag_name
from nanogka.common.errors import Errors
from nanogka.common.formatting import markdown_table, scientific
from nanogka.plots.style import DASHED, STYLE, new_figure
from nanogka.study.grid import Families, Family, decisive, read_part, to_settings
from nanogka.study.induction import Trial, run_trial
from nanogka.study.plan import append_line, read_results
from nanogka.study.report import family_colors, save_labeled

TITLES = {
    "repeat": "Copying: accuracy of the next token in repeated random tokens",
    "recall": "Recall: accuracy of the value of a key",
}
MOST = {"depths": 1000}  # of a flag's numbers
SIZES = {"repeat": "length", "recall": "pairs"}  # the flag of each task's sizes


class TrialRow(BaseModel):
    """A finished trial, as a line of results has it."""

    trial: dict
    task: str
    family: str
    depth: int
    seed: int
    lr_scale: float
    accuracy: dict[int, float]
    chance: dict[int, float]
    loss: float
    flops_per_token: float
    step_seconds: float


class Induction:
    """All trials that the settings of `scripts.induction` ask for. Raises ValueError with every problem."""

    def __init__(self, settings: object, device: torch.device, errors: Errors, log: Callable[[str], None]) -> None:
        self.settings, self.device, self.log = settings, device, log
        grid = Path(settings.grid).expanduser()
        found = errors.require(grid.is_file(), "--grid", settings.grid, "a YAML file")
        families = (errors.capture(lambda: read_part(grid, Families).families) if found else None) or {}
        names = [name for name in settings.only.split(",") if name] or list(families)
        for name in names:
            errors.require(not families or name in families, "--only", name, ", ".join(families))
        errors.require(settings.width % settings.head_dim == 0, "--width", settings.width, "a multiple of --head-dim")
        self.tasks = settings.tasks.split(",")
        for task in self.tasks:
            errors.require(task in TITLES, "--tasks", task, f"some of {', '.join(TITLES)}")
        errors.capture(lambda: read_numbers("pairs", settings.pairs, int))
        self.depths = errors.capture(lambda: read_numbers("depths", settings.depths, int))
        self.scales = errors.capture(lambda: read_numbers("lr_scales", settings.lr_scales, float))
        errors.raise_if_any()
        self.families: dict[str, Family] = {name: families[name] for name in names}
        given = Path(settings.output).expanduser() if settings.output else None
        self.path = given or grid.with_name(f"{grid.stem}-induction.jsonl")
        self.rows = read_results(self.path, TrialRow)
        for family in self.families.values():
            for depth in self.depths:
                for task in self.tasks:
                    errors.capture(lambda at=(family, task, depth): self.trial(*at, seed=1, lr_scale=1.0).check())
        errors.lines = list(dict.fromkeys(errors.lines))
        errors.raise_if_any()

    def trial(self, family: Family, task: str, depth: int, seed: int, lr_scale: float) -> Trial:
        chosen = self.settings
        # Full windows and no weight decay, unless the family says otherwise.
        texts = {"window_pattern": "L", "weight_decay": "0", "lr_scale": str(lr_scale), "dtype": chosen.dtype}
        settings = to_settings(texts | family.flags, depth=depth, seed=seed)
        sizes = read_numbers(SIZES[task], str(getattr(chosen, SIZES[task])), int)
        shape = {f.name: getattr(chosen, f.name) for f in fields(Trial) if hasattr(chosen, f.name)}
        return Trial(task=task, sizes=sizes, settings=settings, **shape)

    def result(self, family: Family, task: str, depth: int, seed: int, lr_scale: float) -> dict:
        """The line of a trial, which is made if it is not there yet."""
        trial = self.trial(family, task, depth, seed, lr_scale)
        content = json.loads(json.dumps(asdict(trial) | {"settings": decisive(trial.settings.to_dict())}))
        trials = ((row, row["trial"] | {"settings": decisive(row["trial"]["settings"])}) for row in self.rows)
        found = next((row for row, made in trials if made == content), None)
        if found is None:
            row = {"task": task, "family": family.name, "depth": depth, "seed": seed}
            row |= {"lr_scale": trial.settings.lr_scale, **run_trial(trial, self.device), "trial": content}
            append_line(self.path, row)
            found = json.loads(json.dumps(row))
            self.rows.append(found)
            shown = ", ".join(f"{size}: {value:.3f}" for size, value in row["accuracy"].items())
            at = f"depth {depth} seed {seed} lr_scale {row['lr_scale']}"
            self.log(f"{task} {family.name} {at}: accuracy at {shown} ({row['seconds']:.0f}s)")
        return found

    def run(self) -> list[dict]:
        """All trials that count, those with the best rate of each family; the missing ones are made."""
        rows = []
        for task in self.tasks:
            for family in self.families.values():
                tried = [self.result(family, task, max(self.depths), 1, scale) for scale in self.scales]
                best = max(tried, key=lambda row: (statistics.fmean(row["accuracy"].values()), -row["loss"]))
                places = [(depth, seed) for depth in self.depths for seed in range(1, self.settings.seeds + 1)]
                rows += [self.result(family, task, depth, seed, best["lr_scale"]) for depth, seed in places]
        return rows


def read_numbers(name: str, text: str, kind: type) -> tuple:
    """Numbers above 0, at most `MOST`, with commas between. Raises ValueError, with the flag's name, for others."""
    try:
        numbers = tuple(kind(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    most = MOST.get(name, 10**6)
    if not numbers or not all(0 < number <= most for number in numbers):
        takes = f"numbers above 0, at most {most:,}, with commas between"
        raise ValueError(f"{flag_name(name)}: got {text!r}, expected {takes}")
    return numbers


def table(rows: list[dict], families: dict[str, Family]) -> str:
    """Accuracy in percent of every family by task, depth and size (the mean over the seeds, and their range), cost."""
    lines = []
    for task, depth in dict.fromkeys((row["task"], row["depth"]) for row in rows):
        for family in families.values():
            found = [r for r in rows if (r["task"], r["depth"], r["family"]) == (task, depth, family.name)]
            for size in found[0]["accuracy"] if found else ():
                values = [100 * row["accuracy"][size] for row in found]
                accuracy = f"{statistics.fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
                line = [task, family.label, str(depth), size, accuracy, f"{100 * found[0]['chance'][size]:.1f}"]
                costs = [scientific(found[0]["flops_per_token"]), f"{found[0]['step_seconds']:.3f}"]
                lines.append([*line, f"{found[0]['lr_scale']:g}", *costs])
    header = ["task", "family", "depth", "size", "accuracy, % (lowest to highest seed)", "chance, %", "lr_scale"]
    return markdown_table([*header, "FLOPs / token", "seconds / step"], lines, left=2)


@rc_context(STYLE)
def plot(task: str, rows: list[dict], families: dict[str, Family], path: Path) -> Path:
    """Draw the accuracies of a task: of repeats against depth, of recall against pairs with one panel per depth."""
    names = ("family", "depth", "size", "accuracy", "chance")
    places = [(row, size) for row in rows if row["task"] == task for size in row["accuracy"]]
    found = [(r["family"], r["depth"], int(size), r["accuracy"][size], r["chance"][size]) for r, size in places]
    frame, x = pd.DataFrame(found, columns=names), "depth" if task == "repeat" else "size"
    panels = [None] if task == "repeat" else sorted(frame["depth"].unique())
    colors = family_colors(families.values())
    figure = new_figure(max(7, 4.2 * len(panels)), 4.8, TITLES[task])
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for axes, panel in zip(grid[0], panels):
        part = frame if panel is None else frame[frame["depth"] == panel]
        for family in families.values():
            mine = part[part["family"] == family.name]
            axes.plot(mine[x], mine["accuracy"], ".", color=colors[family.name], alpha=0.6)
            axes.plot(mine.groupby(x)["accuracy"].mean(), color=colors[family.name], label=family.label)
        axes.plot(part.groupby(x)["chance"].mean(), label="chance", **DASHED)
        if task != "repeat":
            axes.set_xscale("log", base=2)
            axes.set_title(f"depth {panel}")
        xs = sorted(part[x].unique())
        axes.set_xticks(xs, [str(at) for at in xs])
        axes.set_xlabel({"repeat": "layers", "recall": "pairs"}[task])
        axes.set_ylim(-0.03, 1.03)
    grid[0, 0].set_ylabel("accuracy (points: seeds; lines: means)")
    return save_labeled(figure, path, grid[0])
