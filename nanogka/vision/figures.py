"""The figures of the paper's section 7: where the heads of a vision transformer look in one image.

Shapes: L layers, H heads, P × P patches after one [CLS] token, T = 1 + P²; A (L, H, T, T) of one image.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from timm.models import VisionTransformer
from torch import Tensor, nn
from torch.utils.data import Dataset

from nanogka.plots.style import MAP_STYLE, MARK, line_colors, new_figure, save
from nanogka.vision.attention import GaussianAttention, attention_weights
from nanogka.visualize.analysis import effective_context, rollout
from nanogka.visualize.figures import color_bar, plot_heads, plot_matrices, weight_scale

DISCARD_RATIOS = (0.0, 0.5, 0.8, 0.9)
OPACITY = LinearSegmentedColormap.from_list("opacity", ["white", MARK])
OWN_SCALE = "each panel is scaled to its largest weight"


@torch.no_grad()
def capture_attention(model: VisionTransformer, images: Tensor) -> Tensor:
    """A (L, B, H, T, T), float32 on the CPU, of `images` (B, channels, height, width), normalized for the model."""
    captured: list[Tensor] = []

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        captured.append(attention_weights(layer, inputs[0].float()).cpu())

    handles = [block.attn.register_forward_pre_hook(hook) for block in model.blocks]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(captured)


def draw_maps(model: VisionTransformer, weights: Tensor, picture: np.ndarray, name: str, folder: Path) -> list[Path]:
    """Write the figures of A over `picture` (size, size, 3), values in 0 to 1, into `folder`; returns their paths."""
    side = round((weights.shape[-1] - 1) ** 0.5)
    if model.num_prefix_tokens != 1 or side**2 + 1 != weights.shape[-1]:
        raise ValueError(f"model: got {weights.shape[-1]} tokens, expected [CLS] and a square of patches")
    means = weights.mean(1)
    labels = ["CLS", *(f"{row},{column}" for row in range(side) for column in range(side))]
    reached = [(f"discard ratio {ratio:g}", rollout(means, ratio)[0, 1:]) for ratio in DISCARD_RATIOS]
    cls = [[(f"layer {i}, head {h}", A[0, 1:]) for h, A in enumerate(layer)] for i, layer in enumerate(weights)]
    figures = {
        "cls": _panels(f"{name}: what [CLS] looks at, per layer (down) and head", cls, picture),
        "patches": plot_queries(f"{name}: what four patches look at, per layer", means, picture),
        "rollout": _panels(f"{name}: what reaches [CLS] through all layers", [reached], picture),
        "distance": plot_distance(f"{name}: attention falls with distance", means),
    }
    for layer, matrices in enumerate(weights):
        heads = [f"head {head}" for head in range(len(matrices))]
        figures[f"layer_{layer:02d}"] = plot_matrices(f"{name}: attention of layer {layer}", matrices, labels, heads)
    sigma = [m.bandwidth.detach().numpy() for m in model.modules() if isinstance(m, GaussianAttention)]
    if sigma:
        reach = effective_context(weights).mean(-1).numpy()
        maps = {"σ": np.stack(sigma), f"effective context, of {weights.shape[-1]} tokens": reach}
        figures["bandwidth"] = plot_heads(f"{name}: how far each head looks", maps)
    return [save(figure, folder / f"{file}.png") for file, figure in figures.items()]


def plot_queries(title: str, means: Tensor, picture: np.ndarray) -> Figure:
    """Draw where four patches look: rows of A (L, T, T), averaged over heads, without the patch's own weight."""
    side = round((means.shape[-1] - 1) ** 0.5)
    near, far = side // 4, side - 1 - side // 4  # a quarter of the width from the corners
    queries = [(near, near), (near, far), (far, near), (far, far)]
    rows = []
    for row, column in queries:
        token = 1 + row * side + column
        weights = means[:, token, 1:].clone()
        weights[:, token - 1] = torch.nan
        names = [f"layer {i}: {float(A[token, token]):.2g} on itself" for i, A in enumerate(means)]
        rows.append(list(zip(names, weights)))
    return _panels(title, rows, picture, queries)


