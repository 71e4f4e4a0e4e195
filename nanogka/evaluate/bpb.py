"""Measure a model on plain text and conversations: bits per byte, the chat loss, a few samples.

    bits per byte = Σ nats over the targets / (ln 2 · Σ UTF-8 bytes of these targets)

A loss per token depends on the tokenizer: a larger vocabulary cuts a text into fewer tokens, and each is harder to
predict. The bytes of the text stay the same, so the loss per byte compares models of any vocabulary. It is also the
size to which an arithmetic coder compresses the text with the model's predictions. Special tokens are in neither sum,
because they stand for no text.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nanogka.data.chat import inputs_and_targets
from nanogka.generate.engine import Engine
from nanogka.model import GPT
from nanogka.tokenizer import Tokenizer

PROMPTS = (
    "The with statement",
    "A list is",
    "The capital of France is",
    "If yesterday was Friday, then tomorrow will be",
    "My favorite",
)
MAX_TOKENS = 48
TEMPERATURE = 0.7  # a small model repeats itself at 0 and loses the thread at 1
LOGITS_PER_BATCH = 2**27  # half a GiB in float32


@dataclass(frozen=True)
class BitsPerByte:
    """The sums behind one measurement: `nats` over `tokens` targets that stand for `bytes` UTF-8 bytes."""

    nats: float
    bytes: int
    tokens: int

    @property
    def value(self) -> float:
        """Bits per byte; raises ValueError where no text was seen."""
        if self.bytes == 0:
            raise ValueError("bits per byte: the batches hold no text (every target is special or ignored)")
        return self.nats / (math.log(2) * self.bytes)

    def __add__(self, other: "BitsPerByte") -> "BitsPerByte":
        return BitsPerByte(self.nats + other.nats, self.bytes + other.bytes, self.tokens + other.tokens)


def most_rows(vocab_size: int, length: int) -> int:
    """The number of rows of `length` tokens whose logits, all at once, take at most half a GiB; at least 1."""
    return max(1, LOGITS_PER_BATCH // vocab_size // length)


@contextmanager
def eval_mode(model) -> Iterator[None]:
    """Set the model to eval mode within a `with` block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@torch.no_grad()
def measure_bits_per_byte(model, batches: Iterable, token_bytes: np.ndarray | torch.Tensor) -> BitsPerByte:
    """Sum the losses and the bytes of `batches`.

    `model(inputs, targets, reduction="none")` gives the losses (B, T) in nats. A batch begins with `inputs` and
    `targets`, (B, T) integers; a target of −1 is ignored. `token_bytes` (V,): the bytes a token decodes to, 0 for a
    special one.
    """
    nats, total_bytes, tokens = 0.0, 0, 0
    with eval_mode(model):
        for batch in batches:
            losses, counted = losses_and_bytes(model, batch[0], batch[1], token_bytes)
            # Summed in float64, so that the sum does not depend on how the text was cut into batches.
            nats += losses.sum(dtype=torch.float64).item()
            total_bytes += int(counted.sum())
            tokens += int((counted > 0).sum())
    return BitsPerByte(nats, total_bytes, tokens)


def losses_and_bytes(model, inputs: Tensor, targets: Tensor, token_bytes: np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
    """Losses (B, T) in nats, float32, and bytes (B, T), int64, of the targets; 0 where a target is no text.

    Both are on the CPU, because Apple's GPUs have no float64 for their sums.
    """
    device = model.device
    inputs, targets = inputs.to(device), targets.to(device).long()
    losses = model(inputs, targets, reduction="none").reshape(targets.shape)
    lengths = torch.as_tensor(token_bytes).to(device=device, dtype=torch.int64)
    # −1 is not an index. Look up token 0 instead, then mask it out.
    counted = torch.where(targets >= 0, lengths[targets.clamp(min=0)], 0)
    # `where` instead of a product: 0 · inf is NaN, and the loss at an ignored target may be infinite.
    losses = torch.where(counted > 0, losses.float(), 0.0)
    return losses.cpu(), counted.cpu()


def measure_chat_loss(model, rows: np.ndarray, bos_id: int, batch_size: int) -> tuple[float, int]:
    """Sum the losses over the assistant's tokens of packed `rows` (N, T + 1); return nats and number of tokens."""
    parts = (rows[start : start + batch_size] for start in range(0, len(rows), batch_size))
    # A length of 1 counts each token once, special ones too, because the assistant must learn to end its reply.
    every_token = torch.ones(model.config.vocab_size)
    measured = measure_bits_per_byte(model, (inputs_and_targets(part, bos_id) for part in parts), every_token)
    return measured.nats, measured.tokens


def draw_samples(model: GPT, tokenizer: Tokenizer) -> Iterator[dict[str, str]]:
    """Continue each of `PROMPTS` and yield `prompt` and `text`, which are the same for the same weights."""
    engine = Engine(model, tokenizer)
    for prompt in PROMPTS:
        room = engine.context - len(engine.encode(prompt))
        if room >= 1:  # the shortest contexts cannot hold every prompt
            text = engine.generate(prompt, max_tokens=min(MAX_TOKENS, room), temperature=TEMPERATURE, seed=0)
            yield {"prompt": prompt, "text": text}
