"""The figures of a report: learning curves, and σ over training and over depth."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from nanogka.formatting import shorten
from nanogka.plots.compression import Compression
from nanogka.plots.counterparts import SPARE_COLORS, run_color
from nanogka.plots.style import (
    DASHED,
    FEW,
    GREY,
    INK,
    MOST_POINTS,
    SHADE,
    STYLE,
    cost_axis,
    drawable,
    line_colors,
    log_values,
    new_figure,
    save,
    subsample,
    token_axis,
)
from nanogka.runs import Run

LONGEST_TAG = 32


@rc_context(STYLE)
def plot_curves(runs: Sequence[Run], path: Path, scale: Compression | None = None) -> Path:
    """Draw the learning curves of one run, or of several in the same panels.

    Top: training loss, every step faintly and smoothed. Bottom: validation bits per byte, with the compressors' as
    lines. Left against tokens, right against FLOPs (logarithmic, so that runs of different cost per token compare).
    """
    figure = new_figure(11, 7.8, "Learning curves")
    axes = figure.subplots(2, 2, sharey="row", sharex="col")
    highest = max(runs, key=lambda run: run.last_validation or 0)
    for run, color in zip(runs, _distinct_colors(runs)):
        side = "center" if len(runs) == 1 else "bottom" if run is highest else "top"
        for column, measure in enumerate(("tokens", "flops")):
            _draw_loss(axes[0, column], run, measure, color)
            _draw_validation(axes[1, column], run, measure, color, side)
    losses = np.concatenate([run.column("loss") for run in runs])
    values = np.concatenate([run.validation("val_bpb") for run in runs])
    if scale is not None:
        values = np.append(values, [scale.gzip_bpb, scale.xz_bpb])
        _draw_scale(axes[1], scale)
    log_values(axes[0, 0], losses)
    log_values(axes[1, 0], values)
    axes[0, 0].set_ylabel("training loss (nats / token)")
    axes[1, 0].set_ylabel("validation bits / byte")
    axes[0, 0].set_title("training loss: every step (faint) and smoothed", color=GREY, fontsize=9)
    measured = "last value beside the curve" if any(run.last_validation for run in runs) else "not measured"
    axes[1, 0].set_title(f"validation bits per byte: {measured}", color=GREY, fontsize=9)
    token_axis(axes[1, 0])
    axes[1, 0].set_xlabel("training tokens")
    axes[1, 1].set_xlabel("training FLOPs (log scale)")
    cost_axis(axes[1, 1])
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(runs), fontsize=10)
    return save(figure, path)


@rc_context(STYLE)
def plot_bandwidth_training(run: Run, path: Path) -> Path:
    """Draw σ against training tokens: one panel per layer, one line per head, one logarithmic scale for all."""
    tokens, sigma, layers = run.bandwidths
    tokens, sigma = _thin(tokens, sigma)
    columns = len(layers) if len(layers) <= 4 else 5 if len(layers) <= 25 else 8
    rows = math.ceil(len(layers) / columns)
    figure = new_figure(11, 1.2 + 1.9 * rows if rows > 1 else 3.9, f"Bandwidth σ over training, {_tag(run)}")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    colors = line_colors(sigma.shape[2])
    for index, (axes, layer) in enumerate(zip(grid.flat, layers)):
        for head, color in enumerate(colors):
            axes.plot(tokens, sigma[:, index, head], color=color, linewidth=1.8 if rows == 1 else 1.2)
        _draw_start(axes, run)
        axes.set_title(f"layer {layer}{_window_text(run, layer)}", fontsize=9)
    log_values(grid[0, 0], np.append(sigma, run.bandwidth_start or np.nan))
    for axes in grid.flat[len(layers) :]:
        axes.set_visible(False)
    for column in range(columns):  # the lowest panel of a column carries the ticks, even in a short last row
        lowest = grid[(len(layers) - 1 - column) // columns, column]
        token_axis(lowest, ticks=4 if columns <= 4 else 3)
        lowest.xaxis.set_tick_params(labelbottom=True)
    figure.supxlabel("training tokens", fontsize=10)
    figure.supylabel("σ (log scale)", fontsize=10)
    # to the right of the common label of the x axes, which stands in the middle
    _explain_heads(figure, grid, colors, run, "outside lower right", {})
    return save(figure, path)


@rc_context(STYLE)
def plot_bandwidth_depth(run: Run, path: Path) -> Path:
    """Draw the final σ of every head over the layers, with each layer's median and the initial value."""
    _, sigma, layers = run.bandwidths
    final = sigma[-1]  # (layers, heads)
    heads = final.shape[1]
    figure = new_figure(max(6.5, min(11, 3 + 0.45 * len(layers))), 4.6, f"Final bandwidth σ by layer, {_tag(run)}")
    axes = figure.subplots()
    for layer in layers:
        if run.gpt_config and run.gpt_config.windows()[layer] is None:
            axes.axvspan(layer - 0.5, layer + 0.5, color=SHADE, zorder=0, linewidth=0)
    reach = min(0.22, 0.05 * (heads - 1))  # side by side, so that equal values are all seen
    colors = line_colors(heads)
    for head, (color, offset) in enumerate(zip(colors, np.linspace(-reach, reach, heads))):
        size = 46 if heads <= len(FEW) else 26
        axes.scatter(np.array(layers) + offset, final[:, head], color=color, s=size, zorder=3, linewidths=0)
    if heads > 2:
        axes.plot(layers, np.median(final, axis=1), color=INK, linewidth=1.2, zorder=2, label="median")
    _draw_start(axes, run)
    log_values(axes, np.append(final, run.bandwidth_start or np.nan), pad=0.1)
    axes.set_xlim(min(layers) - 0.6, max(layers) + 0.6)
    axes.set_xticks(layers if len(layers) <= 24 else layers[::2])
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("layer (shaded: sees the whole context)")
    axes.set_ylabel("σ (log scale)")
    _explain_heads(figure, axes, colors, run, "outside lower center", {"marker": "o", "linestyle": ""})
    return save(figure, path)


