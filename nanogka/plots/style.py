"""Shared style of all figures: palette, empty figures, axes with plain numbers, saving.

Figures use the Agg canvas, so they need no window system and no global pyplot state. Decorate a function that draws
with `@rc_context(STYLE)`, or with `MAP_STYLE` if it shows matrices and texts.
"""

import textwrap
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib import colormaps, font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from nanogka.common.files import annotate_oserror
from nanogka.common.formatting import si

DPI = 150
MOST_POINTS = 1500  # more points than a panel has pixels; a longer line only makes the file larger
# Distinguishable with color blindness. The last colors are used only for many lines.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A5195", "#555555", "#8C564B", "#B5BD00")
FEW = COLORS[:4]
GREY, INK, SHADE, GRID, MARK = "#8A8A8A", "#222222", "#F1EFE8", "#E6E6E6", "#D55E00"
DASHED = {"color": GREY, "linestyle": (0, (4, 3)), "linewidth": 1.1}
STYLE = {
    "font.size": 10,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so a figure looks the same everywhere
    "figure.facecolor": "white",
    "figure.titlesize": "large",
    "figure.titleweight": "bold",
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name or text must not start a formula
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}
MAP_STYLE = STYLE | {  # for matrices: a frame, no grid, smaller text
    "font.size": 9,
    "figure.titleweight": "normal",
    "axes.spines.top": True,
    "axes.spines.right": True,
    "axes.grid": False,
}


def new_figure(width: float, height: float, title: str, text: str = "") -> Figure:
    """Create a figure of this size in inches, with a title and an explanation at the top left, wrapped to its width."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    lines = [line for part in (title, text) for line in textwrap.wrap(part, int(9.7 * width))]
    figure.suptitle("\n".join(lines), x=0.01, ha="left")
    return figure


@rc_context(STYLE)  # matplotlib creates ticks only when drawing
def save(figure: Figure, *paths: Path) -> Path:
    """Write the figure to each path in the format of its suffix; returns the first."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        with annotate_oserror(path):
            figure.savefig(path, dpi=DPI)
    return paths[0]


def line_colors(count: int) -> list:
    """Return one color per line: distinct colors for a few lines, even steps in lightness for many."""
    # The yellow at the end of viridis is too pale for a line.
    return list(FEW[:count]) if count <= len(FEW) else list(colormaps["viridis"](np.linspace(0, 0.92, count)))


def subsample(length: int, most: int) -> np.ndarray:
    """Return at most `most` evenly spread indices below `length`, including the first and the last: (n,) int64."""
    return np.linspace(0, length - 1, min(length, most)).round().astype(int)


def log_values(axes: Axes, values: Sequence[float] | np.ndarray, pad: float = 0.06) -> None:
    """Make y logarithmic over the finite positive `values`, with plain numbers at ticks that suit the range."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return
    low, high = values.min(), values.max()
    margin = max((high / low) ** pad, 1.02)
    axes.set_yscale("log")
    axes.set_ylim(low / margin, high * margin)
    wide = high / low > 12
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    plain_ticks(axes.yaxis)


def plain_ticks(axis: Axis) -> None:
    """Write 0.001 instead of a power of ten at the major ticks of a logarithmic axis, and drop the minor ones."""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def cost_axis(axes: Axes) -> None:
    """Make x logarithmic with ticks such as 2M or 50T: 1, 2 and 5 times powers of ten; on a long axis, only powers."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1,) if high / low > 300 else (1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def token_axis(axes: Axes, ticks: int = 5) -> None:
    """Label x with counts of tokens, such as 2 M."""
    formatter = EngFormatter(sep=" ")
    formatter.ENG_PREFIXES = {**formatter.ENG_PREFIXES, 9: "B"}  # write B for billions of tokens, not G
    axes.xaxis.set_major_formatter(formatter)
    axes.xaxis.set_major_locator(MaxNLocator(ticks))


def drawable(text: str) -> str:
    """Return `text` with one cell per character: □ for characters that the font lacks, ↵ for line ends."""
    text = text.replace("\n", "↵").replace("\t", "→")
    return "".join(c if ord(c) in _font() and unicodedata.category(c)[0] != "M" else "□" for c in text)


@cache
def _font() -> frozenset[int]:
    return frozenset(FT2Font(font_manager.findfont("DejaVu Sans Mono")).get_charmap())


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write the name of each line to the right of the axes, in its color and next to its end.

    `ends` has (x, y, text, color) of each line. Labels that would overlap are moved apart.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    ordered = sorted(ends, key=lambda end: end[1])
    heights = [to_axes.transform((x, y))[1] for x, y, _, _ in ordered]
    gap = 0.2 / (axes.get_position().height * axes.figure.get_figheight())  # 0.2 inches, the height of a line of text
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    for i in range(len(heights) - 1, -1, -1):
        heights[i] = min(heights[i], 1 if i == len(heights) - 1 else heights[i + 1] - gap)
    leader = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2, "relpos": (0, 0.5)}
    for (x, y, text, color), height in zip(ordered, heights):
        place = {"xytext": (1.02, height), "textcoords": "axes fraction", "va": "center", "annotation_clip": False}
        axes.annotate(text, (x, y), color=color, arrowprops=leader | {"color": color}, **place)
