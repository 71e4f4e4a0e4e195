"""Weights, predictions and surprise of a language model on a text, caught by hooks in a forward pass.

Weights are computed again from each mixer's inputs by the mixer itself (`Mixer.attention_weights`): the operator that
training runs on makes no T×T matrix. Shapes: L layers, H heads, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from nanogka.common.formatting import printable
from nanogka.model import GPT
from nanogka.runs import LoadedRun
from nanogka.tokenizer import Tokenizer
from nanogka.visualize.analysis import HALF_WIDTH, attended_distance, effective_context, induction_shares

LIKELIEST = 5  # next tokens that are kept of a prediction
POSITIONS_AT_ONCE = 256  # whose logits over the vocabulary exist at a time
PERIOD, SEQUENCES = 64, 4  # of the random sequences that show induction

MEASURES = {  # of a head: a short name, and what it is
    "bandwidth": ("bandwidth σ", "of the Gaussian kernel exp(−‖q − k‖² / 2σ²)"),
    "half_width": ("half-width 1.177 σ", "the distance ‖q − k‖ at which the kernel has fallen to one half"),
    "temperature": ("temperature τ", "of softmax(q·k / τ); a Gaussian kernel has τ = σ²"),
    "effective_context": ("effective context", "perplexity of a row of A in tokens, mean over the text"),
    "attended_distance": ("attended distance", "Σ A_ij (i − j) in tokens, mean over the text"),
    "induction": ("induction", "share on the token after the earlier occurrence, in a repeated random sequence"),
    "repetition": ("repetition", "share on the earlier occurrence itself, in a repeated random sequence"),
}


@dataclass(frozen=True)
class LayerAttention:
    """The attention of one layer. With A and the largest logit of a row every logit of the row can be had."""

    weights: Tensor  # (H, T, T) A, float32
    largest_logit: Tensor  # (H, T) of each row: −‖q − k‖² / 2σ² of the nearest key, or the largest q·k / τ
    bandwidth: Tensor | None  # (H,) σ, None for a mixer without
    temperature: Tensor  # (H,) τ


@dataclass(frozen=True)
class Capture:
    """A forward pass over a text.

    A layer's predictions are the logit lens: the final norm and the lm_head applied to its output. The last layer's
    predictions and surprise are the model's.
    """

    ids: list[int]  # T of them, the document's first token included
    attention: dict[int, LayerAttention]  # of each layer whose mixer gives its weights
    likeliest: Tensor  # (L, T, 5) ids of the next tokens that each layer would predict, the likeliest first
    probabilities: Tensor  # (L, T, 5) theirs
    bits: Tensor  # (L, T − 1) surprise −log2 p of the tokens that do follow


@dataclass(frozen=True)
class TracedRun:
    """A run's model and its attention over a text."""

    run: LoadedRun
    captured: Capture
    cut: int  # number of the text's tokens beyond those that were read

    @cached_property
    def labels(self) -> list[str]:
        return token_labels(self.run.tokenizer, self.captured.ids)

    @cached_property
    def measures(self) -> dict[str, np.ndarray]:
        return measure_heads(self.run.model, self.run.tokenizer, self.captured)


@torch.no_grad()
def capture(model: GPT, ids: Sequence[int]) -> Capture:
    """The model's forward pass over `ids`, no more than its context."""
    tokens = torch.tensor([list(ids)], device=model.device)
    with _caught(model) as (attention, outputs):
        model.hidden(tokens)
    lens = [_predictions(model, output[0], tokens[0]) for output in outputs]
    layers = {
        layer: LayerAttention(weights[0], largest[0], bandwidth, temperature)
        for layer, (weights, largest, bandwidth, temperature) in attention.items()
    }
    return Capture(list(ids), layers, *(torch.stack(parts).cpu() for parts in zip(*lens)))


