"""Figures of a report: learning curves, and σ over training."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from nanogka.common.formatting import number, shorten
from nanogka.evaluate.intervals import Interval
from nanogka.model.mixers import MIXERS
from nanogka.plots.html import dark_twin
from nanogka.plots.series import subsample
from nanogka.plots.style import (
    COLORS,
    DARK_INK,
    DARK_STYLE,
    DASHED,
    FEW,
    GREY,
    INK,
    MARK,
    MOST_POINTS,
    STYLE,
    drawable,
    label_ends,
    line_colors,
    log_values,
    new_figure,
    on_dark,
    save,
    token_axis,
)
from nanogka.plots.trained_run import TrainedRun

# Inches. The page scales all figures to its width. With a common width, text has the same size in all of them.
WIDTH = 11.0
LONGEST_TAG = 32


def _with_dark_twin(path: Path, draw: Callable[[bool], Figure]) -> Path:
    """Save `draw(dark)` at `path` in light colors, and in dark ones at the twin of this path (see plots/html.py)."""
    for file, style in ((path, STYLE), (dark_twin(path), DARK_STYLE)):
        with rc_context(style):
            save(draw(style is DARK_STYLE), file, style)
    return path


def plot_curves(runs: Sequence[TrainedRun], path: Path, scale: Mapping[str, float]) -> Path:
    """Draw training loss and validation bits per byte against tokens, with `scale` as horizontal lines by name.

    If no run has validations, that panel is omitted.
    """
    return _with_dark_twin(path, lambda dark: _curves(runs, scale, run_colors(runs, dark)))


def _curves(runs: Sequence[TrainedRun], scale: Mapping[str, float], colors: Sequence[str]) -> Figure:
    validated = [(value, run) for run in runs if (value := run.last_validation)]
    best = min(validated, key=lambda pair: pair[0], default=(None, None))[1]
    title = "Learning curves"
    if best:
        title = f"{_tag(best)} reaches {number(best.last_validation, 3)} bits per byte during training"
        others = [f"{_tag(run)} {number(run.last_validation, 3)}" for _, run in validated if run is not best]
        title += f" ({', '.join(others)})" if others else ""
    figure = new_figure(WIDTH, 4.4, title)
    panels = figure.subplots(1, 2 if best else 1, squeeze=False)[0]
    losses, ends = panels[0], []
    for run, color in zip(runs, colors):
        x, loss, smooth = _thin(run.column("tokens"), run.column("loss"), run.column("smooth_loss"))
        shown = smooth if np.isfinite(smooth).any() else loss
        losses.plot(x, loss, color=color, alpha=0.22, linewidth=0.9)
        losses.plot(x, shown, color=color)
        ends.append((x[-1], shown[-1], _tag(run), color))
    # A loss falls like a power of the tokens: on a logarithmic axis the late, small differences stay visible.
    log_values(losses, np.concatenate([run.column("loss") for run in runs]))
    losses.set_title("training loss (nats / token): each step (faint) and smoothed")
    if best:
        ends = _draw_validations(panels[1], runs, colors, scale)
    for axes in panels:
        axes.set_xlabel("training tokens")
        token_axis(axes)
    label_ends(panels[-1], [end for end in ends if np.isfinite(end[1])])
    return figure


def _draw_validations(
    axes: Axes, runs: Sequence[TrainedRun], colors: Sequence[str], scale: Mapping[str, float]
) -> list[tuple[float, float, str, str]]:
    """Draw the validations during training. Returns the ends of the lines, see `label_ends`."""
    ends, seen = [], list(scale.values())
    for run, color in zip(runs, colors):
        x, bpb = run.validation("tokens"), run.validation("val_bpb")
        x, bpb = x[np.isfinite(bpb)], bpb[np.isfinite(bpb)]
        axes.plot(x, bpb, color=color, marker="o" if len(x) < 40 else "", markersize=4)
        seen += list(bpb)
        ends += [(x[-1], bpb[-1], _tag(run), color)] if len(x) else []
    log_values(axes, seen)
    sizes = {int(size) for run in runs for size in run.validation("val_tokens") if np.isfinite(size)}
    sample = f" (first {sizes.pop():,} tokens)" if len(sizes) == 1 else ""
    axes.set_title(f"validation bits per byte during training{sample}")
    for name, value in scale.items():
        axes.axhline(value, zorder=1, **DASHED)
        ends.append((axes.get_xlim()[1], value, name, GREY))
    return ends


def run_colors(runs: Sequence[TrainedRun], dark: bool = False) -> list[str]:
    """Return a color per run: its mixer's color, or a free one for a hybrid or a second run of a mixer."""
    own = [MIXERS[run.attention].color if run.attention in MIXERS else None for run in runs]
    spare = cycle([color for color in COLORS if color not in {mixer.color for mixer in MIXERS.values()}])
    colors = [color if color and color not in own[:i] else next(spare) for i, color in enumerate(own)]
    return [on_dark(color) if dark else color for color in colors]


def plot_bandwidths(run: TrainedRun, path: Path) -> Path:
    """Draw σ against training tokens: one panel per layer, one line per head, one logarithmic scale for all."""
    return _with_dark_twin(path, lambda dark: _bandwidths(run, dark))


