"""Builds one HTML file from a run, with its weights, tokenizer and network. The file asks the internet for nothing.

The engine (model.js, tokenizer.js, calculator.js, worker.js) runs in a Web Worker, so that the page stays responsive.
Its source and the weights are text in the file; the policy in its head allows the page's own script and nothing else.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nanogka.export.config import network_config
from nanogka.model import GPT
from nanogka.page.weights import Packed, pack, with_rounded_weights
from nanogka.runs import LoadedRun
from nanogka.tokenizer import SPLIT_PATTERN, Tokenizer
from nanogka.web.page import as_data, document, fill, parts_of

ENGINE = ("tokenizer.js", "model.js", "calculator.js", "worker.js")
SUPPORTED = ("gaussian", "softmax")  # kinds of `network_config` that model.js computes
SMALL_PAGE = 2 * 10**6  # bytes up to which float16 is chosen: a small model can afford exact weights
MAX_PAGE = 200 * 10**6  # browsers refuse a script element of more than half a gigabyte
TEXT = "The red fox saw the lazy dog. The lazy dog saw the red fox. The red fox saw the lazy dog."
"""What a page reads at first. Names and sentences come back, so that a head that copies has something to find."""


@dataclass(frozen=True)
class Page:
    """A page, and what rounding the weights changes."""

    html: str
    weights: str  # int8, float16 or float32
    largest_difference: float  # of a logit on the page's first text
    loss_difference: float  # of the mean loss per token on that text, in nats


def build_page(run: LoadedRun, weights: str = "auto", text: str = TEXT, questions: Sequence[str] = ()) -> Page:
    """Make the page of a run, which opens with `text`. `weights`: auto, int8, float16 or float32.

    The page of a chat model offers `questions`. Raises ValueError for a mixer or a size that a page cannot have.
    """
    spec, packed = describe(run, weights, text)
    spec |= {"questions": list(questions), "promise": run.promise}
    return Page(fill_in(spec, packed.data), spec["weights"], *spec["difference"])


def describe(run: LoadedRun, weights: str, text: str) -> tuple[dict, Packed]:
    """Facts of a run that the engine and the page need, and its weights."""
    config = network_config(run.model)
    for block, layer in zip(run.model.blocks, config["mixers"]):
        if layer["kind"] not in SUPPORTED:
            raise ValueError(f"run: got a layer of the mixer {block.mixer.name}, expected gaussian, successor, "
                             "dot_product or value_less, which a page can compute")  # fmt: skip
    if weights == "auto":
        weights = "float16" if page_size(run.model, 2) <= SMALL_PAGE else "int8"
    if page_size(run.model, {"int8": 1, "float16": 2, "float32": 4}[weights]) > MAX_PAGE:
        raise ValueError(f"run: got {run.tag}, whose page would be larger than {MAX_PAGE:,} bytes")
    packed = pack(run.model, weights)
    difference = differences(run, packed, text)
    spec = config | {
        "tag": run.tag,
        "kind": run.kind,
        "step": run.step,
        "label": run.label,
        "weights": weights,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "difference": difference,
        "tensors": packed.entries,
        "tokenizer": tokenizer_spec(run.tokenizer),
        "text": text,
    }
    return spec, packed


def page_size(model: GPT, element_bytes: int) -> int:
    """About the number of bytes of a page: base64 has four characters for three bytes."""
    return sum(parameter.numel() for parameter in model.parameters()) * element_bytes * 4 // 3 + 100_000


def fill_in(spec: dict, weights: bytes) -> str:
    """The HTML file with its parts in place."""
    parts = parts_of("nanogka.page")
    body = fill(
        parts["page.html"],
        engine=engine_source(),
        spec=as_data(spec),
        weights=base64.b64encode(weights).decode(),
    )
    title = f"{spec['tag']}: a language model in a page"
    return document(title, body, parts["page.css"], parts["page.js"], "worker-src blob:")


def engine_source() -> str:
    """The script of the page's worker: all that computes."""
    parts = parts_of("nanogka.page")
    return '"use strict";\n' + "\n".join(parts[name] for name in ENGINE)


def tokenizer_spec(tokenizer: Tokenizer) -> dict:
    """The tokens, one character per byte, the special tokens, and the split pattern in JavaScript's syntax."""
    ordinary = range(tokenizer.vocab_size - len(tokenizer.special_tokens))
    # JavaScript has no possessive quantifiers. They change nothing here: what follows cannot match what they took. Its
    # \s has other characters than Unicode's white space, which \s means elsewhere.
    pattern = (
        re.sub(r"(?<=[?+])\+", "", SPLIT_PATTERN).replace(r"\s", r"\p{White_Space}").replace(r"\S", r"\P{White_Space}")
    )
    tokens = [tokenizer.decode_bytes([i]).decode("latin-1") for i in ordinary]
    return {"tokens": tokens, "special": tokenizer.special_tokens, "pattern": pattern}


@torch.no_grad()
def differences(run: LoadedRun, packed: Packed, text: str) -> tuple[float, float]:
    """The largest difference of a logit, and that of the mean loss, between rounded and original weights on `text`."""
    ids = [run.tokenizer.bos_id, *run.tokenizer.encode(text)][: run.model.config.sequence_len]
    inputs, targets = torch.tensor([ids[:-1]]), torch.tensor(ids[1:])
    original, rounded = (model(inputs)[0] for model in (run.model, with_rounded_weights(run.model, packed)))
    losses = [torch.nn.functional.cross_entropy(logits, targets).item() for logits in (original, rounded)]
    return (original - rounded).abs().max().item(), losses[1] - losses[0]
