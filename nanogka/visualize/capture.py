"""Attention weights, predictions and surprise of a language model on a text, captured by hooks in one forward pass.

Training uses fused attention, which never builds the T×T matrix. So the hooks save each mixer's inputs, and the mixer
recomputes its weights from them in float32 (`Mixer.attention_weights`).
Shapes: L layers, H heads, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from nanogka.common.formatting import printable
from nanogka.data.conversation import ChatFormat
from nanogka.generate.scoring import CHUNK
from nanogka.model import GPT
from nanogka.runs import LoadedRun
from nanogka.tokenizer import Tokenizer
from nanogka.visualize.analysis import attended_distance, effective_context, induction_shares

TOP = 5  # next tokens to keep per prediction
PERIOD, SEQUENCES = 64, 4  # length and number of the random sequences that show induction

MEASURES = {  # per head: a short name and its meaning
    "bandwidth": ("bandwidth σ", "width of the kernel, which has fallen to one half at a distance of 1.177 σ"),
    "temperature": ("temperature τ", "of softmax(q·k / τ); a Gaussian kernel has τ = σ²"),
    "effective_context": ("effective context", "number of tokens a head attends to: perplexity of a row of A, mean"),
    "attended_distance": ("attended distance", "how far back a head looks: Σ A_ij (i − j) in tokens, mean"),
    "induction": ("induction", "weight on the token after the earlier occurrence, in a repeated random sequence"),
    "repetition": ("repetition", "weight on the earlier occurrence itself, in a repeated random sequence"),
}


@dataclass(frozen=True)
class LayerAttention:
    """The attention of one layer. A and the largest logit of a row determine every logit of that row."""

    weights: Tensor  # (H, T, T) A, float32
    largest_logit: Tensor  # (H, T) largest logit of each row
    bandwidth: Tensor | None  # (H,) σ, None for a mixer without
    temperature: Tensor  # (H,) τ
    formula: str  # weight of a key before normalization, see `AttentionInputs.formula`


@dataclass(frozen=True)
class Capture:
    """A forward pass over a text.

    A layer's predictions are the logit lens: the final norm and the lm_head applied to its output. The predictions of
    the last layer are the model's.
    """

    ids: list[int]  # T token ids, starting with the document's first token
    attention: dict[int, LayerAttention]  # of each layer whose mixer has attention weights
    likeliest: Tensor  # (L, T, 5) ids of the likeliest next tokens, best first
    probabilities: Tensor  # (L, T, 5) their probabilities
    bits: Tensor  # (L, T − 1) surprise −log2 p of the tokens that follow


@dataclass(frozen=True)
class TracedRun:
    """A run's model and its attention over a text."""

    run: LoadedRun
    captured: Capture
    is_cut: bool = False  # whether the text was longer than what was read

    @cached_property
    def reply_start(self) -> int | None:
        """Position of the first token of the last reply; None if the text has none."""
        mark = ChatFormat(self.run.tokenizer).start_id if self.run.kind == "chat" else None
        if mark not in self.captured.ids:
            return None
        start = len(self.captured.ids) - self.captured.ids[::-1].index(mark)
        return start if start < len(self.captured.ids) else None

    @cached_property
    def labels(self) -> list[str]:
        """The text of each token, printable."""
        return token_labels(self.run.tokenizer, self.captured.ids)

    @cached_property
    def measures(self) -> dict[str, np.ndarray]:
        """`measure_heads` of the captured text."""
        return measure_heads(self.run.model, self.run.tokenizer, self.captured)


@torch.no_grad()
def capture(model: GPT, ids: Sequence[int]) -> Capture:
    """Run the model on `ids`, at most its context, and capture what it attends to and predicts."""
    tokens = torch.tensor([list(ids)], device=model.device)
    with _hooks(model) as (attention, outputs):
        model.hidden(tokens)
    lens = [_predictions(model, output[0], tokens[0]) for output in outputs]
    return Capture(list(ids), attention, *(torch.stack(parts).cpu() for parts in zip(*lens)))


