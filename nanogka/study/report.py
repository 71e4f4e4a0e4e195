"""The report of a study: tables in Markdown and plots, from the grid and the results file alone."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from nanogka.common.formatting import MISSING, byte_size, code_span, markdown_table, number, scientific
from nanogka.plots.style import COLORS, STYLE, cost_axis, log_values, new_figure, save
from nanogka.study.grid import Family, Grid
from nanogka.study.plan import Results, Trials, best_trial, try_rates

COLUMNS = ["family", "parameters", "FLOPs / token", "tokens", "training FLOPs", "seeds"]
SPEEDS = ["tokens / s", "cache B / token"]
DEPTH_LINES = {"solid": "-", "dashed": "--", "dotted": ":", "dash-dotted": "-."}
BPB = "validation bits / byte"
# 97.5 % quantiles of Student's t for 2, 3, … seeds: with two seeds a standard error covers 50 %, not 68 %, of the time.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Summary:
    """A grid with its results; a result that the grid does not ask for is left out."""

    def __init__(self, grid: Grid, results: Results) -> None:
        self.grid, self.protocol = grid, results.protocol
        self.trials: dict[tuple[str, str], Trials] = {}
        rows, self.missing = [], 0
        for size, at in grid.sizes.items():
            for name in (name for name, family in grid.families.items() if size in family.sizes):
                trials = self.trials[size, name] = try_rates(grid, name, size, results.find)
                best = best_trial(trials)
                rate = grid.rates(name, size)[best or 0]
                found = [(seed, results.find(grid.job(name, size, seed, rate).decisive)) for seed in at.seeds]
                cell = [row | {"family": name, "size": size, "seed": seed} for seed, row in found if row]
                self.missing += len(at.seeds) - len(cell) if cell else 0
                rows += cell
        self.frame = pd.DataFrame(rows, columns=None if rows else ["family", "size", "val_bpb"])
        self.frame = self.frame.astype({name: float for name in ("val_bpb", "confirm_bpb") if name in self.frame})
        for name in ("edited", "copied_from"):  # text that a person added to a row, see docs/research/july.yaml
            self.frame[name] = self.frame.get(name, pd.Series("", self.frame.index)).fillna("")

    @property
    def sound(self) -> pd.DataFrame:
        return self.frame[self.frame["val_bpb"].notna()]

    @property
    def sizes(self) -> list[str]:
        return list(self.frame["size"].unique())

    @property
    def families(self) -> list[Family]:
        return [family for name, family in self.grid.families.items() if name in set(self.frame["family"])]

    def labels(self, rows: pd.DataFrame) -> str:
        """The labels of the families of some rows, for a sentence."""
        return "; ".join(dict.fromkeys(self.grid.families[name].label for name in rows["family"]))

    def table(self, size: str, name: str) -> pd.DataFrame:
        """A number of the runs of a size, by seed and family."""
        return self.sound[self.sound["size"] == size].pivot(index="seed", columns="family", values=name)

    def gaps(self, size: str, name: str) -> pd.DataFrame:
        """Differences to the reference, seed by seed: runs of one seed see the same documents in the same order."""
        table = self.table(size, name)
        return table.sub(table.get(self.grid.reference, float("nan")), axis=0)

    def compare(self, size: str, name: str) -> pd.DataFrame:
        """Of each family at a size: mean and 95 % interval of a number, and of its gap to the reference."""
        table, gaps = self.table(size, name), self.gaps(size, name)
        columns = {"mean": table.mean(), "interval": half_interval(table)}
        return pd.DataFrame(columns | {"gap": gaps.mean(), "gap_interval": half_interval(gaps)})


def half_interval(table: pd.DataFrame) -> pd.Series:
    """Half the width of the 95 % t interval of each column's mean; NaN for fewer than two seeds."""
    return table.sem() * table.count().map(dict(enumerate(T95, 2)))


# ---- text ----


def write_report(grid: Grid, results: Results, path: Path) -> list[Path]:
    """Write the report to `path` and its plots to the folder of that name without its suffix; returns all paths."""
    summary = Summary(grid, results)
    if summary.sound.empty:
        raise ValueError(f"--report: got {len(results.rows)} results, none for a table of this grid; run it first")
    folder = path.with_suffix("")
    plots = {
        "Bits per byte against the length of the training": plot_costs(summary, folder / "costs.png"),
        "Validation during training": plot_curves(summary, folder / "curves.png"),
    }
    made = {title: plot for title, plot in plots.items() if plot is not None}
    sections = [f"# Study {code_span(grid.name)}", describe_setup(summary, results.others)]
    for size in summary.sizes:
        sections += [f"## {size}: depth {grid.sizes[size].depth}", size_table(summary, size)]
    images = [f"![{title}]({os.path.relpath(plot, path.parent)})" for title, plot in made.items()]
    sections += [*rates_section(summary), "## Plots", *images]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return [path, *made.values()]


