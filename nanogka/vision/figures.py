"""The paper's figures of where the heads look (section 7), over the picture; the others are `nanogka.visualize`'s.

Shapes: L layers, P × P patches behind one [CLS] token, T = 1 + P²; A (L, H, T, T) of one image.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from timm.models import VisionTransformer
from torch import Tensor

from nanogka.plots.style import GRID, INK, MAP_STYLE, MARK, new_figure, save
from nanogka.vision.attention import GaussianAttention
from nanogka.visualize.analysis import effective_context, rollout, without_diagonal
from nanogka.visualize.figures import (
    WEIGHT_UNIT,
    WEIGHTS,
    color_bar,
    draw_matrix,
    plot_bandwidths,
    plot_matrices,
    weight_scale,
)

DISCARD_RATIOS = (0.0, 0.5, 0.8, 0.9)
CLS_TEXT = "each panel has colors of its own, to the largest weight on a patch"
ROLLOUT_TEXT = "share of each patch in [CLS] of the last layer"
OPACITY = LinearSegmentedColormap.from_list("opacity", ["white", MARK])


def draw_maps(model: VisionTransformer, weights: Tensor, picture: np.ndarray, name: str, folder: Path) -> list[Path]:
    """Write every figure of A over `picture` (size, size, 3), in 0 to 1, into `folder`; returns their paths."""
    side = round((weights.shape[-1] - 1) ** 0.5)
    if model.num_prefix_tokens != 1 or side**2 + 1 != weights.shape[-1]:
        raise ValueError(f"--run: got a model of {weights.shape[-1]} tokens, expected [CLS] and a square of patches")
    labels = ["CLS", *(f"{row},{column}" for row in range(side) for column in range(side))]
    means = weights.mean(1)
    reached = [(f"discard ratio {ratio:g}", rollout(means, ratio)[0, 1:]) for ratio in DISCARD_RATIOS]
    cls = [[(f"layer {i}, head {h}", A[0, 1:]) for h, A in enumerate(layer)] for i, layer in enumerate(weights)]
    near, far = side // 4, side - 1 - side // 4  # a quarter of the picture's width from its corners
    queries = [(near, near), (near, far), (far, near), (far, far)]
    figures: dict[str, Callable[[], Figure]] = {
        "cls": lambda: _panels(f"{name}: where [CLS] looks, by layer (down) and head", CLS_TEXT, cls, picture),
        "patches": lambda: plot_queries(f"{name}: where four patches look, by layer", means, picture, queries),
        "rollout": lambda: _panels(f"{name}: what reaches [CLS], by discard ratio", ROLLOUT_TEXT, [reached], picture),
        "composite": lambda: plot_layers(f"{name}: layer by layer", means, labels, picture),
    }
    for layer, matrices in enumerate(weights):
        heads = [f"head {head}" for head in range(len(matrices))]
        figures[f"layer_{layer:02d}"] = lambda layer=layer, matrices=matrices, heads=heads: plot_matrices(
            f"{name}: attention of layer {layer}", matrices, labels, heads
        )
    sigma = [m.bandwidth.detach().numpy() for m in model.modules() if isinstance(m, GaussianAttention)]
    if sigma:
        reach = effective_context(weights).mean(-1).numpy()
        maps = {"σ": np.stack(sigma), f"effective context, of {weights.shape[-1]} tokens": reach}
        figures["bandwidth"] = lambda: plot_bandwidths(f"{name}: how far each head looks", maps, half_width=True)
    for file, draw in figures.items():
        save(draw(), folder / f"{file}.png")
    return [folder / f"{file}.png" for file in figures]


def plot_queries(title: str, means: Tensor, picture: np.ndarray, queries: Sequence[tuple[int, int]]) -> Figure:
    """Draw where patches look: rows of A (L, T, T), a mean over heads, without what a patch takes of itself."""
    side = round((means.shape[-1] - 1) ** 0.5)
    rows = []
    for query in queries:
        token = 1 + query[0] * side + query[1]
        taken = means[:, token, 1:].clone()
        taken[:, token - 1] = torch.nan
        names = [f"layer {i}: {float(A[token, token]):.2g} on itself" for i, A in enumerate(means)]
        rows.append(list(zip(names, taken)))
    text = "mean over the heads; the patch that looks is framed, what it takes of itself left out"
    return _panels(title, text, rows, picture, queries)


@rc_context(MAP_STYLE)
def plot_layers(title: str, means: Tensor, labels: Sequence[str], picture: np.ndarray) -> Figure:
    """Draw a row per layer: A (T, T), its mean over heads, its first row over the picture, its weight by distance."""
    distances, profiles = distance_profiles(means)
    off = without_diagonal(means)
    scale = weight_scale(float(off.nan_to_num().max()))
    text = "mean over the heads, diagonal left out; where [CLS] looks; mean weight between patches so far apart"
    figure = new_figure(9.5, 2.9 * len(means) + 0.7, title, text)
    grid = figure.subplots(len(means), 3, squeeze=False)
    for layer, (matrix, over, profile) in enumerate(grid):
        matrix.set_title(f"layer {layer}")
        draw_matrix(matrix, off[layer], labels, scale, most=16)
        _overlay(over, "from [CLS]", means[layer, 0, 1:], picture)
        over.set_axis_off()
        profile.plot(distances, profiles[layer], color=INK, marker=".")
        profile.set(ylim=(0, None), xlabel="distance (patches)", ylabel="mean weight")
        profile.grid(color=GRID, linewidth=0.7)
    color_bar(figure, grid[:, 0], scale, WEIGHTS, WEIGHT_UNIT, location="left")
    return figure


def distance_profiles(means: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Distances (N,) between patches, rounded to whole patches, and the mean weight (L, N) at each, of A (L, T, T)."""
    side = round((means.shape[-1] - 1) ** 0.5)
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    apart = torch.cdist(places, places).round().long()
    distances = apart.unique()
    profiles = [means[:, 1:, 1:][:, apart == distance].mean(-1) for distance in distances]
    return distances.numpy(), torch.stack(profiles, 1).numpy()


