"""The experiments of `scripts.induction`: families by tasks, depths and seeds, their results, a table and plots.

Every family trains with each of `lr_scales` at the greatest depth with the first seed, on each task, and with the best
of them everywhere else. Trials are lines of a results file, as of a study, and are not repeated.
"""

import hashlib
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from matplotlib import rc_context

from nanogka.cli import flag, flag_name
from nanogka.formatting import markdown_table
from nanogka.plots.style import DASHED, STYLE
from nanogka.problems import Problems
from nanogka.study.figures import family_colors, new_figure, save
from nanogka.study.grid import Family, deciding_defaults, deciding_settings, read_families_of, to_settings
from nanogka.study.induction import Trial, run_trial
from nanogka.study.runner import append_line, read_results

TASKS = ("repeat", "recall")
TITLES = {
    "repeat": "Copying: accuracy of the next token in repeated random tokens",
    "recall": "Recall: accuracy of the value of a key",
}


@dataclass(frozen=True)
class InductionSettings:
    """Settings of `scripts.induction`."""

    grid: str = flag("", "YAML file with `families`, a study's grid for one; may stand first, without its flag")
    output: str = flag("", "file of finished trials (default: beside the grid, its name with -induction.jsonl)")
    only: str = flag("", "these families only, with commas between")
    tasks: str = flag(",".join(TASKS), "what to try, with commas between")
    depths: str = flag("1,2,3", "numbers of layers, with commas between")
    seeds: int = flag(2, "models of each kind")
    length: int = flag(32, "of what is repeated, at most")
    pairs: str = flag("4,8,16,32", "numbers of pairs of key and value, with commas between")
    vocab_size: int = flag(128, "number of token ids")
    width: int = flag(128, "of the models")
    head_dim: int = flag(64, "features per head")
    steps: int = flag(150, "of each training")
    batch_tokens: int = flag(1024, "tokens of a step, about")
    lr_scales: str = flag("1,3", "factors of all learning rates, of which each family takes its best")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "of activations and products", ("auto", "float32", "bfloat16"))

    def check(self, problems: Problems) -> None:
        """Record every value that is out of range."""
        for name in ("seeds", "length", "vocab_size", "width", "head_dim", "steps", "batch_tokens"):
            value = getattr(self, name)
            problems.check(value >= 1, flag_name(name), value, "an integer of at least 1")
        fits = self.head_dim >= 1 and self.width % self.head_dim == 0
        problems.check(fits, "--width", self.width, f"a multiple of --head-dim {self.head_dim}")
        known = bool(self.tasks) and set(self.tasks.split(",")) <= set(TASKS)
        problems.check(known, "--tasks", self.tasks, f"some of {', '.join(TASKS)}")
        for name, kind in (("depths", int), ("pairs", int), ("lr_scales", float)):
            text = getattr(self, name)
            numbers = problems.attempt(lambda name=name, text=text, kind=kind: read_numbers(name, text, kind))
            problems.check(numbers is None or min(numbers) > 0, flag_name(name), text, "numbers above 0")


