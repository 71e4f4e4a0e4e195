"""The figures of a study: bits per byte against every cost, training curves, σ by layer. One color a family."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from nanogka.formatting import si
from nanogka.plots.style import DPI, GREY, STYLE
from nanogka.study.fit import Scaling
from nanogka.study.grid import Family
from nanogka.study.summary import Cell, Summary

# Told apart by color-blind people, too; the last ones are for families beyond the usual few.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A5195", "#555555", "#8C564B", "#B5BD00")
COSTS = {
    "seconds": "seconds of training",
    "parameters": "parameters",
    "cache_bytes_per_token": "cache bytes per token",
}
BPB = "validation bits / byte"
BEYOND = 1.15  # how far a law is drawn to either side of its points


def family_colors(families: Sequence[Family]) -> dict[str, str]:
    """The color of each family: its own, else the next that no other has."""
    given = {family.color for family in families}
    spare = cycle([color for color in COLORS if color not in given] or COLORS)
    return {family.name: family.color or next(spare) for family in families}


def plot_scaling(summary: Summary, laws: dict[str, Scaling], path: Path) -> Path:
    """Draw bits per byte against training FLOPs: every seed a faint point, means, fitted laws with their bands."""
    with rc_context(STYLE):
        figure, axes = new_figure("Bits per byte against training FLOPs", 8.5, 6.5)
        colors, seen = family_colors(list(summary.grid.families.values())), []
        for family in summary.families:
            cells, color = summary.best_depths(family.name), colors[family.name]
            for cell in summary.of(family.name):
                x, y = cell.values("flops"), cell.values("val_bpb")
                axes.plot(x, y, ".", color=color, alpha=0.4, markersize=5)
                seen += y
            label = family.label
            x, y = [cell.mean("flops") for cell in cells], [cell.mean("val_bpb") for cell in cells]
            if family.name in laws:
                law = laws[family.name]
                grid = np.geomspace(min(x) / BEYOND, max(x) * BEYOND, 100)
                axes.plot(grid, law.law(grid), color=color)
                if (band := law.band(grid)) is not None:
                    axes.fill_between(grid, *band, color=color, alpha=0.15, linewidth=0)
                floor = f"{law.law.floor:.3f} + " if law.law.floor else ""
                label += f":  {floor}$A\\,C^{{-{law.law.exponent:.3f}}}$"
            axes.plot(x, y, "o" if family.name in laws else "o:", color=color, label=label, markersize=6, linewidth=1)
        axes.set_xscale("log")
        axes.set_xlabel("training FLOPs C")
        axes.set_ylabel(f"{BPB} (log scale)")
        plain_log(axes, seen)
        plain_compute(axes)
        figure.legend(loc="outside lower center", ncols=2, fontsize=9)
        note = "points: seeds; circles: their means at the best depth, dotted where no law fits"
        if laws:
            note += "; lines: fitted laws" + "; bands: 5 to 95 % of the fits to resampled means" * any(
                law.resampled for law in laws.values()
            )
        axes.set_title(note, color=GREY, fontsize=9)
        return save(figure, path)


def plot_costs(summary: Summary, path: Path) -> Path:
    """Draw bits per byte against seconds, parameters and cache bytes, of each budget the best depth, joined by a line.

    Seconds are those of the machine on which most runs were made; others are left out of that panel.
    """
    machines = Counter((row["hardware"], row["compiled"]) for row in summary.used)
    machine = machines.most_common(1)[0][0]
    with rc_context(STYLE):
        figure, grid = new_figure("Bits per byte against what a model costs", 13, 4.8, columns=len(COSTS), sharey=True)
        colors, seen = family_colors(list(summary.grid.families.values())), []
        for axes, (name, title) in zip(grid, COSTS.items()):
            for family in summary.families:
                cells = summary.best_depths(family.name)
                cells = [keep_machine(cell, machine) for cell in cells] if name == "seconds" else cells
                cells = [cell for cell in cells if cell.values(name)]
                x, y = [cell.mean(name) for cell in cells], [cell.mean("val_bpb") for cell in cells]
                spread = [cell.spread("val_bpb") or 0 for cell in cells]
                axes.errorbar(x, y, spread, fmt="o-", color=colors[family.name], label=family.label, markersize=5)
                seen += y
            axes.set_xscale("log")
            axes.set_xlabel(title)
            plain_compute(axes)
        plain_log(grid[0], seen)
        grid[0].set_ylabel(f"{BPB} (log scale)")
        grid[0].set_title(f"on {machine[0]}" if len(machines) > 1 else "", color=GREY, fontsize=8)
        grid[1].set_title("mean over seeds ± sample standard deviation", color=GREY, fontsize=9)
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
        return save(figure, path)


def keep_machine(cell: Cell, machine: tuple) -> Cell:
    """A cell with the results of one machine alone."""
    rows = [row for row in cell.rows if (row["hardware"], row["compiled"]) == machine]
    return Cell(cell.family, cell.size, rows, cell.missing)


def plot_budgets(summary: Summary, path: Path) -> Path | None:
    """Draw bits per byte against parameters for each budget that several depths share; None if there is none."""
    budgets: dict[float, list[str]] = {}
    for size in summary.sizes:
        budgets.setdefault(summary.grid.sizes[size].budget, []).append(size)
    shared = {b: sizes for b, sizes in budgets.items() if len({summary.grid.sizes[s].depth for s in sizes}) > 1}
    if not shared:
        return None
    unit = "FLOPs" if summary.grid.match == "flops" else "tokens"
    title = f"Equal {unit}, different depths: bits per byte against parameters"
    with rc_context(STYLE):
        figure, grid = new_figure(title, max(6.5, 4.2 * len(shared)), 4.8, columns=len(shared))
        colors = family_colors(list(summary.grid.families.values()))
        for axes, (budget, sizes) in zip(np.atleast_1d(grid), sorted(shared.items())):
            for family in summary.families:
                cells = [summary.cells[size, family.name] for size in sizes if (size, family.name) in summary.cells]
                cells = sorted((c for c in cells if c.sound), key=lambda cell: cell.mean("parameters"))
                x, y = [c.mean("parameters") for c in cells], [c.mean("val_bpb") for c in cells]
                spread = [c.spread("val_bpb") or 0 for c in cells]
                axes.errorbar(x, y, spread, fmt="o-", color=colors[family.name], label=family.label, markersize=5)
            axes.set_xscale("log")
            axes.set_xlabel("parameters")
            plain_compute(axes)
            axes.set_title(f"{si(budget)} {unit}", fontsize=10)
        np.atleast_1d(grid)[0].set_ylabel(BPB)
        handles = np.atleast_1d(grid)[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=4, fontsize=9)
        return save(figure, path)


def plot_curves(summary: Summary, path: Path) -> Path:
    """Draw the validations during training against FLOPs: a panel a size, a line a seed."""

    def draw(axes: Axes, cell: Cell, color: str) -> list[float]:
        seen = []
        for number, row in enumerate(cell.rows):
            points = [(step, bpb) for step, bpb in row["curve"] if step > 0 and bpb is not None]
            if not points or not row["steps"]:
                continue
            steps, values = zip(*points)
            x = np.array(steps) * row["flops"] / row["steps"]
            label = cell.family.label if number == 0 else None
            axes.plot(x, values, color=color, linewidth=1.2, alpha=0.8, label=label)
            seen += values
        axes.set_xscale("log")
        axes.set_xlabel("training FLOPs")
        plain_compute(axes)
        return seen

    title = "Validation during training (a line a seed)"
    return plot_sizes(summary, title, f"{BPB} (log scale)", draw, summary.sizes, path)


def plot_bandwidth(summary: Summary, path: Path) -> Path | None:
    """Draw σ at the end by layer, a panel a size: every head of every seed a point, medians a line; None without σ."""
    sizes = [size for size in summary.sizes if any(cell.values("bandwidth") for cell in summary.at(size))]
    if not sizes:
        return None
    shown = [family.name for family in summary.families]

    def draw(axes: Axes, cell: Cell, color: str) -> list[float]:
        by_layer: dict[int, list[float]] = {}
        for sigma in cell.values("bandwidth"):
            for layer, heads in sigma.items():
                by_layer.setdefault(int(layer), []).extend(np.ravel(heads))
        if not by_layer:
            return []
        layers = sorted(by_layer)
        shift = 0.5 * (shown.index(cell.family.name) + 0.5) / len(shown) - 0.25
        for layer in layers:
            axes.plot(
                [layer + shift] * len(by_layer[layer]), by_layer[layer], ".", color=color, alpha=0.45, markersize=5
            )
        medians = [float(np.median(by_layer[layer])) for layer in layers]
        axes.plot(np.array(layers) + shift, medians, color=color, label=cell.family.label)
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        return [value for values in by_layer.values() for value in values]

    title = "Bandwidth σ at the end by layer (points: heads of all seeds; lines: medians)"
    return plot_sizes(summary, title, "σ (log scale)", draw, sizes, path)


def plot_sizes(
    summary: Summary,
    title: str,
    y: str,
    draw: Callable[[Axes, Cell, str], list[float]],
    sizes: Sequence[str],
    path: Path,
) -> Path:
    """A panel a size, one scale of y for all; `draw(axes, cell, color)` returns the values that it drew."""
    columns = 2 if len(sizes) == 4 else min(3, len(sizes))
    rows = -(-len(sizes) // columns)
    with rc_context(STYLE):
        figure, grid = new_figure(title, max(6.5, 4.4 * columns), 1 + 3.9 * rows, columns, rows, sharey=True)
        colors, seen = family_colors(list(summary.grid.families.values())), []
        panels = np.atleast_1d(grid).ravel()
        for axes, size in zip(panels, sizes):
            for cell in summary.at(size):
                seen += draw(axes, cell, colors[cell.family.name])
            axes.set_title(f"{size}: depth {summary.grid.sizes[size].depth}", fontsize=10)
        for axes in panels[len(sizes) :]:
            axes.set_visible(False)
        plain_log(panels[0], seen)
        for axes in panels[::columns]:
            axes.set_ylabel(y)
        labelled = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels())}
        figure.legend(labelled.values(), labelled.keys(), loc="outside lower center", ncols=4, fontsize=9)
        return save(figure, path)


def new_figure(title: str, width: float, height: float, columns: int = 1, rows: int = 1, **shared: object) -> tuple:
    """A figure of so many inches with its title, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure, figure.subplots(rows, columns, **shared)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    return path


def plain_log(axes: Axes, values: Sequence[float]) -> None:
    """Make y logarithmic over `values`, with plain numbers at its ticks."""
    axes.set_yscale("log")
    if not values:
        return
    low, high = min(values), max(values)
    margin = max((high / low) ** 0.06, 1.01)
    axes.set_ylim(low / margin, high * margin)
    wide = high / low > 12
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def plain_compute(axes: Axes) -> None:
    """Ticks of a logarithmic x at 1, 2 and 5 times the powers of ten, as 2M or 50T; powers alone on a wide axis."""
    low, high = axes.get_xlim()
    wide = high / low > 300
    axes.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
