"""Continuations of a few prompts: what a base model writes."""

from collections.abc import Iterator

from nanogka.generate import Engine
from nanogka.model import GPT
from nanogka.tokenizer import Tokenizer

PROMPTS = (
    "The with statement",
    "A list is",
    "The capital of France is",
    "If yesterday was Friday, then tomorrow will be",
    "My favourite",
)
MAX_TOKENS = 48
TEMPERATURE = 0.7  # a small model's likeliest tokens go in circles


def draw_samples(model: GPT, tokenizer: Tokenizer) -> Iterator[dict[str, str]]:
    """Continue each prompt; gives `prompt` and `text`, always the same for the same weights."""
    engine = Engine(model, tokenizer)
    for prompt in PROMPTS:
        room = engine.context - len(engine.encode(prompt))
        if room >= 1:  # the shortest contexts do not hold every prompt
            text = engine.generate(prompt, max_tokens=min(MAX_TOKENS, room), temperature=TEMPERATURE, seed=0)
            yield {"prompt": prompt, "text": text}
