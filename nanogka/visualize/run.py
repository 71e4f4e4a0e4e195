"""From a run and a text to a folder of figures and the page."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from nanogka.data import open_corpus
from nanogka.formatting import one_line
from nanogka.model import MIXERS, attention_name
from nanogka.plots.style import save
from nanogka.runs import LoadedRun, read_metrics
from nanogka.visualize import figures
from nanogka.visualize.analysis import rollout
from nanogka.visualize.capture import MEASURES, Capture, capture, measure_heads, token_labels
from nanogka.visualize.drawing import token_label
from nanogka.visualize.page import write_page

DISCARD_RATIOS = (0.0, 0.5, 0.8, 0.9)
FOLDER = "visualization"  # in the run's folder


@dataclass(frozen=True)
class Subject:
    """A model and what it does with a text.

    Attributes:
        run: the model with its tokenizer.
        captured: of the text.
        cut: number of the text's tokens beyond those that were read.
    """

    run: LoadedRun
    captured: Capture
    cut: int

    @property
    def tag(self) -> str:
        """Name of the run, fit to print."""
        return one_line(self.run.folder.resolve().name)

    @property
    def mixer(self) -> str:
        """Name of the mixer for people."""
        name = attention_name(self.run.model.config.mixer_pattern)
        return MIXERS[name].label if name in MIXERS else f"hybrid {name}"

    @cached_property
    def labels(self) -> list[str]:
        """Text of each token."""
        return token_labels(self.run.tokenizer, self.captured.ids)

    @cached_property
    def measures(self) -> dict[str, np.ndarray]:
        """Numbers (L, H) of every head, see `MEASURES`."""
        return measure_heads(self.run.model, self.run.tokenizer, self.captured)

    @cached_property
    def training(self) -> tuple[np.ndarray, np.ndarray, list[int]] | None:
        """Tokens (N,), σ (N, layers, H) over training and these layers; None where the metrics do not have them."""
        lines = [line for line in read_metrics(self.run.folder / "metrics.jsonl") if line.get("bandwidth")]
        try:
            sigma = np.array([line["bandwidth"] for line in lines], dtype=float)
            tokens = np.array([line["tokens"] for line in lines], dtype=float)
            layers = [int(layer) for layer in lines[0]["bandwidth_layers"]]
        except (ValueError, TypeError, KeyError, IndexError):
            return None
        return (tokens, sigma, layers) if sigma.ndim == 3 and sigma.shape[1] == len(layers) else None


def read_text(run: LoadedRun, text: str, most: int) -> Subject:
    """Let a run's model read a text behind a document's first token: `most` tokens of it, and no more than its context.

    Raises:
        ValueError: if the text is empty, or holds a lone surrogate.
    """
    if not text:
        raise ValueError("--prompt: got no text, takes at least one character")
    ids = [run.tokenizer.bos_id, *run.tokenizer.encode(text)]
    kept = ids[: min(most, run.model.config.sequence_len)]
    return Subject(run, capture(run.model, kept), len(ids) - len(kept))


def validation_passage(run: LoadedRun, number: int) -> str:
    """The validation document `number`, counted from 0, of the corpus that a run was trained on.

    Raises:
        ValueError: if the corpus is not there, or has fewer documents.
    """
    settings = run.config["run"]["base"] if run.kind == "chat" else run.config["settings"]
    documents = open_corpus(settings["data"]).documents("val")
    text = next(itertools.islice(documents, number, None), None)
    if text is None:
        raise ValueError(f"--passage: got {number}, takes the number of a validation document, from 0")
    return text


def visualize(subjects: Sequence[Subject], folder: Path, token: int, formats: Sequence[str] = ("png",)) -> Path:
    """Draw every figure of the first subject and write the page of all into `folder`; returns the path of the page.

    Args:
        subjects: one, or two that read the same text.
        folder: created if needed; files of an earlier call are replaced.
        token: position whose row of A is drawn, and chosen when the page opens.
        formats: "png", "svg".
    """
    drawings = _figures(subjects[0], token)
    for name, draw in tqdm(drawings, desc="figures", unit="figure"):
        save(draw(), *(folder / f"{name}.{form}" for form in formats))
    return write_page(subjects, folder / "index.html", token)


def _figures(subject: Subject, token: int) -> list[tuple[str, Callable[[], Figure]]]:
    """The figures by file name, each to be drawn when it is called."""
    captured, labels, tag = subject.captured, subject.labels, subject.tag
    drawings = [
        ("surprise", lambda: figures.plot_surprise(f"{tag}: what surprised it", captured.bits[-1].numpy(), labels)),
        ("lens", lambda: _lens(subject)),
    ]
    if not captured.attention:
        return drawings
    means = {layer: attention.weights.mean(0) for layer, attention in captured.attention.items()}
    ratios = {ratio: rollout(torch.stack(list(means.values())), ratio) for ratio in DISCARD_RATIOS}
    drawings += [
        ("bandwidth", lambda: _bandwidth(subject)),
        ("composite", lambda: figures.plot_composite(f"{tag}: attention, layer by layer", means, labels)),
        ("rollout", lambda: figures.plot_rollouts(f"{tag}: attention rollout over the layers", ratios, labels)),
    ]
    if "induction" in subject.measures:
        drawings.append(("induction", lambda: _induction(subject)))
    for layer in captured.attention:
        drawings.append((f"attention_layer_{layer:02d}", lambda layer=layer: _matrices(subject, layer)))
        drawings.append((f"rows_layer_{layer:02d}", lambda layer=layer: _rows(subject, layer, token)))
    return drawings


def _bandwidth(subject: Subject) -> Figure:
    """σ where every head has one, the temperature otherwise, and how far the heads look."""
    measures = subject.measures
    everywhere = "bandwidth" in measures and np.isfinite(measures["bandwidth"]).all()
    shown = ("bandwidth" if everywhere else "temperature", "effective_context", "attended_distance")
    maps = {MEASURES[name][0]: measures[name] for name in shown}
    rows = len(subject.captured.ids)
    title = f"{subject.tag}: how far each head looks (uniform attention would have a mean effective context of "
    return figures.plot_bandwidths(f"{title}{(rows + 1) / 2:g} tokens)", maps, subject.training, half_width=everywhere)


def _induction(subject: Subject) -> Figure:
    shown = {MEASURES[name][0]: subject.measures[name] for name in ("induction", "repetition")}
    text = "mean weight on the token after the earlier occurrence, and on that occurrence itself (square root scale)"
    title = f"{subject.tag}: a random sequence, read twice"
    return figures.plot_shares(title, shown, text)


def _matrices(subject: Subject, layer: int) -> Figure:
    weights = subject.captured.attention[layer].weights
    names = [_head_name(subject, layer, head) for head in range(len(weights))]
    return figures.plot_matrices(f"{subject.tag}: attention of layer {layer}", weights, subject.labels, names)


def _rows(subject: Subject, layer: int, token: int) -> Figure:
    weights = subject.captured.attention[layer].weights
    rows = [(_head_name(subject, layer, head), weights[head, token]) for head in range(len(weights))]
    title = (
        f"{subject.tag}: where token {token}, {token_label(subject.labels[token])} (underlined), looks in layer {layer}"
    )
    return figures.plot_rows(title, rows, subject.labels, token)


def _head_name(subject: Subject, layer: int, head: int) -> str:
    attention = subject.captured.attention[layer]
    if attention.bandwidth is None:
        return f"layer {layer}, head {head}, τ = {attention.temperature[head]:.2f}"
    return f"layer {layer}, head {head}, σ = {attention.bandwidth[head]:.2f}"


def _lens(subject: Subject) -> Figure:
    captured = subject.captured
    words = [token_labels(subject.run.tokenizer, layer[:, 0].tolist()) for layer in captured.likeliest]
    chances, bits = captured.probabilities[..., 0].numpy(), captured.bits.numpy()
    return figures.plot_lens(f"{subject.tag}: what each layer would predict", words, chances, bits, subject.labels)
