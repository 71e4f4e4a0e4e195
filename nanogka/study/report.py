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
from matplotlib.ticker import MaxNLocator

from nanogka.common.formatting import MISSING, byte_size, code_span, markdown_table, number, scientific
from nanogka.plots.style import COLORS, STYLE, cost_axis, log_values, new_figure, save
from nanogka.study.grid import Family, Grid
from nanogka.study.plan import Results, Trials, best_trial, try_rates

COLUMNS = ["family", "parameters", "FLOPs / token", "tokens", "training FLOPs", "seeds", "val bits / byte"]
SPEEDS = ["tokens / s", "cache B / token"]
DEPTH_LINES = {"solid": "-", "dashed": "--", "dotted": ":", "dash-dotted": "-."}
BPB = "validation bits / byte"


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

    @property
    def sound(self) -> pd.DataFrame:
        return self.frame[self.frame["val_bpb"].notna()]

    @property
    def sizes(self) -> list[str]:
        return list(self.frame["size"].unique())

    @property
    def families(self) -> list[Family]:
        return [family for name, family in self.grid.families.items() if name in set(self.frame["family"])]

    def table(self, size: str, name: str) -> pd.DataFrame:
        """A number of the runs of a size, by seed and family."""
        return self.sound[self.sound["size"] == size].pivot(index="seed", columns="family", values=name)

    def gaps(self, size: str, name: str) -> pd.DataFrame:
        """Differences to the reference, seed by seed: runs of one seed see the same documents in the same order."""
        table = self.table(size, name)
        return table.sub(table.get(self.grid.reference, float("nan")), axis=0)

    def compare(self, size: str, name: str) -> pd.DataFrame:
        """Of each family at a size the `mean` and `std` of a number, and the mean and standard error of its `gap`."""
        table, gaps = self.table(size, name), self.gaps(size, name)
        return pd.DataFrame({"mean": table.mean(), "std": table.std(), "gap": gaps.mean(), "error": gaps.sem()})


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
        "Bandwidth by layer": plot_bandwidth(summary, folder / "bandwidth.png"),
    }
    made = {title: plot for title, plot in plots.items() if plot is not None}
    sections = [f"# Study {code_span(grid.name)}", describe_setup(summary, results.others)]
    for size in summary.sizes:
        sections += [f"## {size}: depth {grid.sizes[size].depth}", size_table(summary, size)]
    images = [f"![{title}]({os.path.relpath(plot, path.parent)})" for title, plot in made.items()]
    sections += [*length_section(summary), *rates_section(summary), "## Plots", *images]
    path.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return [path, *made.values()]


def describe_setup(summary: Summary, others: int) -> str:
    """A paragraph on the study: its protocol, and how to read the tables. `others`: results of another protocol."""
    grid, used, most = summary.grid, summary.frame, summary.protocol.get("measure_tokens")
    machines = Counter(f"{row.hardware}, {row.dtype}, torch {row.torch}" for row in used.itertuples())
    where = "; ".join(f"{machine} ({runs} runs)" for machine, runs in machines.most_common())
    part = f"the first {most:,} tokens of the" if most else "the whole"
    lines = [
        f"{len(used)} runs. Sizes are matched in {'training FLOPs' if grid.match == 'flops' else 'tokens'}; steps are "
        f"whole, so the tables have the FLOPs that were really spent. Bits per byte are of {part} validation split, "
        "`confirm` of that of a second corpus, by which nothing was chosen. ± is the sample standard deviation over "
        "the seeds (n − 1), and behind a difference the standard error of its mean: differences are to "
        f"{code_span(grid.families[grid.reference].label)}, seed by seed, since runs of one seed see the same text in "
        "the same order; below 0 is better than it.",
        f"Runs were made on: {where}. Tokens per second are medians over steps; jobs that ran side by side share the "
        "machine.",
    ]
    if others:
        lines.append(f"{others} results of another corpus, tokenizer or measurement are left out.")
    if summary.missing:
        lines.append(f"{summary.missing} runs of these tables are missing.")
    if diverged := len(used) - len(summary.sound):
        lines.append(f"{diverged} runs diverged and are in no mean.")
    return "\n\n".join(lines)


def size_table(summary: Summary, size: str) -> str:
    part = summary.frame[summary.frame["size"] == size]
    names = ["val_bpb", "confirm_bpb"] if part["confirm_bpb"].notna().any() else ["val_bpb"]
    compared = {name: summary.compare(size, name) for name in names}
    header = [*COLUMNS, "difference", *(["confirm", "difference"] if len(names) > 1 else []), *SPEEDS]
    rows = []
    for family in (family for family in summary.families if family.name in set(part["family"])):
        mine = part[part["family"] == family.name].sort_values("val_bpb", na_position="last")
        sound, facts = mine[mine["val_bpb"].notna()], mine.iloc[0]
        row = [family.label, number(int(facts["parameters"])), f"{facts['flops_per_token']:.4g}"]
        row += [number(int(facts["tokens"])), scientific(facts["flops"]), str(len(sound))]
        for table in compared.values():
            values = table.loc[family.name] if len(sound) else {}
            row.append(plus_minus(values.get("mean"), values.get("std")))
            own = family.name == summary.grid.reference
            row.append(MISSING if own else plus_minus(values.get("gap"), values.get("error"), sign="+"))
        speed = sound["tokens_per_second"].mean()
        row += [MISSING if pd.isna(speed) else f"{speed:,.0f}", byte_size(int(facts["cache_bytes_per_token"]))]
        rows.append(row)
    return markdown_table(header, rows)


