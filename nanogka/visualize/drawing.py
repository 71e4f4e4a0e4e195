"""Parts of the figures: matrices with tokens on their axes, maps of numbers, text on a colored ground.

Shapes: L layers, H heads, T positions.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from nanogka.formatting import shorten
from nanogka.plots.style import INK, MAP_STYLE, MARK, drawable

MOST_TICKS = 32  # tokens written along an axis
TEXT_COLUMNS, TEXT_SIZE = 100, 8  # characters in a line of drawn text, and their size in points
ADVANCE, LEADING = 0.602, 1.5  # width of a character of DejaVu Sans Mono and height of a line, in its size
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


@rc_context(MAP_STYLE)
def text_panels(
    title: str,
    panels: Sequence[tuple[str, np.ndarray]],
    labels: Sequence[str],
    scale: Normalize,
    colors: Colormap,
    unit: str,
    marked: int | None = None,
) -> Figure:
    """Draw the text once per panel, each token on a ground colored by the panel's number for it.

    Args:
        panels: a title and numbers (T,) each; NaN stays white.
        labels: text of each token.
        marked: a token to be framed.
    """
    lines, owners = wrap_tokens(labels)
    line_height, panel_title, gap = TEXT_SIZE * LEADING / 72, 0.3, 0.1  # inches
    text_height, text_width = len(lines) * line_height, TEXT_COLUMNS * TEXT_SIZE * ADVANCE / 72
    width, height = text_width + 1.4, 0.5 + len(panels) * (panel_title + text_height + gap)
    height = max(height, 2.2)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    figure.text(0.2 / width, 1 - 0.3 / height, title, fontsize=10)
    top = 0.4
    for name, numbers in panels:
        top += panel_title + text_height
        axes = figure.add_axes((0.2 / width, 1 - top / height, text_width / width, text_height / height))
        axes.set_title(name)
        axes.set_axis_off()
        ground = np.where(owners >= 0, np.asarray(numbers)[owners], np.nan)
        extent = (0, TEXT_COLUMNS, len(lines), 0)
        axes.imshow(ground, cmap=colors.with_extremes(bad="w"), norm=scale, aspect="auto", extent=extent)
        _write(axes, lines, np.nan_to_num(np.asarray(scale(ground), float)) > 0.6)
        for line, column in np.argwhere(owners == marked):
            axes.plot((column, column + 1), (line + 0.96, line + 0.96), color=MARK, linewidth=2, clip_on=False)
        top += gap
    bar = figure.add_axes((1 - 1 / width, 1 - 1.9 / height, 0.12 / width, 1.2 / height))
    figure.colorbar(ScalarMappable(scale, colors), cax=bar, label=unit)
    return figure


def wrap_tokens(labels: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Lines of text, broken at its line ends too, and the token (lines, columns) of each cell, −1 for none."""
    lines, owners = [""], [[]]
    for token, label in enumerate(labels):
        for character in label:
            if len(lines[-1]) == TEXT_COLUMNS:
                lines.append("")
                owners.append([])
            lines[-1] += drawable(character)
            owners[-1].append(token)
            if character == "\n":
                lines.append("")
                owners.append([])
    return lines, np.array([row + [-1] * (TEXT_COLUMNS - len(row)) for row in owners])


def _write(axes: Axes, lines: Sequence[str], dark: np.ndarray) -> None:
    """Write lines of monospaced text, white in the cells (lines, columns) with a `dark` ground."""
    for number, line in enumerate(lines):
        for color, where in ((INK, ~dark[number]), ("white", dark[number])):
            part = "".join(c if here else " " for c, here in zip(line, where))
            if part.strip():
                font = {"family": "DejaVu Sans Mono", "fontsize": TEXT_SIZE, "va": "center_baseline"}
                axes.text(0, number + 0.5, part, color=color, **font)
