"""The attention page: one self-contained HTML file with its data, style and script. It works offline.

A weight is stored as one byte, 255 · √(weight / largest of its row), with the largest in float32. Colors show the
square root, which is exact to 1/510 of the largest. Text is data on the page, never markup.
"""

import base64
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from nanogka.common.files import atomic_write
from nanogka.model.layers import GAUSSIAN_FORMULA
from nanogka.plots.series import sigma_over_training, subsample
from nanogka.visualize.capture import MEASURES, TracedRun, clearest_look_back, token_labels
from nanogka.web.page import as_data, document, fill, parts_of

# Bytes of weights on a page. A longer text is cut; the rows that stay do not depend on the rest.
MAX_WEIGHTS = 3 * 2**20
MAX_STEPS = 200  # points of σ over training


def write_page(traced: Sequence[TracedRun], path: Path, token: int | None = None, made_from: str = "") -> Path:
    """Write `build_page` to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, build_page(traced, token, made_from))
    return path


def build_page(traced: Sequence[TracedRun], token: int | None = None, made_from: str = "") -> str:
    """The page of one or several models that read the same text.

    It opens at position `token`, or by default at the position, layer and head with the clearest look back: in a chat,
    of the reply. `made_from` is a hash of what decides the page.
    """
    matrices = sum(len(a.weights) for trace in traced for a in trace.captured.attention.values())
    most = math.isqrt(2 * MAX_WEIGHTS // max(matrices, 1))
    first = traced[0]
    place = (
        clearest_look_back(first.captured, most, first.reply_start)
        if token is None
        else (token, first.run.model.config.n_layer - 1, 0)
    )
    data = {"view": dict(zip("tlh", place)), "measures": MEASURES, "models": [_model(trace, most) for trace in traced]}
    parts, tags = parts_of("nanogka.visualize"), " and ".join(trace.run.tag for trace in traced)
    body = fill(parts["page.html"], data=as_data(data))
    return document(f"Attention of {tags}", body, parts["page.css"], parts["page.js"], made_from=made_from)


def _model(trace: TracedRun, most: int) -> dict:
    """The page's JSON data of one model: the first `most` positions of its text."""
    captured, config = trace.captured, trace.run.model.config
    length = min(len(captured.ids), most)
    tokenizer = trace.run.tokenizer
    sizes = [len(tokenizer.decode_bytes([i])) for i in captured.ids[1:length]]
    words: dict[int, int] = {}  # token id: its index in the list of predicted texts

    def places(ids: torch.Tensor) -> list[list[int]]:
        return [[words.setdefault(i, len(words)) for i in row] for row in ids.tolist()]

    likeliest, lens = places(captured.likeliest[-1, :length]), places(captured.likeliest[:, :length, 0])
    layers = []
    for i, (mixer, window) in enumerate(zip(config.mixers(), config.windows())):
        layer = {"mixer": mixer.label, "window": window, "given": i in captured.attention}
        if attention := captured.attention.get(i):
            sigma = attention.bandwidth
            layer |= {"formula": attention.formula, "sigma": None if sigma is None else _rounded(sigma, 4)}
            # Only these logits are distances: −‖q − k‖² / 2σ².
            layer["gaussian"] = attention.formula == GAUSSIAN_FORMULA
        layers.append(layer)
    return {
        "tag": trace.run.tag,
        "mixer": trace.run.label,
        "step": trace.run.step,
        "reply": trace.reply_start if (trace.reply_start or length) < length else None,
        "cut": trace.is_cut or length < len(captured.ids),
        "tokens": trace.labels[:length],
        "starts": [-1, *np.cumsum([0, *sizes[:-1]]).tolist()] if sizes else [-1],
        "heads": config.n_head,
        "layers": layers,
        **_weights(trace, length),
        "measures": {name: _rounded(values, 4) for name, values in trace.measures.items()},
        "bits": _rounded(captured.bits[:, : length - 1], 2),
        "words": token_labels(tokenizer, words),
        "likeliest": likeliest,
        "chances": _rounded(captured.probabilities[-1, :length], 4),
        "lens": lens,
        "lensChances": _rounded(captured.probabilities[:, :length, 0], 4),
        "training": _training(trace),
    }


def _weights(trace: TracedRun, length: int) -> dict[str, str]:
    """Lower triangles of A as bytes, layer by layer and head by head; the largest weight and logit of each row."""
    lower = torch.ones(length, length, dtype=torch.bool).tril()
    triangles, largest, logits = [], [], []
    for attention in trace.captured.attention.values():
        weights = attention.weights[:, :length, :length]
        top = weights.amax(-1)
        shares = (255 * (weights / top[..., None]).sqrt()).round().to(torch.uint8)
        triangles.append(shares[:, lower].numpy().tobytes())
        largest.append(top.float().numpy().astype("<f4").tobytes())
        logits.append(attention.largest_logit[:, :length].float().numpy().astype("<f4").tobytes())
    packed = {"weights": triangles, "largest": largest, "logits": logits}
    return {name: base64.b64encode(b"".join(parts)).decode() for name, parts in packed.items()}


def _training(trace: TracedRun) -> dict | None:
    tokens, sigma, layers = sigma_over_training(trace.run)
    if not layers:
        return None
    keep = subsample(len(tokens), MAX_STEPS)
    return {"tokens": _rounded(tokens[keep], 0), "sigma": _rounded(sigma[keep], 4), "layers": layers}


def _rounded(values, digits: int) -> list:
    values = np.asarray(values, dtype=float)
    if values.ndim > 1:
        return [_rounded(row, digits) for row in values]
    return [round(value, digits) if math.isfinite(value) else None for value in values.tolist()]
