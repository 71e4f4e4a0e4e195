"""The figures of attention. They are drawn of A, numbers and labels, not of a model: those of images serve as well.

Heads or layers that stand side by side share one scale of colors. Weights are colored by their square root, so that
small ones are seen beside a heavy diagonal. Shapes: L layers, H heads, T positions; A (…, T, T) on the CPU.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from nanogka.common.formatting import shorten
from nanogka.plots.style import FEW, GRID, INK, MAP_STYLE, drawable, line_colors, new_figure, plain_ticks, subsample
from nanogka.visualize.analysis import HALF_WIDTH, distance_profile, without_diagonal

MOST_TICKS = 32  # tokens written along an axis
MOST_POSITIONS = 256  # of a drawn matrix; a longer text is subsampled
LENS_POSITIONS = 14  # last tokens whose predictions are written out
SMALLEST = 1e-5  # weight on logarithmic axes
HIDDEN = "#E4E4E4"
WEIGHTS = colormaps["Blues"].with_extremes(bad=HIDDEN)
SURPRISE = colormaps["Oranges"]
WEIGHT_UNIT = "weight (square root scale)"


@rc_context(MAP_STYLE)
def plot_shares(title: str, maps: Mapping[str, np.ndarray], text: str) -> Figure:
    """Draw shares of heads (L, H), from 0 to 1, by the titles of `maps`, in the colors that weights have."""
    layers, heads = next(iter(maps.values())).shape
    figure = new_figure(max(3.8, 1.3 + 0.5 * heads) * len(maps), max(2.8, 1.5 + 0.3 * layers), title, text)
    for axes, (name, numbers) in zip(figure.subplots(1, len(maps), squeeze=False)[0], maps.items()):
        draw_numbers(figure, axes, name, numbers, weight_scale())
    return figure


@rc_context(MAP_STYLE)
def plot_bandwidths(title: str, maps: Mapping[str, np.ndarray], half_width: bool = False) -> Figure:
    """Draw numbers (L, H) of heads by title, as maps and over depth; `half_width`: of the first, which is σ."""
    layers, heads = next(iter(maps.values())).shape
    text = "of each layer and head; below over depth, one line per head"
    figure = new_figure(max(3.8, 1.3 + 0.4 * heads) * len(maps), 5.4 + 0.15 * layers, title, text)
    grid = figure.subplots(2, len(maps), squeeze=False)
    for (upper, lower), (name, numbers) in zip(grid.T, maps.items()):
        draw_numbers(figure, upper, name, numbers)
        for head, color in enumerate(line_colors(heads)):
            lower.plot(numbers[:, head], color=color, marker="o", markersize=3, label=f"head {head}")
        lower.set(xlabel="layer", ylabel=name, xticks=ticks(layers, 12))
    if heads <= len(FEW):
        figure.legend(*lower.get_legend_handles_labels(), loc="outside lower center", ncols=heads)
    if half_width:
        second = grid[1, 0].secondary_yaxis("right", (lambda s: HALF_WIDTH * s, lambda width: width / HALF_WIDTH))
        second.set_ylabel("half-width 1.177 σ")
    return figure


@rc_context(MAP_STYLE)
def plot_matrices(title: str, weights: Tensor, labels: Sequence[str], names: Sequence[str]) -> Figure:
    """Draw each A of (H, T, T): raw from 0 to 1, and below without its diagonal, scaled to the largest weight left."""
    weights, labels, note = _subsampled(weights, labels)
    off = without_diagonal(weights)
    scales = weight_scale(), weight_scale(_largest(off))
    columns = min(len(weights), 5)
    bands = -(-len(weights) // columns)
    figure = new_figure(3.9 * columns + 0.7, 7.4 * bands + 0.5, title, f"rows attend to columns{note}")
    grid = figure.subplots(2 * bands, columns, squeeze=False)
    for row in (0, 1):
        cells = grid[row::2].flat
        for axes, name, A in zip(cells, names, (weights, off)[row]):
            axes.set_title(f"{name}, diagonal left out" if row else name)
            draw_matrix(axes, A, labels, scales[row])
        for axes in cells[len(names) :]:
            axes.set_visible(False)
    for number, row in enumerate(grid):
        color_bar(figure, row, scales[number % 2], WEIGHTS, WEIGHT_UNIT)
    return figure


@rc_context(MAP_STYLE)
def plot_rollouts(title: str, reached: Mapping[float, Tensor], labels: Sequence[str]) -> Figure:
    """Draw attention rollout (T, T) by discard ratio."""
    shown, labels, note = _subsampled(without_diagonal(torch.stack(list(reached.values()))), labels)
    scale = weight_scale(_largest(shown))
    text = f"share of each position (across) in each of the last layer (down), diagonal left out{note}"
    figure = new_figure(3.9 * len(shown) + 0.7, 4.6, title, text)
    grid = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, ratio, values in zip(grid, reached, shown):
        axes.set_title(f"discard ratio {ratio:g}")
        draw_matrix(axes, values, labels, scale)
    color_bar(figure, grid, scale, WEIGHTS, "share (square root scale)")
    return figure


@rc_context(MAP_STYLE)
def plot_composite(title: str, means: Mapping[int, Tensor], labels: Sequence[str]) -> Figure:
    """Draw one row per layer: A averaged over its heads (T, T), its last row, and its profile over distance."""
    drawn, some_labels, note = _subsampled(torch.stack(list(means.values())), labels)
    off = without_diagonal(drawn)
    scale = weight_scale(_largest(off))
    text = f"mean over the heads, diagonal left out; where the last position looks; mean weight by distance{note}"
    figure = new_figure(14, 3.6 * len(means) + 0.6, title, text)
    grid = figure.subplots(len(means), 3, squeeze=False, width_ratios=(1.3, 1.7, 1))
    for index, ((matrix, row, profile), (layer, mean)) in enumerate(zip(grid, means.items())):
        matrix.set_title(f"layer {layer}")
        draw_matrix(matrix, off[index], some_labels, scale, most=16)
        row.plot(drawn[index, -1].numpy(), ".", color=FEW[0])
        row.set_title(f"from the last position, {token_label(labels[-1])}")
        row.set(yscale="log", ylim=(SMALLEST, 1.3), ylabel="weight", xlim=(-0.6, len(some_labels) - 0.4))
        token_ticks(row.xaxis, some_labels)
        by_distance = distance_profile(mean).clamp_min(SMALLEST)
        profile.plot(np.arange(len(mean)) + 1, by_distance.numpy(), color=INK, marker="." if len(mean) < 3 else "")
        profile.set(xscale="log", yscale="log", ylim=(SMALLEST, 1.3), xlabel="distance + 1", ylabel="mean weight")
        profile.grid(color=GRID, linewidth=0.7)
        for axis in (row.yaxis, profile.xaxis, profile.yaxis):
            plain_ticks(axis)
    color_bar(figure, grid[:, 0], scale, WEIGHTS, WEIGHT_UNIT, location="left", shrink=min(1, 2 / len(means)))
    return figure


@rc_context(MAP_STYLE)
def plot_lens(
    title: str, words: Sequence[Sequence[str]], chances: np.ndarray, bits: np.ndarray, labels: Sequence[str]
) -> Figure:
    """Draw the likeliest next token of each layer and its probability (L, T), and the surprise in bits (L, T − 1)."""
    first = max(0, len(labels) - LENS_POSITIONS)
    text = "the final norm and lm_head applied to the output of each layer: after each token, the likeliest next"
    figure = new_figure(13, 3.2 + 0.5 * len(words), title, text)
    upper, lower = figure.subplots(2, 1, height_ratios=(1.3, 1))
    picture = upper.imshow(chances[:, first:], cmap=WEIGHTS, norm=Normalize(0, 1), aspect="auto")
    for (layer, column), chance in np.ndenumerate(chances[:, first:]):
        light = {"color": "white" if chance > 0.55 else INK, "ha": "center", "va": "center", "fontsize": 7}
        upper.text(column, layer, token_label(words[layer][first + column]), **light)
    upper.set_xticks(range(len(labels) - first), [token_label(label) for label in labels[first:]], fontsize=7)
    upper.xaxis.tick_top()
    figure.colorbar(picture, ax=upper, label="probability", pad=0.01)
    keep = subsample(bits.shape[1], MOST_POSITIONS)
    if len(keep):
        mean = f"the last layer's is the model's, {bits[-1].mean():.2f} bits per token"
        lower.set_title(f"surprise at the token that does follow; {mean}")
        picture = lower.imshow(bits[:, keep], cmap=SURPRISE, norm=Normalize(0, bits.max()), aspect="auto")
        figure.colorbar(picture, ax=lower, label="bits", pad=0.01)
        token_ticks(lower.xaxis, [labels[i + 1] for i in keep])
    for axes in (upper, lower):
        axes.set(ylabel="layer", yticks=ticks(len(words), 12))
    return figure


def weight_scale(largest: float = 1.0) -> PowerNorm:
    """Colors by the square root of a weight, from 0 to `largest`."""
    return PowerNorm(0.5, 0, largest or 1.0)


def draw_matrix(axes: Axes, weights: Tensor, labels: Sequence[str], scale: Normalize, most: int = MOST_TICKS) -> None:
    """Draw A (T, T) with the text of its positions on both axes; NaN in gray."""
    axes.imshow(weights.numpy(), cmap=WEIGHTS, norm=scale, interpolation="nearest")
    token_ticks(axes.xaxis, labels, most)
    token_ticks(axes.yaxis, labels, most)


def draw_numbers(figure: Figure, axes: Axes, title: str, numbers: np.ndarray, scale: Normalize | None = None) -> None:
    """Draw a number of every layer and head (L, H), written where there is room; colors begin at 0."""
    axes.set_title(title)
    scale = scale or Normalize(0, np.nanmax(numbers) or 1.0)
    picture = axes.imshow(numbers, cmap=WEIGHTS, norm=scale, aspect="auto", interpolation="nearest")
    if numbers.size <= 96:
        for (layer, head), value in np.ndenumerate(numbers):
            light = picture.norm(value) > 0.6
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


def _subsampled(weights: Tensor, labels: Sequence[str]) -> tuple[Tensor, list[str], str]:
    """A (N, T, T) and labels at no more than `MOST_POSITIONS`, and a note if some are left out."""
    keep = subsample(weights.shape[-1], MOST_POSITIONS)
    note = "" if len(keep) == len(labels) else f"; {len(keep)} of {len(labels)} positions, evenly spread"
    return weights[:, keep][:, :, keep], [labels[i] for i in keep], note


def _largest(weights: Tensor) -> float:
    return float(weights.nan_to_num().max())
