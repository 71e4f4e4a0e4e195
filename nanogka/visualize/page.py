"""The page: one HTML file that holds its data, its style and its script, and asks the network for nothing.

A weight travels as one byte, 255 · √(weight / largest of its row), and that largest in float32: the square root, which
is also what colors show, is off by at most 1/510 of the largest one's. Text is data on the page, never markup.
"""

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import torch

from nanogka.common.files import atomic_write
from nanogka.plots.style import subsample
from nanogka.visualize.capture import MEASURES, TracedRun, token_labels

# Bytes of weights on a page; a longer text is cut: its earlier rows do not depend on the rest.
MOST_WEIGHTS = 3 * 2**20
MOST_STEPS = 200  # of σ over training


def write_page(traced: Sequence[TracedRun], path: Path, token: int = 0) -> Path:
    """Write the page of one model, or of several that read the same text; it opens with position `token` chosen."""
    matrices = sum(len(a.weights) for trace in traced for a in trace.captured.attention.values())
    most = math.isqrt(2 * MOST_WEIGHTS // max(matrices, 1))
    data = {"token": token, "measures": MEASURES, "models": [_model(trace, most) for trace in traced]}
    # `<` would end the element that holds the data
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {name: (resources.files(__package__) / f"page.{name}").read_text("utf-8") for name in ("html", "css", "js")}
    digest = base64.b64encode(hashlib.sha256(parts["js"].encode()).digest()).decode()
    title = html.escape(" and ".join(trace.run.tag for trace in traced))
    values = {"title": title, "digest": digest, "style": parts["css"], "script": parts["js"], "data": text}
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], parts["html"])
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, page)
    return path


def _model(trace: TracedRun, most: int) -> dict:
    """The page's data of one model, JSON: the first `most` positions of its text."""
    captured, config = trace.captured, trace.run.model.config
    length = min(len(captured.ids), most)
    tokenizer = trace.run.tokenizer
    sizes = [len(tokenizer.decode_bytes([i])) for i in captured.ids[1:length]]
    words: dict[int, int] = {}  # id: its place in the list of the texts that are predicted

    def places(ids: torch.Tensor) -> list[list[int]]:
        return [[words.setdefault(i, len(words)) for i in row] for row in ids.tolist()]

    likeliest, lens = places(captured.likeliest[-1, :length]), places(captured.likeliest[:, :length, 0])
    layers = []
    for i, (mixer, window) in enumerate(zip(config.mixers(), config.windows())):
        sigma = getattr(captured.attention.get(i), "bandwidth", None)
        given = {"given": i in captured.attention, "sigma": None if sigma is None else _rounded(sigma, 4)}
        layers.append({"mixer": mixer.label, "window": window, **given})
    return {
        "tag": trace.run.tag,
        "mixer": trace.run.label,
        "step": trace.run.step,
        "cut": len(captured.ids) + trace.cut - length,
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
    tokens, sigma, layers = trace.run.bandwidths
    if not layers:
        return None
    keep = subsample(len(tokens), MOST_STEPS)
    return {"tokens": _rounded(tokens[keep], 0), "sigma": _rounded(sigma[keep], 4), "layers": layers}


def _rounded(values, digits: int) -> list:
    values = np.asarray(values, dtype=float)
    if values.ndim > 1:
        return [_rounded(row, digits) for row in values]
    return [round(value, digits) if math.isfinite(value) else None for value in values.tolist()]
