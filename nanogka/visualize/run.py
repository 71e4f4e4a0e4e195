"""From a run and a text to a folder of figures and the page."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from nanogka.data import open_corpus
from nanogka.plots.style import save
from nanogka.runs import LoadedRun
from nanogka.visualize import figures
from nanogka.visualize.analysis import rollout
from nanogka.visualize.capture import MEASURES, TracedRun, capture, token_labels
from nanogka.visualize.page import write_page

DISCARD_RATIOS = (0.0, 0.5, 0.8, 0.9)
FOLDER = "visualization"  # in the run's folder


def read_text(run: LoadedRun, text: str, most: int) -> TracedRun:
    """A run's forward pass over the first `most` tokens of a text, a document's first token included."""
    if not text:
        raise ValueError("--prompt: got no text, takes at least one character")
    _ = run.bandwidths  # damaged metrics are found before anything is written
    ids = [run.tokenizer.bos_id, *run.tokenizer.encode(text)]
    kept = ids[: min(most, run.model.config.sequence_len)]
    return TracedRun(run, capture(run.model, kept), len(ids) - len(kept))


def validation_passage(run: LoadedRun, number: int) -> str:
    """The validation document `number`, counted from 0, of the corpus that a run was trained on."""
    settings = run.config["run"]["base"] if run.kind == "chat" else run.config["settings"]
    documents = open_corpus(settings["data"]).documents("val")
    text = next(itertools.islice(documents, number, None), None)
    if text is None:
        raise ValueError(f"--passage: got {number}, takes the number of a validation document, from 0")
    return text


def visualize(traced: Sequence[TracedRun], folder: Path, token: int, formats: Sequence[str] = ("png",)) -> Path:
    """Draw every figure of the first trace and write the page of all into `folder`; returns the path of the page.

    Args:
        traced: one, or two that read the same text.
        token: position whose row of A is drawn, and chosen when the page opens.
        formats: "png", "svg".
    """
    drawings = _figures(traced[0], token)
    for name, draw in tqdm(drawings, desc="figures", unit="figure"):
        save(draw(), *(folder / f"{name}.{form}" for form in formats))
    return write_page(traced, folder / "index.html", token)


def _figures(trace: TracedRun, token: int) -> list[tuple[str, Callable[[], Figure]]]:
    """The figures by file name, each to be drawn when it is called."""
    captured, labels, tag = trace.captured, trace.labels, trace.run.tag
    drawings = [
        ("lens", lambda: _lens(trace)),
    ]
    if not captured.attention:
        return drawings
    means = {layer: attention.weights.mean(0) for layer, attention in captured.attention.items()}
    ratios = {ratio: rollout(torch.stack(list(means.values())), ratio) for ratio in DISCARD_RATIOS}
    drawings += [
        ("bandwidth", lambda: _bandwidth(trace)),
        ("composite", lambda: figures.plot_composite(f"{tag}: attention, layer by layer", means, labels)),
        ("rollout", lambda: figures.plot_rollouts(f"{tag}: attention rollout over the layers", ratios, labels)),
    ]
    if "induction" in trace.measures:
        drawings.append(("induction", lambda: _induction(trace)))
    for layer in captured.attention:
        drawings.append((f"attention_layer_{layer:02d}", lambda layer=layer: _matrices(trace, layer)))
        drawings.append((f"rows_layer_{layer:02d}", lambda layer=layer: _rows(trace, layer, token)))
    return drawings


def _bandwidth(trace: TracedRun) -> Figure:
    """σ where every head has one, the temperature otherwise, and how far the heads look."""
    measures = trace.measures
    everywhere = "bandwidth" in measures and np.isfinite(measures["bandwidth"]).all()
    shown = ("bandwidth" if everywhere else "temperature", "effective_context", "attended_distance")
    maps = {MEASURES[name][0]: measures[name] for name in shown}
    uniform = (len(trace.captured.ids) + 1) / 2  # row i of a uniform A has i positions
    title = f"{trace.run.tag}: how far each head looks (uniform attention: effective context {uniform:g} tokens)"
    return figures.plot_bandwidths(title, maps, half_width=everywhere)


def _induction(trace: TracedRun) -> Figure:
    shown = {MEASURES[name][0]: trace.measures[name] for name in ("induction", "repetition")}
    text = "mean weight on the token after the earlier occurrence, and on that occurrence itself (square root scale)"
    title = f"{trace.run.tag}: a random sequence, read twice"
    return figures.plot_shares(title, shown, text)


def _matrices(trace: TracedRun, layer: int) -> Figure:
    weights = trace.captured.attention[layer].weights
    names = [_head_name(trace, layer, head) for head in range(len(weights))]
    return figures.plot_matrices(f"{trace.run.tag}: attention of layer {layer}", weights, trace.labels, names)


def _rows(trace: TracedRun, layer: int, token: int) -> Figure:
    weights = trace.captured.attention[layer].weights
    rows = [(_head_name(trace, layer, head), weights[head, token]) for head in range(len(weights))]
    chosen = f"token {token}, {figures.token_label(trace.labels[token])} (grey)"
    return figures.plot_rows(f"{trace.run.tag}: where {chosen}, looks in layer {layer}", rows, trace.labels, token)


def _head_name(trace: TracedRun, layer: int, head: int) -> str:
    attention = trace.captured.attention[layer]
    if attention.bandwidth is None:
        return f"layer {layer}, head {head}, τ = {attention.temperature[head]:.2f}"
    return f"layer {layer}, head {head}, σ = {attention.bandwidth[head]:.2f}"


def _lens(trace: TracedRun) -> Figure:
    captured = trace.captured
    words = [token_labels(trace.run.tokenizer, layer[:, 0].tolist()) for layer in captured.likeliest]
    chances, bits = captured.probabilities[..., 0].numpy(), captured.bits.numpy()
    return figures.plot_lens(f"{trace.run.tag}: what each layer would predict", words, chances, bits, trace.labels)
