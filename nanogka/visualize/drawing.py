"""Parts of the figures: matrices with tokens on their axes, maps of numbers.

Shapes: L layers, H heads, T positions.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from nanogka.formatting import shorten
from nanogka.plots.style import INK, drawable

MOST_TICKS = 32  # tokens written along an axis
HIDDEN = "#E4E4E4"
WEIGHTS = colormaps["Blues"].with_extremes(bad=HIDDEN)
NUMBERS = colormaps["viridis"].with_extremes(bad=HIDDEN)
SURPRISE = colormaps["Oranges"].with_extremes(bad="white")
WEIGHT_UNIT = "weight (square root scale)"


def weight_scale(largest: float = 1.0) -> PowerNorm:
    """Colors by the square root of a weight, from 0 to `largest`."""
    return PowerNorm(0.5, 0, largest or 1.0)


def draw_matrix(
    axes: Axes, weights: Tensor, labels: Sequence[str], scale: Normalize, most_ticks: int = MOST_TICKS
) -> None:
    """Draw A (T, T) with the text of its positions on both axes; NaN in grey."""
    axes.imshow(weights.numpy(), cmap=WEIGHTS, norm=scale, interpolation="nearest")
    token_ticks(axes.xaxis, labels, most_ticks)
    token_ticks(axes.yaxis, labels, most_ticks)


def draw_numbers(figure: Figure, axes: Axes, title: str, numbers: np.ndarray, scale: Normalize | None = None) -> None:
    """Draw a number of every layer and head (L, H), written in its cell where there is room; NaN in grey.

    Without a scale, colors begin at 0, so that heads that are nearly alike look alike.
    """
    axes.set_title(title)
    scale = scale or Normalize(0, np.nanmax(numbers) or 1.0)
    picture = axes.imshow(numbers, cmap=NUMBERS, norm=scale, aspect="auto", interpolation="nearest")
    if numbers.size <= 96:
        for (layer, head), value in np.ndenumerate(numbers):
            light = picture.norm(value) < 0.6
            axes.text(head, layer, f"{value:.3g}", ha="center", va="center", fontsize=7, color="w" if light else INK)
    axes.set(xlabel="head", ylabel="layer", xticks=ticks(numbers.shape[1], 12), yticks=ticks(len(numbers), 12))
    figure.colorbar(picture, ax=axes, pad=0.02)


def color_bar(figure: Figure, axes: Sequence[Axes], scale: Normalize, colors: Colormap, label: str, **place) -> None:
    """Draw the one scale of several panels beside them."""
    figure.colorbar(ScalarMappable(scale, colors), ax=list(axes), label=label, pad=0.01, aspect=30, **place)


def token_ticks(axis: Axis, labels: Sequence[str], most: int = MOST_TICKS) -> None:
    """Write tokens along an axis, at most so many of them, evenly spread."""
    at = ticks(len(labels), most)
    turn = {"rotation": 90} if axis.axis_name == "x" else {}
    axis.set_ticks(at, [token_label(labels[i]) for i in at], fontsize=6, **turn)


def ticks(count: int, most: int) -> list[int]:
    """0, step, 2 · step … below `count`, at most `most` of them."""
    return list(range(0, count, max(1, -(-count // most))))


def token_label(text: str, most: int = 12) -> str:
    """A token in one line: blanks and line ends visible, the rest of a long one as …."""
    return shorten(drawable(text).replace(" ", "·"), most)
