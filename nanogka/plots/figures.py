"""Figures of a report: learning curves, and σ over training and over depth."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from nanogka.common.formatting import number, shorten
from nanogka.plots import style
from nanogka.plots.compression import Compression
from nanogka.plots.counterparts import run_colors
from nanogka.plots.style import (
    DASHED,
    FEW,
    INK,
    STYLE,
    drawable,
    label_ends,
    line_colors,
    log_values,
    new_figure,
    save,
    subsample,
)
from nanogka.plots.trained_run import TrainedRun

# Inches. The page scales all figures to its width. With a common width, text has the same size in all of them.
WIDTH = 11.0
LONGEST_TAG = 32


@rc_context(STYLE)
def plot_curves(runs: Sequence[TrainedRun], path: Path, scale: Compression | None = None) -> Path:
    """Draw training loss and validation bits per byte against tokens, with the compressors as horizontal lines.

    A run without validations has only a loss. If no run has validations, that panel is omitted.
    """
    validated = [run for run in runs if run.last_validation]
    best = min(validated, key=lambda run: run.last_validation, default=None)
    title = "Learning curves"
    if best:
        title = f"{_tag(best)} reaches {number(best.last_validation, 3)} bits per byte on validation text"
        others = [f"{_tag(run)} {number(run.last_validation, 3)}" for run in validated if run is not best]
        title += f" ({', '.join(others)})" if others else ""
    figure = new_figure(WIDTH, 4.4, title)
    panels = figure.subplots(1, 2 if best else 1, squeeze=False)[0]
    losses, colors, ends = panels[0], run_colors(runs), []
    for run, color in zip(runs, colors):
        x, loss, smooth = _thin(run.column("tokens"), run.column("loss"), run.column("smooth_loss"))
        shown = smooth if np.isfinite(smooth).any() else loss
        losses.plot(x, loss, color=color, alpha=0.22, linewidth=0.9)
        losses.plot(x, shown, color=color)
        ends.append((x[-1], shown[-1], _tag(run), color))
    log_values(losses, np.concatenate([run.column("loss") for run in runs]))
    losses.set_title("training loss (nats / token): each step (faint) and smoothed")
    if best:
        ends = _draw_validations(panels[1], runs, colors, scale)
    for axes in panels:
        axes.set_xlabel("training tokens")
        style.token_axis(axes)
    label_ends(panels[-1], [end for end in ends if np.isfinite(end[1])])
    return save(figure, path)


def _draw_validations(axes: Axes, runs: Sequence[TrainedRun], colors: Sequence[str], scale: Compression | None) -> list:
    """Draw the validations during training. Returns the ends of the lines, see `label_ends`."""
    ends, seen = [], [] if scale is None else [scale.gzip_bpb, scale.xz_bpb]
    for run, color in zip(runs, colors):
        x, bpb = run.validation("tokens"), run.validation("val_bpb")
        x, bpb = x[np.isfinite(bpb)], bpb[np.isfinite(bpb)]
        axes.plot(x, bpb, color=color, marker="o" if len(x) < 40 else "", markersize=4)
        seen += list(bpb)
        ends += [(x[-1], bpb[-1], _tag(run), color)] if len(x) else []
    log_values(axes, seen)
    axes.set_title("validation bits per byte during training")
    for name, value in {} if scale is None else {"gzip -9": scale.gzip_bpb, "xz": scale.xz_bpb}.items():
        axes.axhline(value, zorder=1, **DASHED)
        ends.append((axes.get_xlim()[1], value, name, style.GREY))
    return ends


@rc_context(STYLE)
def plot_bandwidth_training(run: TrainedRun, path: Path) -> Path:
    """Draw σ against training tokens: one panel per layer, one line per head, one logarithmic scale for all."""
    tokens, sigma, layers = run.bandwidths
    tokens, sigma = _thin(tokens, sigma)
    columns = len(layers) if len(layers) <= 4 else 5
    rows = math.ceil(len(layers) / columns)
    figure = new_figure(WIDTH, 1.2 + 1.9 * rows if rows > 1 else 3.9, f"Bandwidth σ over training, {_tag(run)}")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    colors = line_colors(sigma.shape[2])
    for index, (axes, layer) in enumerate(zip(grid.flat, layers)):
        for head, color in enumerate(colors):
            axes.plot(tokens, sigma[:, index, head], color=color, linewidth=1.8 if rows == 1 else 1.2)
        _draw_start(axes, run)
        axes.set_title(f"layer {layer}{_window_text(run, layer)}")
    log_values(grid[0, 0], np.append(sigma, run.bandwidth_start or np.nan))
    for axes in grid.flat[len(layers) :]:
        axes.set_visible(False)
    for column in range(columns):  # the lowest panel of a column has tick labels, even if the last row is short
        lowest = grid[(len(layers) - 1 - column) // columns, column]
        style.token_axis(lowest, ticks=3)
        lowest.xaxis.set_tick_params(labelbottom=True)
    figure.supxlabel("training tokens", fontsize="medium")
    figure.supylabel("σ (log scale)", fontsize="medium")
    _explain_heads(figure, grid, colors, run)
    return save(figure, path)


@rc_context(STYLE)
def plot_bandwidth_depth(run: TrainedRun, path: Path) -> Path:
    """Draw the final σ of every head over the layers, with each layer's median and the initial value."""
    _, sigma, layers = run.bandwidths
    final = sigma[-1]  # (layers, heads)
    heads = final.shape[1]
    figure = new_figure(WIDTH, 4.4, f"Final bandwidth σ by layer, {_tag(run)}")
    axes = figure.subplots()
    for layer in layers:
        if run.gpt_config and run.gpt_config.windows()[layer] is None:
            axes.axvspan(layer - 0.5, layer + 0.5, color="#F1EFE8", zorder=0, linewidth=0)
    reach = min(0.22, 0.05 * (heads - 1))  # offset horizontally, so that equal values stay visible
    colors = line_colors(heads)
    for head, (color, offset) in enumerate(zip(colors, np.linspace(-reach, reach, heads))):
        axes.scatter(np.array(layers) + offset, final[:, head], color=color, s=30, zorder=3, linewidths=0)
    if heads > 2:
        axes.plot(layers, np.median(final, axis=1), color=INK, linewidth=1.2, zorder=2, label="median")
    _draw_start(axes, run)
    log_values(axes, np.append(final, run.bandwidth_start or np.nan), pad=0.1)
    axes.set(xlim=(min(layers) - 0.6, max(layers) + 0.6), xticks=layers if len(layers) <= 24 else layers[::2])
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="layer (shaded: sees the whole context)", ylabel="σ (log scale)")
    _explain_heads(figure, np.array([[axes]]), colors, run)
    return save(figure, path)


