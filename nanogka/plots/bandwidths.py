"""What the bandwidths σ did: each head's over training, and where they ended over depth."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from nanogka.plots.runs import Run
from nanogka.plots.style import (
    FEW_COLOURS,
    GREY,
    INK,
    head_colours,
    log_values,
    new_figure,
    save,
    styled,
    thin,
    token_axis,
)

FULL_BAND = "#F1EFE8"


def plot_bandwidth_training(run: Run, path: Path) -> Path:
    """One panel a layer, one line a head: σ against training tokens, all on the same logarithmic scale."""
    tokens, sigma, layers = run.bandwidths
    tokens, sigma = thin(tokens, sigma)
    columns = len(layers) if len(layers) <= 4 else 5 if len(layers) <= 25 else 8
    rows = math.ceil(len(layers) / columns)
    with styled():
        width, height = (11, 1.2 + 1.9 * rows) if rows > 1 else (11, 3.9)
        figure = new_figure(width, height, f"Bandwidth σ of each head over training, {run.tag}")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        colours = head_colours(sigma.shape[2])
        for axes, layer, index in zip(grid.flat, layers, range(len(layers))):
            for head, colour in enumerate(colours):
                axes.plot(tokens, sigma[:, index, head], color=colour, linewidth=1.8 if rows == 1 else 1.2)
            _draw_start(axes, run)
            axes.set_title(f"layer {layer}{_window_text(run, layer)}", fontsize=9)
        log_values(grid[0, 0], _with_start(sigma, run))
        for axes in grid.flat[len(layers) :]:
            axes.set_visible(False)
        for column in range(columns):  # the lowest panel of a column carries the ticks, even in a short last row
            lowest = grid[(len(layers) - 1 - column) // columns, column]
            token_axis(lowest)
            lowest.xaxis.set_tick_params(labelbottom=True)
            lowest.set_xlabel("")
        figure.supxlabel("training tokens", fontsize=10)
        figure.supylabel("σ (log scale)", fontsize=10)
        _explain_heads(figure, grid, colours, run)
        return save(figure, path)


def plot_bandwidth_depth(run: Run, path: Path) -> Path:
    """Final σ of every head, layer by layer, with each layer's median and the value they all started from."""
    _, sigma, layers = run.bandwidths
    final = sigma[-1]  # (layers, heads)
    heads = final.shape[1]
    with styled():
        figure = new_figure(max(6.5, min(11, 3 + 0.45 * len(layers))), 4.6, f"Final bandwidth σ over depth, {run.tag}")
        axes = figure.subplots()
        for layer in layers:
            if run.gpt_config and run.gpt_config.windows()[layer] is None:
                axes.axvspan(layer - 0.5, layer + 0.5, color=FULL_BAND, zorder=0, linewidth=0)
        reach = min(0.22, 0.05 * (heads - 1))  # side by side, so that equal values are all seen
        spread = np.linspace(-reach, reach, heads)
        colours = head_colours(heads)
        for head, colour in enumerate(colours):
            size = 46 if heads <= len(FEW_COLOURS) else 26
            axes.scatter(np.array(layers) + spread[head], final[:, head], color=colour, s=size, zorder=3, linewidths=0)
        medians = []
        if heads > 2:
            medians = axes.plot(layers, np.median(final, axis=1), color=INK, linewidth=1.2, zorder=2, label="median")
        _draw_start(axes, run)
        log_values(axes, _with_start(final, run), pad=0.1)
        axes.set_xlim(min(layers) - 0.6, max(layers) + 0.6)
        axes.set_xticks(layers if len(layers) <= 24 else layers[::2])
        axes.grid(axis="x", visible=False)
        axes.set_xlabel("layer (shaded: sees the whole context)")
        axes.set_ylabel("σ (log scale)")
        _explain_heads(figure, axes, colours, run, extra=medians)
        return save(figure, path)


def _with_start(sigma: np.ndarray, run: Run) -> np.ndarray:
    return sigma.ravel() if run.bandwidth_start is None else np.append(sigma, run.bandwidth_start)


def _draw_start(axes: Axes, run: Run) -> None:
    if run.bandwidth_start is not None:
        axes.axhline(run.bandwidth_start, color=GREY, linestyle=(0, (4, 3)), linewidth=1.1, zorder=1)


def _window_text(run: Run, layer: int) -> str:
    if run.gpt_config is None:
        return ""
    window = run.gpt_config.windows()[layer]
    return " · full context" if window is None else f" · window {window:,}"


def _explain_heads(figure: Figure, where: np.ndarray | Axes, colours: list, run: Run, extra: Sequence = ()) -> None:
    """A legend of the heads if they are few, else a scale of their colours; and of the `extra` lines.

    `where` is the one panel of points, or the panels of lines, below which stands their common axis label: the legend
    keeps to its right.
    """
    alone = isinstance(where, Axes)
    one = where if alone else where[0, 0]
    few = len(colours) <= len(FEW_COLOURS)
    marks = {"marker": "o", "linestyle": ""} if alone else {}
    handles = [one.plot([], [], color=colour, label=f"head {i}", **marks)[0] for i, colour in enumerate(colours) if few]
    handles += extra
    if run.bandwidth_start is not None:
        label = f"start, {run.bandwidth_start:.2f}"
        handles.append(one.plot([], [], color=GREY, linestyle=(0, (4, 3)), linewidth=1.1, label=label)[0])
    if handles:
        place = "outside lower center" if alone else "outside lower right"
        figure.legend(handles=handles, loc=place, ncols=len(handles), fontsize=9)
    if not few:
        norm = BoundaryNorm(np.arange(-0.5, len(colours)), len(colours))
        bar = figure.colorbar(ScalarMappable(norm, ListedColormap(colours)), ax=where, aspect=40, pad=0.01)
        ticks = range(0, len(colours), max(1, len(colours) // 10))
        bar.set_ticks(list(ticks), labels=[str(tick) for tick in ticks])
        bar.set_label("head")
        bar.minorticks_off()
        bar.outline.set_visible(False)
