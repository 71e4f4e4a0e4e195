"""Writes figures and the attention page of a run that reads a text."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from nanogka.checkpoint import MANIFEST
from nanogka.common.digest import digest, digest_of_file
from nanogka.common.formatting import say
from nanogka.data import open_corpus
from nanogka.data.conversation import Conversation
from nanogka.generate.engine import Engine
from nanogka.generate.prompt import prompt_of
from nanogka.generate.settings import SamplingParams
from nanogka.plots.series import sigma_over_training
from nanogka.plots.style import save
from nanogka.runs import CONFIG, METRICS, LoadedRun
from nanogka.visualize.capture import MEASURES, TracedRun, capture
from nanogka.visualize.figures import plot_heads, plot_matrices
from nanogka.visualize.page import write_page

FOLDER, PAGE = "visualization", "index.html"  # in the run's folder
MAX_CHARS_PER_TOKEN = 1000  # bounds how much of a huge file is tokenized


def read_text(run: LoadedRun, text: str, max_tokens: int) -> TracedRun:
    """Capture a forward pass over a document that starts with `text`: its first `max_tokens` tokens.

    A chat model reads `text` as a user's message, in its template, followed by its own greedy reply.
    """
    sigma_over_training(run)  # fails on damaged metrics before anything is written
    max_tokens = min(max_tokens, run.model.config.sequence_len)
    part = text[: MAX_CHARS_PER_TOKEN * max_tokens]
    ids = _with_reply(run, part) if run.kind == "chat" else prompt_of(run.tokenizer, part).ids
    is_cut = len(part) < len(text) or len(ids) > max_tokens
    return TracedRun(run, capture(run.model, ids[:max_tokens]), is_cut)


def _with_reply(run: LoadedRun, text: str) -> list[int]:
    """The token ids of a conversation: `text` from the user, and the model's greedy reply."""
    prompt = prompt_of(run.tokenizer, Conversation.of(text))
    if len(prompt.ids) >= run.model.config.sequence_len:
        return list(prompt.ids)
    outputs = Engine(run.model, run.tokenizer).reply(prompt, SamplingParams(temperature=0))
    return [*prompt.ids, *(output.token for output in outputs)]


def validation_passage(run: LoadedRun, number: int) -> tuple[str, bool]:
    """Validation document `number`, counted from 0, of the corpus that a run (or its base model) was trained on.

    The second value is True if other users cannot read that corpus, such as the copy of the user's own text.
    """
    settings = run.config["run"]["base"] if run.kind == "chat" else run.config["settings"]
    corpus = open_corpus(settings["data"])
    text = next(itertools.islice(corpus.documents("val"), number, None), None)
    if text is None:
        raise ValueError(f"passage: got {number}, expected the number of a validation document, from 0")
    return text, not corpus.folder.stat().st_mode & 0o077


def key_of(runs: Sequence[LoadedRun], text: str, *settings: int | None) -> str:
    """A hash of everything that decides the page of `runs` and a text."""
    shown = []
    for run in runs:
        files = (run.checkpoint_folder / MANIFEST, run.folder / METRICS, run.folder / CONFIG)
        shown.append([run.tag, run.kind, [digest_of_file(path) for path in files]])
    return digest([text, settings, shown], ("nanogka.plots", "nanogka.visualize", "nanogka.web"))


def visualize(
    traced: Sequence[TracedRun], folder: Path, token: int | None = None, made_from: str = "", private: bool = False
) -> Path:
    """Draw the figures of the first trace, write the page of all traces into `folder` and return the page's path.

    Page and figures show the text. If it is `private`, other users cannot open the folder. The page opens at position
    `token`, or by default where a head looks back most clearly.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if private:
        try:
            folder.chmod(0o700)
        except OSError as error:  # some file systems have no modes
            say(f"{folder}: cannot be closed to other users ({error.strerror})")
    for name, figure in _figures(traced[0]):
        save(figure, folder / f"{name}.png")
    return write_page(traced, folder / PAGE, token, made_from)


def _figures(trace: TracedRun) -> list[tuple[str, Figure]]:
    """The numbers per head, and A of the first, middle and last layer that have weights; the page shows every layer."""
    captured, tag = trace.captured, trace.run.tag
    layers = list(captured.attention)
    if not layers:
        return []
    figures = [("bandwidth", _bandwidth(trace))]
    for layer in sorted({layers[0], layers[len(layers) // 2], layers[-1]}):
        weights = captured.attention[layer].weights
        names = [_head_name(trace, layer, head) for head in range(len(weights))]
        figure = plot_matrices(f"{tag}: attention of layer {layer}", weights, trace.labels, names)
        figures.append((f"attention_layer_{layer:02d}", figure))
    return figures


def _bandwidth(trace: TracedRun) -> Figure:
    """σ if every head has one, else the temperature, and how far the heads look."""
    measures = trace.measures
    everywhere = "bandwidth" in measures and np.isfinite(measures["bandwidth"]).all()
    shown = ("bandwidth" if everywhere else "temperature", "effective_context", "attended_distance")
    uniform = (len(trace.captured.ids) + 1) / 2  # row i of a uniform A has i positions
    note = f"Uniform attention would have an effective context of {uniform:g} tokens."
    maps = {MEASURES[name][0]: measures[name] for name in shown}
    return plot_heads(f"{trace.run.tag}: how far each head looks", maps, note)


def _head_name(trace: TracedRun, layer: int, head: int) -> str:
    attention = trace.captured.attention[layer]
    if attention.bandwidth is None:
        return f"layer {layer}, head {head}, τ = {attention.temperature[head]:.2f}"
    return f"layer {layer}, head {head}, σ = {attention.bandwidth[head]:.2f}"