@contextmanager
def _caught(model: GPT) -> Iterator[tuple[dict, list]]:
    """(A, largest logits, σ, τ) of each layer, on the CPU, and each block's output, filled in by a forward pass."""
    attention, outputs, handles = {}, [], []

    def keep(layer: int):
        def hook(mixer, inputs, output):
            a, weights = mixer.attention_inputs(*inputs[:2]), mixer.attention_weights(*inputs[:2])
            if weights is not None:
                sigma = None if a.bandwidth is None else a.bandwidth.float().cpu()
                attention[layer] = (weights.cpu(), a.logits().amax(-1).cpu(), sigma, a.temperature.float().cpu())

        return hook

    for layer, block in enumerate(model.blocks):
        handles.append(block.mixer.register_forward_hook(keep(layer)))
        handles.append(block.register_forward_hook(lambda block, inputs, output: outputs.append(output)))
    try:
        yield attention, outputs
    finally:
        for handle in handles:
            handle.remove()


def _predictions(model: GPT, output: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Likeliest ids and probabilities (T, 5) that a block's output (T, C) stands for, and bits (T − 1,) of `ids`."""
    parts = []
    for start in range(0, len(ids), POSITIONS_AT_ONCE):
        log_p = model.unembed(output[start : start + POSITIONS_AT_ONCE]).log_softmax(-1)
        following = ids[start + 1 : start + 1 + len(log_p)]
        # Surprise −log2 p: the bits that an optimal code for this prediction spends on the token that does follow.
        bits = -log_p[: len(following)].gather(1, following[:, None])[:, 0] / math.log(2)
        best = log_p.topk(min(LIKELIEST, log_p.shape[1]))
        parts.append((best.indices, best.values.exp(), bits))
    return tuple(torch.cat(column) for column in zip(*parts))


@torch.no_grad()
def measure_heads(model: GPT, tokenizer: Tokenizer, captured: Capture) -> dict[str, np.ndarray]:
    """(L, H) of each of `MEASURES` that some layer has; NaN for the others."""
    config = model.config
    table = {name: np.full((config.n_layer, config.n_head), np.nan) for name in MEASURES}
    for layer, attention in captured.attention.items():
        if attention.bandwidth is not None:
            table["bandwidth"][layer] = attention.bandwidth
            table["half_width"][layer] = HALF_WIDTH * attention.bandwidth
        table["temperature"][layer] = attention.temperature
        table["effective_context"][layer] = effective_context(attention.weights).mean(-1)
        table["attended_distance"][layer] = attended_distance(attention.weights).mean(-1)
    for layer, (after, itself) in induction(model, tokenizer).items():
        table["induction"][layer], table["repetition"][layer] = after, itself
    return {name: values for name, values in table.items() if np.isfinite(values).any()}


@torch.no_grad()
def induction(model: GPT, tokenizer: Tokenizer, seed: int = 0) -> dict[int, tuple[Tensor, Tensor]]:
    """`induction_shares` (H,) of each layer, on random sequences of ordinary tokens behind a document's first token."""
    period = min(PERIOD, (model.config.sequence_len - 1) // 2)
    if period < 2:
        return {}
    ordinary = torch.from_numpy(np.flatnonzero(tokenizer.token_bytes()))
    chosen = torch.randint(len(ordinary), (SEQUENCES, period), generator=torch.Generator().manual_seed(seed))
    once = ordinary[chosen]
    first = torch.full((SEQUENCES, 1), tokenizer.bos_id)
    with _caught(model) as (attention, _):
        model.hidden(torch.cat([first, once, once], 1).to(model.device))
    shares = {layer: induction_shares(kept[0], period) for layer, kept in attention.items()}
    return {layer: (after.mean(0), itself.mean(0)) for layer, (after, itself) in shares.items()}


def token_labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    r"""The text of each token, fit to print; bytes that are only a part of a character as \xf0."""
    return [printable(tokenizer.decode_bytes([i]).decode("utf-8", "backslashreplace")) for i in ids]