def read_numbers(name: str, text: str, kind: type) -> tuple:
    """Numbers with commas between. Raises ValueError, with the flag's name, of anything else."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{flag_name(name)}: got {text!r}, takes numbers with commas between") from None


@dataclass
class Induction:
    """All trials of some settings.

    Attributes:
        rows: finished trials by id.
        say: takes each line for people.
    """

    settings: InductionSettings
    families: dict[str, Family]
    path: Path
    device: torch.device
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.rows = {row["id"]: row for row in read_results(self.path, {"id", "task", "family", "accuracy"})}
        self.depths = read_numbers("depths", self.settings.depths, int)
        self.pairs = read_numbers("pairs", self.settings.pairs, int)
        self.tasks = self.settings.tasks.split(",")
        problems = Problems()
        for family in self.families.values():
            for depth in self.depths:
                for task in self.tasks:
                    problems.attempt(lambda at=(family, task, depth): self.trial(*at, seed=1, lr_scale=1.0).check())
        problems.lines = list(dict.fromkeys(problems.lines))
        problems.raise_any()

    def trial(self, family: Family, task: str, depth: int, seed: int, lr_scale: float) -> Trial:
        """One trial. Full windows and no weight decay, unless the family says otherwise."""
        chosen = self.settings
        flags = {"window_pattern": "L", "weight_decay": 0.0, "lr_scale": lr_scale, "dtype": chosen.dtype}
        _, settings = to_settings(flags | family.flags | {"depth": depth, "seed": seed})
        sizes = (chosen.length,) if task == "repeat" else self.pairs
        shape = {f.name: getattr(chosen, f.name) for f in fields(Trial) if hasattr(chosen, f.name)}
        return Trial(task=task, sizes=sizes, settings=settings, **shape)

    def result(self, family: Family, task: str, depth: int, seed: int, lr_scale: float) -> dict:
        """The line of a trial, which is made if it is not there yet."""
        trial = self.trial(family, task, depth, seed, lr_scale)
        content = asdict(trial) | {"settings": deciding_defaults() | deciding_settings(trial.settings)}
        id = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
        if id not in self.rows:
            row = {"id": id, "task": task, "family": family.name, "depth": depth, "seed": seed}
            row |= {"lr_scale": trial.settings.lr_scale, **run_trial(trial, self.device), "trial": content}
            append_line(self.path, row)
            self.rows[id] = json.loads(json.dumps(row))
            shown = ", ".join(f"{size}: {value:.3f}" for size, value in row["accuracy"].items())
            at = f"depth {depth} seed {seed} lr_scale {row['lr_scale']}"
            self.say(f"{task} {family.name} {at}: accuracy at {shown} ({row['seconds']:.0f}s)")
        return self.rows[id]

    def run(self) -> list[dict]:
        """All trials that count, those with the best rate of each family; the missing ones are made."""
        rows = []
        scales = read_numbers("lr_scales", self.settings.lr_scales, float)
        for task in self.tasks:
            for family in self.families.values():
                tried = [self.result(family, task, max(self.depths), 1, scale) for scale in scales]
                best = max(tried, key=lambda row: (mean_accuracy(row), -row["loss"]))["lr_scale"]
                places = [(depth, seed) for depth in self.depths for seed in range(1, self.settings.seeds + 1)]
                rows += [self.result(family, task, depth, seed, best) for depth, seed in places]
        return rows


def mean_accuracy(row: dict) -> float:
    """The mean over the sizes of a task."""
    return statistics.fmean(row["accuracy"].values())


def table(rows: list[dict], families: dict[str, Family]) -> str:
    """Accuracy in percent of every family by task, depth and size: the mean over the seeds, and their range."""
    lines = []
    for task, depth in dict.fromkeys((row["task"], row["depth"]) for row in rows):
        for family in families.values():
            found = [r for r in rows if (r["task"], r["depth"], r["family"]) == (task, depth, family.name)]
            for size in found[0]["accuracy"] if found else ():
                values = [100 * row["accuracy"][size] for row in found]
                accuracy = f"{statistics.fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
                chance = f"{100 * found[0]['chance'][size]:.1f}"
                lines.append([task, family.label, str(depth), size, accuracy, chance, f"{found[0]['lr_scale']:g}"])
    header = ["task", "family", "depth", "length or pairs", "accuracy, % (lowest to highest seed)", "chance, %"]
    return markdown_table([*header, "lr_scale"], lines, left=2)


def plot(task: str, rows: list[dict], families: dict[str, Family], path: Path) -> Path:
    """Draw the accuracies of a task: of repeats against depth, of recall against pairs with a panel a depth."""
    rows = [row for row in rows if row["task"] == task]
    depths = sorted({row["depth"] for row in rows})
    panels = [None] if task == "repeat" else depths
    colors = family_colors(list(families.values()))
    with rc_context(STYLE):
        figure, grid = new_figure(TITLES[task], max(7, 4.2 * len(panels)), 4.8, len(panels), sharey=True, squeeze=False)
        for axes, panel in zip(grid[0], panels):
            for family in families.values():
                mine = [row for row in rows if row["family"] == family.name and panel in (None, row["depth"])]
                points = [(place(row, size, task), value) for row in mine for size, value in row["accuracy"].items()]
                xs = sorted({x for x, _ in points})
                means = [statistics.fmean(value for at, value in points if at == x) for x in xs]
                axes.plot(*zip(*points), ".", color=colors[family.name], alpha=0.6)
                axes.plot(xs, means, color=colors[family.name], label=family.label)
            chance = {place(row, size, task): value for row in rows for size, value in row["chance"].items()}
            axes.plot(sorted(chance), [chance[x] for x in sorted(chance)], label="chance", **DASHED)
            if task == "recall":
                axes.set_xscale("log", base=2)
                axes.set_title(f"depth {panel}", fontsize=10)
            axes.set_xticks(xs, [str(x) for x in xs])
            axes.set_xlabel("layers" if task == "repeat" else "pairs")
            axes.set_ylim(-0.03, 1.03)
        grid[0, 0].set_ylabel("accuracy (points: seeds; lines: means)")
        handles = grid[0, 0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=5, fontsize=9)
        return save(figure, path)


def place(row: dict, size: str, task: str) -> int:
    """The x of an accuracy: the depth for repeats, the number of pairs for recall."""
    return row["depth"] if task == "repeat" else int(size)


def open_induction(
    settings: InductionSettings, device: torch.device, problems: Problems, say: Callable[[str], None]
) -> Induction:
    """The trials that the settings ask for. Raises ValueError with every problem."""
    path = Path(settings.grid).expanduser()
    found = problems.check(path.is_file(), "--grid", settings.grid, "a YAML file")
    families = problems.attempt(lambda: read_families_of(path)) if found else None
    names = [name for name in settings.only.split(",") if name] or list(families or ())
    for name in names:
        problems.check(families is None or name in families, "--only", name, ", ".join(families or ()))
    problems.raise_any()
    output = Path(settings.output).expanduser() if settings.output else path.with_name(f"{path.stem}-induction.jsonl")
    return Induction(settings, {name: families[name] for name in names}, output, device, say)
