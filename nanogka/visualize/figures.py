"""Figures of attention weights and of numbers per head. They need no model, so they also serve images.

Panels in one figure share one color scale. Colors show the square root of a weight; otherwise the heavy diagonal
would hide all small weights. Shapes: L layers, H heads, T positions; A (…, T, T) on the CPU.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from nanogka.common.formatting import shorten
from nanogka.plots.series import subsample
from nanogka.plots.style import INK, MAP_STYLE, drawable, new_figure
from nanogka.visualize.analysis import without_diagonal

MAX_TICKS = 32  # token labels per axis
MAX_POSITIONS = 256  # rows of a drawn matrix; a longer text is subsampled
HIDDEN = "#E4E4E4"
WEIGHTS = colormaps["Blues"].with_extremes(bad=HIDDEN)
WEIGHT_UNIT = "weight (square root scale)"


@rc_context(MAP_STYLE)
def plot_heads(title: str, maps: Mapping[str, np.ndarray], note: str = "") -> Figure:
    """Draw numbers (L, H) per head by title, one map per title. Colors start at 0."""
    layers, heads = next(iter(maps.values())).shape
    figure = new_figure(max(3.8, 1.3 + 0.4 * heads) * len(maps), 2 + 0.3 * layers, title, note)
    for axes, (name, numbers) in zip(figure.subplots(1, len(maps), squeeze=False).flat, maps.items()):
        axes.set_title(name)
        picture = axes.imshow(
            numbers, cmap=WEIGHTS, norm=Normalize(0, np.nanmax(numbers) or 1.0), aspect="auto", interpolation="nearest"
        )
        if numbers.size <= 96:  # room for the numbers
            for (layer, head), value in np.ndenumerate(numbers):
                ink = "w" if picture.norm(value) > 0.6 else INK
                axes.text(head, layer, f"{value:.3g}", ha="center", va="center", fontsize=7, color=ink)
        axes.set(xlabel="head", ylabel="layer", xticks=ticks(heads, 12), yticks=ticks(layers, 12))
        figure.colorbar(picture, ax=axes, pad=0.02)
    return figure


@rc_context(MAP_STYLE)
def plot_matrices(title: str, weights: Tensor, labels: Sequence[str], names: Sequence[str]) -> Figure:
    """Draw each A of (H, T, T) from 0 to 1, and below it without its diagonal, scaled to the largest weight."""
    weights, labels, note = _subsampled(weights, labels)
    off = without_diagonal(weights)
    scales = weight_scale(), weight_scale(_largest(off))
    columns = min(len(weights), 5)
    bands = -(-len(weights) // columns)
    figure = new_figure(3.9 * columns + 0.7, 7.4 * bands + 0.5, title, f"Rows attend to columns.{note}")
    grid = figure.subplots(2 * bands, columns, squeeze=False)
    for row in (0, 1):
        cells = grid[row::2].flat
        for axes, name, A in zip(cells, names, (weights, off)[row]):
            axes.set_title(f"{name}, without the diagonal" if row else name)
            draw_matrix(axes, A, labels, scales[row])
        for axes in cells[len(names) :]:
            axes.set_visible(False)
    for number, row in enumerate(grid):
        color_bar(figure, row, scales[number % 2], WEIGHTS, WEIGHT_UNIT)
    return figure


def weight_scale(largest: float = 1.0) -> PowerNorm:
    """The color scale of weights: square root, from 0 to `largest`."""
    return PowerNorm(0.5, 0, largest or 1.0)


def draw_matrix(axes: Axes, weights: Tensor, labels: Sequence[str], scale: Normalize, most: int = MAX_TICKS) -> None:
    """Draw A (T, T) with token labels on both axes; NaN is gray."""
    axes.imshow(weights.numpy(), cmap=WEIGHTS, norm=scale, interpolation="nearest")
    token_ticks(axes.xaxis, labels, most)
    token_ticks(axes.yaxis, labels, most)


def color_bar(figure: Figure, axes: Sequence[Axes], scale: Normalize, colors: Colormap, label: str, **place) -> None:
    """Draw the shared color scale of several panels next to them."""
    figure.colorbar(ScalarMappable(scale, colors), ax=list(axes), label=label, pad=0.01, aspect=30, **place)


def token_ticks(axis: XAxis | YAxis, labels: Sequence[str], most: int = MAX_TICKS) -> None:
    """Label an axis with at most `most` tokens, evenly spread."""
    at = ticks(len(labels), most)
    turn: dict[str, Any] = {"rotation": 90} if axis.axis_name == "x" else {}
    axis.set_ticks(at, [token_label(labels[i]) for i in at], fontsize=6, **turn)


def ticks(count: int, most: int) -> list[int]:
    """0, step, 2 · step … below `count`: at most `most` values."""
    return list(range(0, count, max(1, -(-count // most))))


def token_label(text: str, most: int = 12) -> str:
    """A token on one line, with visible blanks and line ends; a long one is shortened."""
    return shorten(drawable(text).replace(" ", "·"), most)


def _subsampled(weights: Tensor, labels: Sequence[str]) -> tuple[Tensor, list[str], str]:
    """A (N, T, T) and labels at most at `MAX_POSITIONS` positions, and a note if some are missing."""
    keep = subsample(weights.shape[-1], MAX_POSITIONS)
    note = "" if len(keep) == len(labels) else f" {len(keep)} of {len(labels)} positions, evenly spread."
    return weights[:, keep][:, :, keep], [labels[i] for i in keep], note


def _largest(weights: Tensor) -> float:
    return float(weights.nan_to_num().max())
