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
    _ = run.bandwidths  # damaged metrics are found before anything is written
    ids = [run.tokenizer.bos_id, *run.tokenizer.encode(text)]
    kept = ids[: min(most, run.model.config.sequence_len)]
    return TracedRun(run, capture(run.model, kept), len(ids) - len(kept))


def validation_passage(run: LoadedRun, number: int) -> str:
    """The validation document `number`, counted from 0, of the corpus that a run was trained on."""
    settings = run.config["run"]["base"] if run.kind == "chat" else run.config["settings"]
    text = next(itertools.islice(open_corpus(settings["data"]).documents("val"), number, None), None)
    if text is None:
        raise ValueError(f"--passage: got {number}, expected the number of a validation document, from 0")
    return text


def visualize(traced: Sequence[TracedRun], folder: Path, token: int, formats: Sequence[str] = ("png",)) -> Path:
    """Draw every figure of the first trace and write the page of all into `folder`; returns the path of the page.

    `token`: position that is chosen when the page opens. `formats`: "png", "svg".
    """
    for name, draw in tqdm(_figures(traced[0]).items(), desc="figures", unit="figure"):
        save(draw(), *(folder / f"{name}.{form}" for form in formats))
    return write_page(traced, folder / "index.html", token)


def _figures(trace: TracedRun) -> dict[str, Callable[[], Figure]]:
    """The figures by file name, each to be drawn when it is called."""
    captured, labels, tag = trace.captured, trace.labels, trace.run.tag
    drawings: dict[str, Callable[[], Figure]] = {"lens": lambda: _lens(trace)}
    if not captured.attention:
        return drawings
    means = {layer: attention.weights.mean(0) for layer, attention in captured.attention.items()}
    ratios = {ratio: rollout(torch.stack(list(means.values())), ratio) for ratio in DISCARD_RATIOS}
    drawings["bandwidth"] = lambda: _bandwidth(trace)
    drawings["composite"] = lambda: figures.plot_composite(f"{tag}: attention, layer by layer", means, labels)
    drawings["rollout"] = lambda: figures.plot_rollouts(f"{tag}: attention rollout over the layers", ratios, labels)
    if "induction" in trace.measures:
        shares = {MEASURES[name][0]: trace.measures[name] for name in ("induction", "repetition")}
        drawings["induction"] = lambda: figures.plot_shares(f"{tag}: a random sequence, read twice", shares, SHARES)
    for layer, attention in captured.attention.items():
        names = [_head_name(trace, layer, head) for head in range(len(attention.weights))]
        matrices = f"{tag}: attention of layer {layer}", attention.weights, labels, names
        drawings[f"attention_layer_{layer:02d}"] = lambda matrices=matrices: figures.plot_matrices(*matrices)
    return drawings


SHARES = "mean weight on the token after the earlier occurrence, and on that occurrence itself (square root scale)"


def _bandwidth(trace: TracedRun) -> Figure:
    """σ where every head has one, the temperature otherwise, and how far the heads look."""
    measures = trace.measures
    everywhere = "bandwidth" in measures and np.isfinite(measures["bandwidth"]).all()
    shown = ("bandwidth" if everywhere else "temperature", "effective_context", "attended_distance")
    uniform = (len(trace.captured.ids) + 1) / 2  # row i of a uniform A has i positions
    title = f"{trace.run.tag}: how far each head looks (uniform attention: effective context {uniform:g} tokens)"
    return figures.plot_bandwidths(title, {MEASURES[name][0]: measures[name] for name in shown}, half_width=everywhere)


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