Panel = tuple[str, Tensor]  # its title, its weights (P²,)


@rc_context(MAP_STYLE)
def _panels(
    title: str, text: str, rows: Sequence[Sequence[Panel]], picture: np.ndarray, framed: Sequence[tuple[int, int]] = ()
) -> Figure:
    """The picture and the panels, in rows; `framed`: a patch of each row."""
    columns = max(map(len, rows))
    figure = new_figure(1.7 * (columns + 1) + 0.8, 1.9 * len(rows) + 0.7, title, text)
    grid = figure.subplots(len(rows), columns + 1, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for number, (line, panels) in enumerate(zip(grid, rows)):
        line[0].imshow(picture, extent=(0, 1, 1, 0))
        for axes, (name, weights) in zip(line[1:], panels):
            _overlay(axes, name, weights, picture)
            if framed:
                _frame(axes, framed[number], round(len(weights) ** 0.5))
        if framed:
            _frame(line[0], framed[number], round(len(panels[0][1]) ** 0.5))
    color_bar(figure, grid[:, -1], weight_scale(), OPACITY, "share of largest")
    return figure


def _overlay(axes: Axes, name: str, weights: Tensor, picture: np.ndarray) -> None:
    """Color the patches over the picture in gray, the more opaque the larger the weight (P²,)."""
    side = round(len(weights) ** 0.5)
    largest = float(weights.nan_to_num().max())
    axes.set_title(f"{name}\nlargest {largest:.2g}", fontsize=6)
    axes.imshow(picture.mean(-1), cmap="gray", vmin=-1.5, vmax=1, extent=(0, 1, 1, 0))  # light, or it would darken them
    layer = np.empty((side, side, 4))
    layer[..., :3] = to_rgb(MARK)
    layer[..., 3] = 0.9 * weight_scale(largest)(weights.nan_to_num().view(side, side).numpy())
    axes.imshow(layer, extent=(0, 1, 1, 0), interpolation="nearest")


def _frame(axes: Axes, patch: tuple[int, int], side: int) -> None:
    top, left = patch[0] / side, patch[1] / side
    right, bottom = left + 1 / side, top + 1 / side
    axes.plot((left, right, right, left, left), (top, top, bottom, bottom, top), color=MARK, linewidth=1.5)