def describe_setup(summary: Summary, others: int) -> str:
    """A paragraph on the study: its protocol, and how to read the tables. `others`: results of another protocol."""
    grid, used, most = summary.grid, summary.frame, summary.protocol.get("measure_tokens")
    machines = Counter(f"{row.hardware}, {row.dtype}, torch {row.torch}" for row in used.itertuples())
    where = "; ".join(f"{machine} ({runs} runs)" for machine, runs in machines.most_common())
    part = f"the first {most:,} tokens of the" if most else "the whole"
    lines = [
        f"{len(used)} runs. Sizes are matched in {'training FLOPs' if grid.match == 'flops' else 'tokens'}. The tables "
        f"show the FLOPs spent in whole steps. Bits per byte are of {part} validation split ({grid.val_name}), and of "
        f"that of a second corpus ({grid.confirm_name}). Differences are to "
        f"{code_span(grid.families[grid.reference].label)}, paired by seed, since "
        "runs of one seed read the same text in the same order. A difference below 0 is better. ± is half the width of "
        "the 95 % interval of the mean over the seeds (t distribution), so it is wide for two seeds. A number without "
        "± is of one seed.",
        f"Machines: {where}. Tokens per second are medians over steps. Jobs that ran in parallel shared the machine.",
    ]
    if others:
        lines.append(f"{others} results of another corpus, tokenizer or measurement are left out.")
    for what, rows in used[used["edited"] != ""].groupby("edited"):
        sources = sorted({source.partition(",")[0] for source in rows["copied_from"] if source})
        origin = f" copied from {' and '.join(sources)} and" if sources else ""
        lines.append(f"{len(rows)} rows were{origin} edited by hand ({what}): {summary.labels(rows)}.")
    if summary.missing:
        lines.append(f"{summary.missing} planned runs of these tables have not been done.")
    if diverged := len(used) - len(summary.sound):
        lines.append(f"{diverged} runs diverged and are in no mean.")
    return "\n\n".join(lines)


def size_table(summary: Summary, size: str) -> str:
    part = summary.frame[summary.frame["size"] == size]
    names = ["val_bpb", "confirm_bpb"] if part["confirm_bpb"].notna().any() else ["val_bpb"]
    compared = {name: summary.compare(size, name) for name in names}
    titles = [summary.grid.val_name, summary.grid.confirm_name]
    header = [*COLUMNS, *(part for title in titles[: len(names)] for part in (title, "difference")), *SPEEDS]
    rows = []
    for family in (family for family in summary.families if family.name in set(part["family"])):
        mine = part[part["family"] == family.name].sort_values("val_bpb", na_position="last")
        sound, facts = mine[mine["val_bpb"].notna()], mine.iloc[0]
        row = [family.label, number(int(facts["parameters"])), scientific(facts["flops_per_token"])]
        row += [number(int(facts["tokens"])), scientific(facts["flops"]), str(len(sound))]
        for table in compared.values():
            values = table.loc[family.name] if len(sound) else {}
            row.append(plus_minus(values.get("mean"), values.get("interval")))
            own = family.name == summary.grid.reference
            row.append(MISSING if own else plus_minus(values.get("gap"), values.get("gap_interval"), sign="+"))
        speed = sound["tokens_per_second"].mean()
        row += [MISSING if pd.isna(speed) else f"{speed:,.0f}", byte_size(int(facts["cache_bytes_per_token"]))]
        rows.append(row)
    return markdown_table(header, rows)


def plus_minus(value: float | None, error: float | None, sign: str = "") -> str:
    if pd.isna(value):
        return MISSING
    return f"{value:{sign}.4f}" + ("" if pd.isna(error) else f" ± {error:.4f}")


def rates_section(summary: Summary) -> list[str]:
    """All rates tried, the best in bold, and whether that lies at the edge of them; empty if no size has several."""
    rows = []
    for (size, name), trials in summary.trials.items():
        tried = {job.rate: row["val_bpb"] for job, row in trials if row}
        if not tried or not summary.grid.sizes[size].lr_scale:
            continue
        best, shown = trials[best_trial(trials)][0].rate, []
        for rate, loss in tried.items():
            text = f"{rate}: " + ("diverged" if loss is None else f"{loss:.4f}")
            shown.append(f"**{text}**" if rate == best else text)
        ordered = sorted(tried, key=float) if len(tried) > 1 else []
        edges = {ordered[0]: "the lowest", ordered[-1]: "the highest"} if ordered else {best: "the only one"}
        rows.append([size, summary.grid.families[name].label, " · ".join(shown), edges.get(best, "")])
    val, confirm = summary.grid.val_name, summary.grid.confirm_name
    copied = summary.frame[summary.frame["copied_from"] != ""]
    part = (
        f" Exceptions are families with copied rows ({summary.labels(copied)}), whose rates were chosen on {confirm}."
    )
    text = (
        f"Rates were tried with the first seed. The one with the lowest bits per byte on {val} (bold) is used for the "
        f"other seeds. {confirm} had no part in this choice.{part * len(copied[:1])} A best rate at the edge of those "
        "tried is not bracketed: a better one may lie beyond."
    )
    table = markdown_table(
        ["size", "family", f"lr_scale tried and bits per byte on {val}", "at the edge"], rows, left=4
    )
    return ["## Learning rates", text, table] if rows else []


