"""Gaussian mixture attention, seen: which tokens meet in which components, and which components nothing meets in.

from nanogka.plots.mixture import collected_tokens, plot_responsibilities, token_responsibilities

ids = tokenizer.encode(text)
r = token_responsibilities(model, ids, layer=0)[:, 0]        # (T, K) of the first head's keys
pieces = [tokenizer.decode([token]) for token in ids]
plot_responsibilities(pieces, r, Path("layer0-head0.png"), "layer 0, head 0")
for component, found in enumerate(collected_tokens(pieces, r)):
    print(component, found)
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context

from nanogka.formatting import markdown_table, number
from nanogka.model import GPT
from nanogka.model.mixers.mixture import GaussianMixtureMixer
from nanogka.plots.figures import INK, STYLE, _figure, _save
from nanogka.plots.runs import Run

MOST_TOKENS = 80  # in a figure, so that each can be read


@torch.no_grad()
def token_responsibilities(model: GPT, ids: Sequence[int], layer: int) -> np.ndarray:
    """Responsibilities (T, H, K) of the keys of a text's tokens, at most the model's context, in one layer.

    Raises:
        ValueError: if the layer has no components.
    """
    mixer, found = model.blocks[layer].mixer, []
    if not isinstance(mixer, GaussianMixtureMixer):
        raise ValueError(f"layer: got {layer}, whose mixer is {mixer.name}, takes one of Gaussian mixture attention")
    with mixer.register_forward_pre_hook(lambda _, inputs: found.append(mixer.responsibilities(*inputs[:2])[1])):
        model.hidden(torch.tensor([list(ids)], device=model.device))
    return found[0][0].float().cpu().numpy()


def collected_tokens(
    tokens: Sequence[str], responsibilities: np.ndarray, most: int = 8
) -> list[list[tuple[str, float]]]:
    """The tokens that each component collects: the different ones with the largest total share, and that share.

    Args:
        tokens: (T,) as text.
        responsibilities: (T, K).
        most: how many per component.
    """
    names, places = np.unique(np.array(tokens), return_inverse=True)
    shares = np.zeros((len(names), responsibilities.shape[1]))
    np.add.at(shares, places, responsibilities)
    order = np.argsort(-shares, axis=0)[:most]
    return [[(str(names[i]), float(shares[i, k])) for i in order[:, k]] for k in range(shares.shape[1])]


def plot_responsibilities(tokens: Sequence[str], responsibilities: np.ndarray, path: Path, title: str) -> Path:
    """Draw token × component: how much of each of the first tokens each component of a head takes.

    Components stand in the order of what they take of these tokens, the largest first.
    """
    shown = responsibilities[:MOST_TOKENS]
    order = np.argsort(-shown.sum(0))
    with rc_context(STYLE | {"axes.grid": False}):
        figure = _figure(max(6.0, 2.5 + 0.12 * shown.shape[1]), max(3.0, 1.6 + 0.16 * len(shown)), title)
        axes = figure.subplots()
        image = axes.imshow(shown[:, order], aspect="auto", cmap="viridis", vmin=0, interpolation="nearest")
        labels = [repr(token)[1:-1].replace("$", r"\$") for token in tokens[:MOST_TOKENS]]
        axes.set_yticks(range(len(shown)), labels=labels, fontsize=7, color=INK)
        columns = range(0, shown.shape[1], max(1, shown.shape[1] // 16))
        axes.set_xticks(list(columns), labels=[str(order[i]) for i in columns], fontsize=7)
        axes.set_xlabel("component")
        figure.colorbar(image, ax=axes, aspect=40, pad=0.02, label="responsibility").outline.set_visible(False)
        return _save(figure, path)


def report_components(run: Run) -> list[str]:
    """The report's section on component use at the last step; nothing for a run without components."""
    last = run.train[-1]
    layers = last.get("component_entropy_layers")
    if not layers:
        return []
    K = run.fact("mixture_components") or GaussianMixtureMixer.options["mixture_components"]
    rows = []
    for layer, entropies, dead in zip(layers, last["component_entropy"], last["dead_components"]):
        used = [number(float(np.exp(entropy)), 1) for entropy in entropies]
        rows.append([str(layer), ", ".join(used), ", ".join(str(int(count)) for count in dead)])
    return [
        "## Components",
        f"Of {K} Gaussian components a head, over the keys of the last micro-batch. In use: exp of the entropy of the "
        f"mean responsibilities, {K} if all collect alike. Dead: those with less than a hundredth of an even share.",
        markdown_table(["layer", "in use, by head", "dead, by head"], rows),
    ]