def plus_minus(value: float | None, error: float | None, sign: str = "") -> str:
    if pd.isna(value):
        return MISSING
    return f"{value:{sign}.4f}" + ("" if pd.isna(error) else f" ± {error:.4f}")


def length_section(summary: Summary) -> list[str]:
    """Lines through the losses of a family, and through its gaps, against log₁₀ of the budget, by depth."""
    rows, sizes = [], summary.grid.sizes
    for depth in sorted({sizes[size].depth for size in summary.sizes}):
        budgets = {size: np.log10(sizes[size].amount) for size in summary.sizes if sizes[size].depth == depth}
        losses = [(x, np.log10(summary.table(size, "val_bpb"))) for size, x in budgets.items()]
        gaps = [(x, summary.gaps(size, "val_bpb")) for size, x in budgets.items()]
        for name, label in ((family.name, family.label) for family in summary.families):
            law, line = fit_line(losses, name), fit_line(gaps, name)
            if law is None:
                continue
            row = [str(depth), label, plus_minus(law[0][0], law[1][0, 0] ** 0.5)]
            if name == summary.grid.reference or line is None:
                rows.append(row + [MISSING] * 4)
                continue
            (slope, level), covariance, far = line
            errors, zero = np.sqrt(np.diag(covariance)), far - level / slope
            values = (plus_minus(value, error, "+") for value, error in zip((slope, level), errors))
            by_fit = np.array([level / slope**2, -1 / slope])  # derivatives of `zero`
            factor = 10 ** np.sqrt(by_fit @ covariance @ by_fit)
            meets = f"{scientific(10**zero)}, × or ÷ {factor:.3g}" if zero > min(budgets.values()) else MISSING
            rows.append([*row, *values, scientific(10**far), meets])
    header = ["depth", "family", "exponent", "difference per tenfold", "at ten times", "which is", "zero at"]
    text = (
        "Bits per byte as a power of the budget, and the difference to the reference as a straight line in the "
        "logarithm of the budget, also at ten times the longest; ± is the standard error of the fit, and so is the "
        "factor of the budget at which the lines cross, a dash where they do not from the shortest budget on. Both "
        "describe the budgets that were measured: beyond them they are a guess."
    )
    return ["## Over the length of the training", text, markdown_table(header, rows, left=2)] if rows else []


def fit_line(tables: list[tuple[float, pd.DataFrame]], name: str) -> tuple[np.ndarray, np.ndarray, float] | None:
    """Slope, and level at 1 + the largest x, with their covariance and that x; None without three points at two x."""
    x, y = np.array([(x, y) for x, table in tables if name in table for y in table[name].dropna()]).reshape(-1, 2).T
    if len(x) < 3 or len(set(x)) < 2:
        return None
    return *np.polyfit(x - max(x) - 1, y, 1, cov=True), max(x) + 1


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
    text = (
        "Each was tried with the first seed: the value with the lowest validation bits per byte (bold) is kept for the "
        "other seeds of the family at that size. Rates were so chosen on the split that the tables report; `confirm` "
        "had no part in it. Where the best is at the edge of those tried, a better one may lie beyond."
    )
    table = markdown_table(["size", "family", "lr_scale tried and bits per byte", "at the edge"], rows, left=4)
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
    panels = ("mean", "std", BPB), ("gap", "error", f"difference to {reference}")
    text = "mean and standard deviation, of differences the standard error; "
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

    title = "Validation during training (one line per seed)"
    return plot_sizes(summary, title, f"{BPB} (log scale)", draw, summary.sizes, path)


def plot_bandwidth(summary: Summary, path: Path) -> Path | None:
    """Draw σ at the end by layer, one panel per size; None if no family has one."""
    sizes = list(summary.sound.dropna(subset=["bandwidth"])["size"].unique())
    if not sizes:
        return None

    def draw(axes: Axes, rows: pd.DataFrame, color: str, label: str, rank: int) -> list[float]:
        by_layer: dict[int, list[float]] = {}
        for sigma in rows["bandwidth"].dropna():
            for layer, heads in sigma.items():
                by_layer.setdefault(int(layer), []).extend(np.ravel(heads))
        shift = 0.5 * (rank + 0.5) / len(summary.families) - 0.25
        for layer, values in by_layer.items():
            axes.plot([layer + shift] * len(values), values, ".", color=color, alpha=0.45, markersize=5)
        if layers := sorted(by_layer):
            medians = [float(np.median(by_layer[layer])) for layer in layers]
            axes.plot(np.array(layers) + shift, medians, color=color, label=label)
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        return [value for values in by_layer.values() for value in values]

    title = "Bandwidth σ at the end by layer (points: heads of all seeds; lines: medians)"
    return plot_sizes(summary, title, "σ (log scale)", draw, sizes, path)


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
