"""Learning curves: training loss and validation bits per byte, against tokens and against FLOPs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from nanogka.plots.runs import Run
from nanogka.plots.scale import Compression
from nanogka.plots.style import (
    GREY,
    flop_axis,
    log_values,
    mixer_colour,
    mixer_name,
    new_figure,
    save,
    styled,
    thin,
    token_axis,
)


def plot_curves(runs: Sequence[Run], path: Path, scale: Compression | None = None) -> Path:
    """Draw the learning curves of one run, or of several in one plot.

    Top: training loss, every step faintly and smoothed. Bottom: validation BPB, with the compressors' as lines. Left
    against tokens (what the model has read), right against FLOPs (what that cost), whose scale is logarithmic so
    that runs of different cost per token are compared at a glance.
    """
    with styled():
        figure = new_figure(11, 7.8, "Learning curves")
        axes = figure.subplots(2, 2, sharey="row", sharex="col")
        for column, measure in enumerate(("tokens", "flops")):
            for run in runs:
                _draw_loss(axes[0, column], run, measure)
                _draw_validation(axes[1, column], run, measure, _label_side(run, runs))
            if scale is not None:
                _draw_scale(axes[1, column], scale, labelled=column == 0)
        _finish_axes(axes, runs, scale)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=10)
        return save(figure, path)


def _draw_loss(axes: Axes, run: Run, measure: str) -> None:
    x, loss, smooth = thin(run.column(measure), run.column("loss"), run.column("smooth_loss"))
    colour = mixer_colour(run.attention)
    axes.plot(x, loss, color=colour, alpha=0.22, linewidth=0.9)
    shown = smooth if np.isfinite(smooth).any() else loss
    axes.plot(x, shown, color=colour, label=f"{mixer_name(run.attention)}, {run.tag}")


def _label_side(run: Run, runs: Sequence[Run]) -> str:
    """Where the last value stands beside its point, so that the labels of two curves that end close do not collide."""
    if len(runs) == 1 or None in [one.last_validation for one in runs]:
        return "center"
    return "bottom" if run is max(runs, key=lambda one: one.last_validation) else "top"


def _draw_validation(axes: Axes, run: Run, measure: str, label_side: str) -> None:
    tokens, flops, bpb = run.validation()
    x = tokens if measure == "tokens" else flops
    # Before the first step nothing has been spent: that point has no place on a logarithmic axis.
    seen = np.isfinite(x) & np.isfinite(bpb) & ((x > 0) | (measure == "tokens"))
    if not seen.any():
        return
    x, bpb = x[seen], bpb[seen]
    colour = mixer_colour(run.attention)
    axes.plot(x, bpb, color=colour, marker="o", markersize=4 if len(x) < 40 else 0)
    axes.annotate(
        f"{bpb[-1]:.3f}",
        (x[-1], bpb[-1]),
        xytext=(6, 0),
        textcoords="offset points",
        color=colour,
        va=label_side,
        fontweight="bold",
        annotation_clip=False,
    )


def _draw_scale(axes: Axes, scale: Compression, labelled: bool) -> None:
    for name, value in (("gzip -9", scale.gzip_bpb), ("xz", scale.xz_bpb)):
        axes.axhline(value, color=GREY, linestyle=(0, (4, 3)), linewidth=1.2, zorder=1)
        if labelled:
            axes.text(
                0.995,
                value,
                f"{name}: {value:.3f}",
                transform=axes.get_yaxis_transform(),
                color="#5A5A5A",
                fontsize=9,
                ha="right",
                va="bottom",
            )


def _finish_axes(axes: np.ndarray, runs: Sequence[Run], scale: Compression | None) -> None:
    losses = np.concatenate([run.column("loss") for run in runs])
    values = np.concatenate([run.validation()[2] for run in runs])
    if scale is not None:
        values = np.append(values, [scale.gzip_bpb, scale.xz_bpb])
    log_values(axes[0, 0], losses)
    log_values(axes[1, 0], values)
    axes[0, 0].set_ylabel("training loss (nats / token)")
    axes[1, 0].set_ylabel("validation bits / byte")
    token_axis(axes[1, 0])
    flop_axis(axes[1, 1])
    axes[0, 0].set_title("every step (faint) and smoothed", color=GREY, fontsize=9)
    axes[1, 0].set_title("lower is better; last value beside the curve", color=GREY, fontsize=9)
    if not np.isfinite(values).any():
        axes[1, 0].set_title("validation was not measured", color=GREY, fontsize=9)
