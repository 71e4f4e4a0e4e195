"""The conversations that a chat model learns from, by name: `--data embedded:1,my.jsonl:2,smoltalk`.

A source is one of these:

    embedded            conversations made by code (tasks.skills); embedded-plain: without calls of the calculator
    smoltalk            general conversations, for small models
    mmlu, arc           multiple choice, answered by letters
    gsm8k               word problems, solved with the calculator
    hub:OWNER/NAME      a dataset of the Hugging Face hub with a column `messages`; OWNER/NAME@CONFIG if it has several
                        configurations
    FILE or FOLDER      .jsonl

The number behind the colon is the weight of a source, its share of the tokens (default: 1).
"""

from nanogka.common.errors import Errors
from nanogka.data.chat_sources import ConversationSource, hub_source, jsonl_source, memory_source
from tasks import arc, gsm8k, mmlu
from tasks.skills import HELD_OUT, conversations

EMBEDDED, EMBEDDED_PLAIN = "embedded", "embedded-plain"
HUB_PREFIX = "hub:"
NAMED = {
    "smoltalk": lambda: hub_source("HuggingFaceTB/smol-smoltalk"),
    "mmlu": mmlu.source,
    "gsm8k": gsm8k.source,
    "arc": arc.source,
}
EMBEDDED_TRAIN = 48_000
EMBEDDED_VAL = 1_000


def parse_mixture(text: str) -> list[tuple[str, float]]:
    """The names of the sources, with their weights."""
    found: dict[str, float] = {}
    errors = Errors()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, last = part.rpartition(":")
        weight = _number(last) if colon else None
        if weight is None:  # no number: the colon is part of the name
            name, weight = part, 1.0
        errors.require(0 < weight < float("inf"), "--data", part, "a weight above 0 behind the last colon")
        errors.require(name not in found, "--data", name, "each source once")
        found[name] = weight
    errors.require(bool(found), "--data", text, "at least one source")
    errors.raise_if_any()
    return list(found.items())


def open_source(name: str, seed: int) -> ConversationSource:
    """One source by its name; `seed` is that of the embedded conversations."""
    if name in (EMBEDDED, EMBEDDED_PLAIN):
        return embedded(seed, calculator=name == EMBEDDED)
    if name in NAMED:
        return NAMED[name]()
    if name.startswith(HUB_PREFIX) and name != HUB_PREFIX:
        dataset, _, config = name.removeprefix(HUB_PREFIX).partition("@")
        return hub_source(dataset, config)
    return jsonl_source(name)


def embedded(seed: int, calculator: bool = True) -> ConversationSource:
    """Return the conversations made by code; validation is of held-out items, the same for every seed."""
    train = conversations("train", EMBEDDED_TRAIN, seed, calculator)
    val = conversations(HELD_OUT, EMBEDDED_VAL, 0, calculator)
    return memory_source(EMBEDDED if calculator else EMBEDDED_PLAIN, train, val)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