def _tag(run: Run) -> str:
    return shorten(drawable(run.tag), LONGEST_TAG)


def _distinct_colors(runs: Sequence[Run]) -> list[str]:
    colors: list[str] = []
    for run in runs:
        colors.append(next(color for color in (run_color(run), *SPARE_COLORS) if color not in colors))
    return colors


def _draw_loss(axes: Axes, run: Run, measure: str, color: str) -> None:
    x, loss, smooth = _thin(run.column(measure), run.column("loss"), run.column("smooth_loss"))
    axes.plot(x, loss, color=color, alpha=0.22, linewidth=0.9)
    shown = smooth if np.isfinite(smooth).any() else loss
    axes.plot(x, shown, color=color, label=f"{run.label}, {_tag(run)}")


def _draw_validation(axes: Axes, run: Run, measure: str, color: str, side: str) -> None:
    x, bpb = run.validation(measure), run.validation("val_bpb")
    # Before the first step nothing has been spent: that point has no place on a logarithmic axis.
    seen = np.isfinite(x) & np.isfinite(bpb) & ((x > 0) | (measure == "tokens"))
    if not seen.any():
        return
    x, bpb = x[seen], bpb[seen]
    axes.plot(x, bpb, color=color, marker="o", markersize=4 if len(x) < 40 else 0)
    if measure == "flops":
        return  # the same last value as against tokens, where the curves end side by side
    beside = {"xytext": (6, 0), "textcoords": "offset points", "annotation_clip": False}
    axes.annotate(f"{bpb[-1]:.3f}", (x[-1], bpb[-1]), color=color, va=side, fontweight="bold", **beside)


def _draw_scale(row: np.ndarray, scale: Compression) -> None:
    """The compressors' bits per byte as lines through a row of panels, named in the first."""
    for name, value in (("gzip -9", scale.gzip_bpb), ("xz", scale.xz_bpb)):
        for axes in row:
            axes.axhline(value, zorder=1, **DASHED)
        place = {"transform": row[0].get_yaxis_transform(), "ha": "right", "va": "bottom"}
        row[0].text(0.995, value, f"{name}: {value:.3f}", color="#5A5A5A", fontsize=9, **place)


def _draw_start(axes: Axes, run: Run) -> None:
    if run.bandwidth_start is not None:
        axes.axhline(run.bandwidth_start, zorder=1, **DASHED)


def _window_text(run: Run, layer: int) -> str:
    if run.gpt_config is None:
        return ""
    window = run.gpt_config.windows()[layer]
    return " · full context" if window is None else f" · window {window:,}"


def _explain_heads(figure: Figure, where: np.ndarray | Axes, colors: list, run: Run, place: str, marks: dict) -> None:
    """A legend of the heads if they are few, else a scale of their colors; and of the labelled and dashed lines."""
    one = where if isinstance(where, Axes) else where[0, 0]
    handles = one.get_legend_handles_labels()[0]
    if len(colors) <= len(FEW):
        heads = [one.plot([], [], color=color, label=f"head {i}", **marks)[0] for i, color in enumerate(colors)]
        handles = heads + handles
    else:
        norm = BoundaryNorm(np.arange(-0.5, len(colors)), len(colors))
        bar = figure.colorbar(ScalarMappable(norm, ListedColormap(colors)), ax=where, aspect=40, pad=0.01, label="head")
        ticks = range(0, len(colors), max(1, len(colors) // 10))
        bar.set_ticks(list(ticks), labels=[str(tick) for tick in ticks])
        bar.minorticks_off()
        bar.outline.set_visible(False)
    if run.bandwidth_start is not None:
        handles.append(one.plot([], [], label=f"initial value, {run.bandwidth_start:.2f}", **DASHED)[0])
    if handles:
        figure.legend(handles=handles, loc=place, ncols=len(handles), fontsize=9)


def _thin(*columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """The columns at no more than `MOST_POINTS` evenly spaced rows, first and last among them."""
    keep = subsample(len(columns[0]), MOST_POINTS)
    return tuple(column[keep] for column in columns)