@rc_context(MAP_STYLE)
def plot_distance(title: str, means: Tensor) -> Figure:
    """Draw the mean weight between patches over their distance, one line per layer, for A (L, T, T)."""
    distances, profiles = distance_profiles(means)
    figure = new_figure(6, 4, title, "mean over heads and pairs of patches")
    axes = figure.subplots()
    for layer, color in enumerate(line_colors(len(means))):
        axes.plot(distances, profiles[layer], color=color, marker=".", label=f"layer {layer}")
    axes.set(yscale="log", xlabel="distance (patches)", ylabel="mean weight")
    axes.legend()
    return figure


def distance_profiles(means: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Distances (N,) between patches, rounded to whole patches, and the mean weight (L, N) at each, of A (L, T, T)."""
    side = round((means.shape[-1] - 1) ** 0.5)
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    apart = torch.cdist(places, places).round().long()
    distances = apart.unique()
    profiles = [means[:, 1:, 1:][:, apart == distance].mean(-1) for distance in distances]
    return distances.numpy(), torch.stack(profiles, 1).numpy()


Panel = tuple[str, Tensor]  # title and weights (P²,)


@rc_context(MAP_STYLE)
def _panels(
    title: str, rows: Sequence[Sequence[Panel]], picture: np.ndarray, framed: Sequence[tuple[int, int]] = ()
) -> Figure:
    """Draw the picture and then panels of weights over it, row by row; `framed`: one patch per row."""
    columns = max(map(len, rows))
    figure = new_figure(1.7 * (columns + 1) + 0.8, 1.9 * len(rows) + 0.7, title, OWN_SCALE)
    grid = figure.subplots(len(rows), columns + 1, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for number, (line, panels) in enumerate(zip(grid, rows)):
        line[0].imshow(picture, extent=(0, 1, 1, 0))
        for axes, (name, weights) in zip(line[1:], panels):
            _overlay(axes, name, weights, picture)
        if framed:
            side = round(len(panels[0][1]) ** 0.5)
            for axes in line[: len(panels) + 1]:
                _frame(axes, framed[number], side)
    color_bar(figure, grid[:, -1], weight_scale(), OPACITY, "share of the largest weight")
    return figure


def _overlay(axes: Axes, name: str, weights: Tensor, picture: np.ndarray) -> None:
    """Color the patches over the gray picture; opacity is the square root of a weight (P²,)."""
    side = round(len(weights) ** 0.5)
    largest = float(weights.nan_to_num().max())
    axes.set_title(f"{name}\nlargest {largest:.2g}", fontsize=6)
    axes.imshow(picture.mean(-1), cmap="gray", vmin=-1.5, vmax=1, extent=(0, 1, 1, 0))  # pale, below the colors
    layer = np.empty((side, side, 4))
    layer[..., :3] = to_rgb(MARK)
    layer[..., 3] = 0.9 * weight_scale(largest)(weights.nan_to_num().view(side, side).numpy())
    axes.imshow(layer, extent=(0, 1, 1, 0), interpolation="nearest")


def _frame(axes: Axes, patch: tuple[int, int], side: int) -> None:
    top, left = patch[0] / side, patch[1] / side
    right, bottom = left + 1 / side, top + 1 / side
    axes.plot((left, right, right, left, left), (top, top, bottom, bottom, top), color=MARK, linewidth=1.5)


def draw_example(model: VisionTransformer, images: Dataset, shape: dict, folder: Path, number: int = 0) -> list[Path]:
    """Draw `draw_maps` for one image of a data set whose transform fits the model; `shape` has its mean and std."""
    image, label = images[number]
    mean, std = (torch.tensor(shape[name])[:, None, None] for name in ("mean", "std"))
    picture = (image * std + mean).clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0).numpy()
    model = model.cpu().eval()
    answer = int(model(image[None]).argmax())
    weights = capture_attention(model, image[None])[:, 0]
    return draw_maps(model, weights, picture, f"image {number}, class {label}, predicted {answer}", folder)