def _bandwidths(run: TrainedRun, dark: bool) -> Figure:
    tokens, sigma, layers = run.bandwidths
    tokens, sigma = _thin(tokens, sigma)
    columns = len(layers) if len(layers) <= 4 else 5
    rows = math.ceil(len(layers) / columns)
    # σ is learned as log σ, so equal steps of the optimizer are equal distances on a logarithmic axis.
    figure = new_figure(WIDTH, 1.2 + 1.9 * rows if rows > 1 else 3.9, f"Bandwidth σ over training, {_tag(run)}")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    colors = [on_dark(color) if dark else color for color in line_colors(sigma.shape[2])]
    windows = run.gpt_config.windows()
    for index, (axes, layer) in enumerate(zip(grid.flat, layers)):
        for head, color in enumerate(colors):
            axes.plot(tokens, sigma[:, index, head], color=color, linewidth=1.8 if rows == 1 else 1.2)
        axes.axhline(run.bandwidth_start, zorder=1, **DASHED)
        window = "full context" if windows[layer] is None else f"window {windows[layer]:,}"
        axes.set_title(f"layer {layer} · {window}")
    log_values(grid[0, 0], np.append(sigma, run.bandwidth_start))
    for axes in grid.flat[len(layers) :]:
        axes.set_visible(False)
    for column in range(columns):  # the lowest panel of a column has tick labels, even if the last row is short
        lowest = grid[(len(layers) - 1 - column) // columns, column]
        token_axis(lowest, ticks=3)
        lowest.xaxis.set_tick_params(labelbottom=True)
    figure.supxlabel("training tokens", fontsize="medium")
    figure.supylabel("σ (log scale)", fontsize="medium")
    _explain_lines(figure, grid, colors, run.bandwidth_start)
    return figure


def plot_skills(skills: Mapping[str, tuple[Interval, float | None]], path: Path) -> Path:
    """Draw the share of right answers of each skill, {name: (interval, share of a constant answer)}, as a bar."""
    return _with_dark_twin(path, lambda dark: _skills(skills, dark))


def _skills(skills: Mapping[str, tuple[Interval, float | None]], dark: bool) -> Figure:
    figure = new_figure(WIDTH, 1.1 + 0.3 * len(skills), "Right answers to questions that training did not have")
    axes, (color, ink, mark) = figure.subplots(), (COLORS[4], INK, MARK)
    if dark:
        color, ink, mark = COLORS[0], DARK_INK, on_dark(mark)
    for row, (share, constant) in enumerate(skills.values()):
        axes.barh(row, share.value, height=0.62, color=color, zorder=2)
        if math.isfinite(share.half):
            axes.plot([share.low, share.high], [row, row], color=ink, linewidth=1.4, zorder=3)
        if constant is not None:
            axes.plot(constant, row, "|", color=mark, markersize=13, markeredgewidth=2.2, zorder=3)
        axes.text(1.015, row, skill_text(share), va="center", fontsize="small")
    ticks = np.linspace(0, 1, 6)
    axes.set(xlim=(0, 1), xticks=ticks, xticklabels=[f"{100 * tick:.0f} %" for tick in ticks])
    names = [shorten(drawable(name), LONGEST_TAG) for name in skills]
    axes.set(yticks=range(len(skills)), yticklabels=names, ylim=(len(skills) - 0.4, -0.6))
    axes.grid(axis="y", visible=False)
    interval = axes.plot([], [], color=ink, linewidth=1.4, label="95 % interval")
    constant = axes.plot([], [], "|", color=mark, markersize=13, markeredgewidth=2.2, label="best constant answer")
    figure.legend(handles=[*interval, *constant], loc="outside lower right", ncols=2)
    return figure


def skill_text(share: Interval) -> str:
    """A share in percent, with its interval if it has one."""
    value = f"{100 * share.value:.1f} %"
    return f"{value} ({100 * share.low:.1f} to {100 * share.high:.1f})" if math.isfinite(share.half) else value


def _explain_lines(figure: Figure, grid: np.ndarray, colors: list, start: float) -> None:
    """Add a legend for few heads or a color scale for many, and a legend for the dashed line."""
    one, handles = grid[0, 0], []
    if len(colors) <= len(FEW):
        handles = [one.plot([], [], color=color, label=f"head {i}")[0] for i, color in enumerate(colors)]
    else:
        norm = BoundaryNorm(np.arange(-0.5, len(colors)), len(colors))
        bar = figure.colorbar(ScalarMappable(norm, ListedColormap(colors)), ax=grid, aspect=40, pad=0.01, label="head")
        bar.set_ticks(range(0, len(colors), max(1, len(colors) // 10)))
        bar.minorticks_off()
        bar.outline.set_visible(False)
    handles.append(one.plot([], [], label=f"initial value, {start:.2f}", **DASHED)[0])
    figure.legend(handles=handles, loc="outside lower right", ncols=len(handles))


def _tag(run: TrainedRun) -> str:
    return shorten(drawable(run.tag), LONGEST_TAG)


def _thin(*columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Subsample the columns to at most `MOST_POINTS` evenly spaced rows, including the first and the last."""
    keep = subsample(len(columns[0]), MOST_POINTS)
    return tuple(column[keep] for column in columns)