def _tag(run: TrainedRun) -> str:
    return shorten(drawable(run.tag), LONGEST_TAG)


def _window_text(run: TrainedRun, layer: int) -> str:
    if run.gpt_config is None:
        return ""
    window = run.gpt_config.windows()[layer]
    return " · full context" if window is None else f" · window {window:,}"


def _draw_start(axes: Axes, run: TrainedRun) -> None:
    if run.bandwidth_start is not None:
        axes.axhline(run.bandwidth_start, zorder=1, **DASHED)


def _explain_heads(figure: Figure, grid: np.ndarray, colors: list, run: TrainedRun) -> None:
    """Add a legend for few heads or a color scale for many, and a legend for the labeled and dashed lines."""
    one = grid[0, 0]
    handles = one.get_legend_handles_labels()[0]
    if len(colors) <= len(FEW):
        handles += [one.plot([], [], color=color, label=f"head {i}")[0] for i, color in enumerate(colors)]
    else:
        norm = BoundaryNorm(np.arange(-0.5, len(colors)), len(colors))
        bar = figure.colorbar(ScalarMappable(norm, ListedColormap(colors)), ax=grid, aspect=40, pad=0.01, label="head")
        bar.set_ticks(range(0, len(colors), max(1, len(colors) // 10)))
        bar.minorticks_off()
        bar.outline.set_visible(False)
    if run.bandwidth_start is not None:
        handles.append(one.plot([], [], label=f"initial value, {run.bandwidth_start:.2f}", **DASHED)[0])
    if handles:
        figure.legend(handles=handles, loc="outside lower right", ncols=len(handles))


def _thin(*columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Subsample the columns to at most `MOST_POINTS` evenly spaced rows, including the first and the last."""
    keep = subsample(len(columns[0]), style.MOST_POINTS)
    return tuple(column[keep] for column in columns)