# ---- figures ----


def family_colors(families: Iterable[Family]) -> dict[str, object]:
    """A color of its own for each family: the one that it names, or one that none names."""
    given = {family.name: family.color for family in families if family.color}
    others = [family.name for family in families if not family.color]
    spare = [color for color in COLORS if color not in given.values()]
    if len(others) > len(spare):
        spare = colormaps["turbo"](np.linspace(0, 1, len(others)))
    return given | dict(zip(others, map(to_hex, spare)))


@rc_context(STYLE)
def plot_costs(summary: Summary, path: Path) -> Path:
    """Draw bits per byte, and their gap to the reference, against FLOPs."""
    flops = summary.sound.groupby(["family", "size", "depth"], sort=False)["flops"].mean().reset_index()
    means = pd.concat({size: summary.compare(size, "val_bpb") for size in summary.sizes}, names=["size", "family"])
    table = flops.merge(means.reset_index(), on=["size", "family"]).sort_values("flops")
    styles = dict(zip(sorted(table["depth"].unique()), cycle(DEPTH_LINES)))
    reference = summary.grid.families[summary.grid.reference].label
    panels = ("mean", "interval", BPB), ("gap", "gap_interval", f"difference to {reference}")
    text = "mean and 95 % interval over the seeds; "
    text += ", ".join(f"{line}: depth {depth}" for depth, line in styles.items())
    figure = new_figure(12, 6, "Bits per byte against the length of the training", text)
    colors = family_colors(summary.grid.families.values())
    for axes, (y, error, label) in zip(figure.subplots(1, 2), panels):
        for family in summary.families:
            for depth, mine in table[table["family"] == family.name].groupby("depth"):
                style = {"marker": "o", "color": colors[family.name], "linestyle": DEPTH_LINES[styles[depth]]}
                axes.errorbar(mine["flops"], mine[y], mine[error].fillna(0), **style, label=family.label)
        axes.set(xlabel="training FLOPs", ylabel=label)
        cost_axis(axes)
    return save_labeled(figure, path, figure.axes[:1])


def plot_curves(summary: Summary, path: Path) -> Path:
    """Draw the validations during training against FLOPs: one panel per size, one line per seed."""

    def draw(axes: Axes, rows: pd.DataFrame, color: str, label: str, rank: int) -> list[float]:
        seen = []
        for row in rows.itertuples():
            points = [(step * row.flops / row.steps, bpb) for step, bpb in row.curve if step > 0 and bpb is not None]
            if points:
                axes.plot(*zip(*points), color=color, linewidth=1.2, alpha=0.8, label=label)
                seen += [bpb for _, bpb in points]
        axes.set_xlabel("training FLOPs")
        cost_axis(axes)
        return seen

    bare = summary.frame[[not curve for curve in summary.frame["curve"]]]
    missing = f" No curve was kept for runs of: {summary.labels(bare)}." if len(bare) else ""
    title = f"Validation during training (one line per seed).{missing}"
    return plot_sizes(summary, title, f"{BPB} (log scale)", draw, summary.sizes, path)


@rc_context(STYLE)
def plot_sizes(summary: Summary, title: str, y: str, draw: Callable, sizes: Sequence[str], path: Path) -> Path:
    """One panel per size, one scale of y for all.

    `draw(axes, rows, color, label, rank)` draws the results of one family and returns the y values that it drew.
    """
    columns = 2 if len(sizes) == 4 else min(3, len(sizes))
    lines = -(-len(sizes) // columns)
    colors, seen = family_colors(summary.grid.families.values()), []
    figure = new_figure(max(6.5, 4.4 * columns), 1 + 3.9 * lines, title)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for axes, size in zip(grid.flat, sizes):
        part = summary.frame[summary.frame["size"] == size]
        for rank, family in enumerate(summary.families):
            rows = part[part["family"] == family.name]
            seen += draw(axes, rows, colors[family.name], family.label, rank)
        axes.set_title(f"{size}: depth {summary.grid.sizes[size].depth}")
    for axes in grid.flat[len(sizes) :]:
        axes.set_visible(False)
    log_values(grid[0, 0], seen)
    for axes in grid[:, 0]:
        axes.set_ylabel(y)
    return save_labeled(figure, path, grid.flat)


def save_labeled(figure: Figure, path: Path, labeled: Iterable[Axes]) -> Path:
    """Save a figure, with a legend of every label on some axes below it."""
    handles = {label: line for axes in labeled for line, label in zip(*axes.get_legend_handles_labels())}
    columns = round(figure.get_figwidth() / 4)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
    return save(figure, path)
