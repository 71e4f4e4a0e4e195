"""Shared style of all figures: palette, empty figures, axes with plain numbers, labels at line ends, saving.

Figures use the Agg canvas, so they need no window system and no global pyplot state. Decorate a function that draws
with `@rc_context(STYLE)`, or with `MAP_STYLE` if it shows matrices and texts.
"""

import io
import textwrap
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib import colormaps, font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from nanogka.common.files import atomic_write

DPI = 150
MOST_POINTS = 1500  # more points than a panel has pixels; a longer line only makes the file larger
# Distinguishable with color blindness. The last colors are used only for many lines.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A5195", "#555555", "#8C564B", "#B5BD00")
FEW = COLORS[:4]
GREY, INK, GRID, MARK = "#8A8A8A", "#222222", "#E6E6E6", "#D55E00"
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
# The colors of the attention page in dark mode, for the pictures of README.
DARK_GROUND, DARK_INK = "#16181C", "#E6E6E6"
DARK_STYLE = STYLE | {"figure.facecolor": DARK_GROUND, "axes.facecolor": DARK_GROUND, "grid.color": "#3A3D44"}
DARK_STYLE |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), DARK_INK)
MAP_STYLE = STYLE | {  # for matrices: a frame, no grid, smaller text
    "font.size": 9,
    "axes.spines.top": True,
    "axes.spines.right": True,
    "axes.grid": False,
}


def wrap_title(title: str, width: float) -> str:
    """Break a title into lines that fit a figure of this width in inches."""
    return textwrap.fill(title, int(9.7 * width))


def new_figure(width: float, height: float, title: str, note: str = "") -> Figure:
    """Create a figure of this size in inches, with a title at the top left and a note at the bottom left.

    Both are wrapped to the width of the figure.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(wrap_title(title, width), x=0.01, ha="left")
    if note:
        figure.supxlabel(textwrap.fill(note, int(15 * width)), x=0.01, ha="left", fontsize="small", alpha=0.8)
    return figure


def save(figure: Figure, path: Path, style: dict = STYLE) -> Path:
    """Write a figure that was drawn with `style`, in the format of the path's suffix. Returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    with rc_context(style):  # matplotlib creates ticks only when drawing
        figure.savefig(content, dpi=DPI, format=path.suffix.removeprefix("."))
    atomic_write(path, content.getvalue())
    return path


def on_dark(color: str) -> str:
    """Return `color` mixed with white, so that the dark ones among the palette can be read on a dark ground."""
    red, green, blue = (0.65 * part + 0.35 for part in to_rgb(color))
    return to_hex((red, green, blue))


def line_colors(count: int) -> list:
    """Return one color per line: distinct colors for a few lines, even steps in lightness for many."""
    # The yellow at the end of viridis is too pale for a line.
    return list(FEW[:count]) if count <= len(FEW) else list(colormaps["viridis"](np.linspace(0, 0.92, count)))


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
    axes.yaxis.set_major_formatter("{x:g}")  # 0.001 instead of a power of ten
    axes.yaxis.set_minor_locator(NullLocator())


def cost_axis(axes: Axes) -> None:
    """Make x logarithmic with ticks such as 0.2, 5 or 2e13: 1, 2 and 5 times powers of ten."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("e+", "e")))
    axes.xaxis.set_minor_locator(NullLocator())


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
    axes.autoscale_view()  # otherwise the limits of the axes follow from the lines only when the figure is drawn
    to_axes = axes.transData + axes.transAxes.inverted()
    ordered = sorted(ends, key=lambda end: end[1])
    heights = [to_axes.transform((x, y))[1] for x, y, _, _ in ordered]
    # Push overlapping labels up from the lowest, then down from the top where they would leave the axes.
    figure = axes.get_figure(root=True)
    assert figure is not None, "the axes are drawn in a figure"
    gap = 0.2 / (axes.get_position().height * figure.get_figheight())  # 0.2 inches, the height of a line of text
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    for i in range(len(heights) - 1, -1, -1):
        heights[i] = min(heights[i], 1 if i == len(heights) - 1 else heights[i + 1] - gap)
    leader = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2, "relpos": (0, 0.5)}
    for (x, y, text, color), height in zip(ordered, heights):
        place = {"xytext": (1.02, height), "textcoords": "axes fraction", "va": "center", "annotation_clip": False}
        axes.annotate(text, (x, y), color=color, arrowprops=leader | {"color": color}, **place)
