"""The figures of a study: bits per byte against every cost, training curves, σ by layer. One color per family."""

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nanogka.formatting import si
from nanogka.plots.style import COLORS, STYLE, cost_axis, log_values, new_figure, save
from nanogka.study.grid import Family
from nanogka.study.summary import Summary, best_depths, mean_over_seeds

COSTS = {
    "flops": "training FLOPs",
    "seconds": "seconds of training",
    "parameters": "parameters",
    "cache_bytes_per_token": "cache bytes per token",
}
BPB = "validation bits / byte"


def family_colors(families: Iterable[Family]) -> dict[str, str]:
    """The color of each family: its own, else the next that no other has."""
    given = {family.color for family in families}
    spare = cycle([color for color in COLORS if color not in given] or COLORS)
    return {family.name: family.color or next(spare) for family in families}


@rc_context(STYLE)
def plot_costs(summary: Summary, path: Path) -> Path:
    """Draw bits per byte against each cost, at each budget the best depth.

    Seconds are those of the machine on which most runs were made; runs of others are left out of that panel.
    """
    sound = summary.sound
    machines = sound["hardware"] + sound["compiled"].map({True: ", compiled", False: ""})
    machine = machines.mode()[0]
    figure = new_figure(13, 9, "Bits per byte against what a model costs (mean ± standard deviation over the seeds)")
    grid = figure.subplots(2, 2, sharey=True)
    for axes, (name, title) in zip(grid.flat, COSTS.items()):
        rows = sound[machines == machine] if name == "seconds" else sound
        label = f"{title}\non {machine}" if name == "seconds" and machines.nunique() > 1 else title
        draw_means(axes, summary, best_depths(mean_over_seeds(rows)), name, label)
    log_values(grid[0, 0], sound["val_bpb"])
    for axes in grid[:, 0]:
        axes.set_ylabel(f"{BPB} (log scale)")
    return save_labelled(figure, path, [grid[0, 0]])


@rc_context(STYLE)
def plot_budgets(summary: Summary, path: Path) -> Path | None:
    """Draw bits per byte against parameters for each budget that several depths share; None if there is none."""
    means = mean_over_seeds(summary.sound)
    means["depth"] = [summary.grid.sizes[size].depth for size in means["size"]]
    shared = {budget: part for budget, part in means.groupby("budget") if part["depth"].nunique() > 1}
    if not shared:
        return None
    unit = "FLOPs" if summary.grid.match == "flops" else "tokens"
    title = f"Equal {unit}, different depths: bits per byte against parameters"
    figure = new_figure(max(6.5, 4.2 * len(shared)), 4.8, title)
    grid = figure.subplots(1, len(shared), squeeze=False)
    for axes, (budget, part) in zip(grid[0], shared.items()):
        draw_means(axes, summary, part.sort_values("parameters"), "parameters", COSTS["parameters"])
        axes.set_title(f"{si(budget)} {unit}")
    grid[0, 0].set_ylabel(BPB)
    return save_labelled(figure, path, grid[0])


def draw_means(axes: Axes, summary: Summary, means: pd.DataFrame, x: str, label: str) -> None:
    """Draw one line per family through the rows of `mean_over_seeds`, against one of its columns."""
    colors = family_colors(summary.grid.families.values())
    for family in summary.families:
        mine = means[means["family"] == family.name].dropna(subset=[x])
        style = {"fmt": "o-", "color": colors[family.name], "label": family.label, "markersize": 5}
        axes.errorbar(mine[x], mine["val_bpb"], mine["spread"], **style)
    axes.set_xlabel(label)
    cost_axis(axes)


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
    return save_labelled(figure, path, grid.flat)


def save_labelled(figure: Figure, path: Path, labelled: Iterable[Axes]) -> Path:
    """Save a figure, with a legend of every label on some axes below it."""
    handles = {label: line for axes in labelled for line, label in zip(*axes.get_legend_handles_labels())}
    columns = round(figure.get_figwidth() / 4)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=9)
    return save(figure, path)
