"""How every plot of the project looks: colours that colour-blind people tell apart, few lines, axes that can be read.

Figures are drawn with the Agg canvas, given explicitly: no window system, no global backend, no pyplot state.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

DPI = 150
# Okabe and Ito's palette, in an order whose neighbours contrast in lightness too.
BLUE, ORANGE, GREEN, PINK, SKY, GREY, INK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#8A8A8A", "#222222"
FEW_COLOURS = (BLUE, ORANGE, GREEN, PINK)
MIXER_COLOURS = {"gaussian": BLUE, "dot_product": ORANGE}
MIXER_NAMES = {"gaussian": "Gaussian Kernel Attention", "dot_product": "baseline (dot product)"}
MOST_POINTS = 1500  # more than the pixels of a panel: a longer line only makes the file larger

STYLE = {
    "font.size": 10,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so a plot looks the same everywhere
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


def styled():
    """A context in which figures are made and saved in the project's style."""
    return rc_context(STYLE)


def new_figure(width: float, height: float, title: str) -> Figure:
    """An empty figure of so many inches with a title at its top left."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    return path


def mixer_colour(attention: str) -> str:
    """The colour that stands for a token mixer in every plot; green for mixtures."""
    return MIXER_COLOURS.get(attention, GREEN)


def mixer_name(attention: str) -> str:
    """How a token mixer is called in plots and sentences; a pattern of mixers by itself."""
    return MIXER_NAMES.get(attention, f"mixer pattern {attention}")


def head_colours(heads: int) -> list:
    """One colour a head: distinct ones for a few, else a sequence of even lightness steps."""
    if heads <= len(FEW_COLOURS):
        return list(FEW_COLOURS[:heads])
    return [colormaps["viridis"](0.92 * head / (heads - 1)) for head in range(heads)]  # the last yellow is too pale


def thin(*columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """The columns at no more than `MOST_POINTS` evenly spaced rows, first and last among them."""
    length = len(columns[0])
    if length <= MOST_POINTS:
        return columns
    keep = np.linspace(0, length - 1, MOST_POINTS).round().astype(int)
    return tuple(column[keep] for column in columns)


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
    _plain_numbers(axes.yaxis)


def token_axis(axes: Axes) -> None:
    """Label x as training tokens, in thousands, millions or billions."""
    axes.set_xlabel("training tokens")
    formatter = EngFormatter(sep=" ")
    formatter.ENG_PREFIXES = {**formatter.ENG_PREFIXES, 9: "B"}  # of tokens one says billions
    axes.xaxis.set_major_formatter(formatter)
    axes.xaxis.set_major_locator(MaxNLocator(5))


def flop_axis(axes: Axes) -> None:
    """Label x as training FLOPs, logarithmic."""
    axes.set_xlabel("training FLOPs (log scale)")
    axes.set_xscale("log")


def _plain_numbers(axis: Axis) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