@contextmanager
def _hooks(model: GPT, row: int | slice = 0) -> Iterator[tuple[dict[int, LayerAttention], list[Tensor]]]:
    """The attention of batch row(s) `row` by layer, and each block's output; a forward pass fills both."""
    attention, outputs, handles = {}, [], []

    def keep(layer: int):
        def hook(mixer, args, output):
            inputs, weights = mixer.attention_inputs(*args[:2]), mixer.attention_weights(*args[:2])
            if weights is not None:
                sigma = None if inputs.bandwidth is None else inputs.bandwidth.float().cpu()
                largest, temperature = inputs.logits().amax(-1), inputs.temperature.float().cpu()
                kept = weights[row].cpu(), largest[row].cpu(), sigma, temperature, inputs.formula
                attention[layer] = LayerAttention(*kept)

        return hook

    for layer, block in enumerate(model.blocks):
        handles.append(block.mixer.register_forward_hook(keep(layer)))
        handles.append(block.register_forward_hook(lambda block, args, output: outputs.append(output)))
    try:
        yield attention, outputs
    finally:
        for handle in handles:
            handle.remove()


def _predictions(model: GPT, output: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The logit lens on a block's output (T, C): top ids and probabilities (T, 5), bits (T − 1,) of the next token."""
    parts = []
    for start in range(0, len(ids), CHUNK):
        log_p = model.unembed(output[start : start + CHUNK]).log_softmax(-1)
        following = ids[start + 1 : start + 1 + len(log_p)]
        # Surprise −log2 p: the bits that an optimal code for this prediction spends on the token that follows.
        bits = -log_p[: len(following)].gather(1, following[:, None])[:, 0] / math.log(2)
        best = log_p.topk(min(TOP, log_p.shape[1]))
        parts.append((best.indices, best.values.exp(), bits))
    best_ids, probabilities, bits = (torch.cat(column) for column in zip(*parts))
    return best_ids, probabilities, bits


@torch.no_grad()
def measure_heads(model: GPT, tokenizer: Tokenizer, captured: Capture) -> dict[str, np.ndarray]:
    """(L, H) of each of `MEASURES` that some layer has; NaN for layers without it."""
    config = model.config
    table = {name: np.full((config.n_layer, config.n_head), np.nan) for name in MEASURES}
    for layer, attention in captured.attention.items():
        if attention.bandwidth is not None:
            table["bandwidth"][layer] = attention.bandwidth
        table["temperature"][layer] = attention.temperature
        table["effective_context"][layer] = effective_context(attention.weights).mean(-1)
        table["attended_distance"][layer] = attended_distance(attention.weights).mean(-1)
    for layer, (after, itself) in induction(model, tokenizer).items():
        table["induction"][layer], table["repetition"][layer] = after, itself
    return {name: values for name, values in table.items() if np.isfinite(values).any()}


@torch.no_grad()
def induction(model: GPT, tokenizer: Tokenizer, seed: int = 0) -> dict[int, tuple[Tensor, Tensor]]:
    """`induction_shares` (H,) of each layer, on random sequences of ordinary tokens that appear twice."""
    period = min(PERIOD, (model.config.sequence_len - 1) // 2)
    if period < 2:
        return {}
    ordinary = torch.from_numpy(np.flatnonzero(tokenizer.token_bytes()))
    chosen = torch.randint(len(ordinary), (SEQUENCES, period), generator=torch.Generator().manual_seed(seed))
    once = ordinary[chosen]
    first = torch.full((SEQUENCES, 1), tokenizer.bos_id)
    with _hooks(model, slice(None)) as (attention, _):
        model.hidden(torch.cat([first, once, once], 1).to(model.device))
    shares = {layer: induction_shares(kept.weights, period) for layer, kept in attention.items()}
    return {layer: (after.mean(0), itself.mean(0)) for layer, (after, itself) in shares.items()}


def clearest_look_back(captured: Capture, most: int, first: int | None = None) -> tuple[int, int, int]:
    """(position, layer, head) with the largest weight × distance among positions `first` to `most`."""
    length = min(len(captured.ids), most)
    best, place = 0.0, (length - 1, 0, 0)
    positions = torch.arange(length)
    for layer, attention in captured.attention.items():
        reach = attention.weights[:, :length, :length] * (positions[:, None] - positions).clamp_min(0)
        # Heads with nothing to look at put their weight on the first token. That is far back, but shows nothing.
        reach[..., 0] = 0
        if first is not None and first < length:
            reach[:, :first] = 0
        if float(reach.max()) > best:
            best = float(reach.max())
            head, token, _ = np.unravel_index(int(reach.argmax()), reach.shape)
            place = int(token), layer, int(head)
    return place


def token_labels(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    r"""The text of each token, printable; bytes that are only part of a character are written as \xf0."""
    return [printable(tokenizer.decode_bytes([i]).decode("utf-8", "backslashreplace")) for i in ids]
