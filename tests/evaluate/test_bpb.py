"""Bits per byte and the chat loss against sums done by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from evaluate_fakes import BOS, VOCAB_SIZE, FakeModel
from generate_models import byte_tokenizer, talking_model

from nanogka.data.chat import inputs_and_targets
from nanogka.data.chat_tokens import LOSS_BIT
from nanogka.evaluate import bpb
from nanogka.evaluate.bpb import (
    PROMPTS,
    BitsPerByte,
    draw_samples,
    measure_bits_per_byte,
    measure_chat_loss,
    most_rows,
)


class FixedLosses:
    """A model whose loss at a target is looked up, so that sums can be done by hand."""

    device = torch.device("cpu")
    training = False

    def __init__(self, losses):
        self.losses = torch.tensor(losses)

    def eval(self):
        return self

    def train(self, mode):
        return self

    def __call__(self, inputs, targets, reduction):
        assert reduction == "none"
        return torch.where(targets >= 0, self.losses[targets.clamp(min=0)], 0.0)


def batch(*rows):
    return (torch.tensor(rows),) * 2


def test_hand_computation_with_special_and_ignored_targets():
    token_bytes = np.array([1, 3, 2, 0], dtype=np.int32)  # token 3 is special, whatever its loss
    model = FixedLosses([0.5, 2.0, 1.0, math.inf])
    batches = [batch([0, 1, 3], [2, -1, 0]), batch([1, 3, -1])]
    nats = 0.5 + 2.0 + 1.0 + 0.5 + 2.0
    measured = measure_bits_per_byte(model, batches, token_bytes)
    assert measured == BitsPerByte(nats, bytes=1 + 3 + 2 + 1 + 3, tokens=5)
    assert measured.value == pytest.approx(nats / (math.log(2) * 10))


def test_bits_per_byte_need_text_and_add_up():
    one = BitsPerByte(3 * math.log(2), bytes=1, tokens=2)
    assert one.value == pytest.approx(3)
    assert one + BitsPerByte(0.25, bytes=4, tokens=3) == BitsPerByte(3 * math.log(2) + 0.25, bytes=5, tokens=5)
    with pytest.raises(ValueError, match="the batches hold no text"):
        BitsPerByte(0.0, bytes=0, tokens=0).value  # noqa: B018


@pytest.mark.parametrize("vocab_size, length, rows", [(32768, 2048, 2), (50_000, 100, 26), (32768, 8192, 1)])
def test_the_logits_of_a_batch_take_at_most_half_a_gib(vocab_size, length, rows):
    assert most_rows(vocab_size, length) == rows
    assert 4 * rows * vocab_size * length <= 2**29 or rows == 1


def test_the_chat_loss_is_of_the_tokens_that_the_assistant_writes():
    model, rng = FakeModel(), np.random.default_rng(0)
    rows = rng.integers(0, VOCAB_SIZE, (7, 13)) | rng.integers(0, 2, (7, 13)) * int(LOSS_BIT)
    inputs, targets = inputs_and_targets(rows, BOS)
    logits = model(inputs).double().flatten(0, 1)
    expected = F.cross_entropy(logits, targets.flatten(), ignore_index=-1, reduction="sum").item()
    nats, count = measure_chat_loss(model, rows, BOS, batch_size=3)
    assert nats == pytest.approx(expected)
    assert count == int((targets >= 0).sum())


def test_samples_are_the_same_for_the_same_weights_and_leave_out_prompts_beyond_the_context():
    tokenizer = byte_tokenizer()

    def drawn(sequence_len: int) -> list[tuple[str, str]]:
        model = talking_model(range(97, 123), sequence_len)
        return [(sample["prompt"], sample["text"]) for sample in draw_samples(model, tokenizer)]

    first = drawn(256)
    assert first == drawn(256)
    assert tuple(prompt for prompt, _ in first) == PROMPTS
    assert {len(text) for _, text in first} == {48}
    assert len(set(first[0][1])) > 5  # drawn, not the likeliest letter each time
    short = drawn(19)  # a prompt has a token per byte, and one before it
    assert {prompt: len(text) for prompt, text in short} == {
        prompt: 19 - 1 - len(prompt) for prompt in PROMPTS if len(prompt) < 18
    }


def test_samples_are_drawn_at_a_temperature_of_0_7(monkeypatch):
    given = []
    engine = SimpleNamespace(context=20, encode=lambda prompt: [0] * 17, generate=lambda *of, **how: given.append(how))
    monkeypatch.setattr(bpb, "Engine", lambda *of: engine)
    assert len(list(draw_samples(None, None))) == len(given) == len(PROMPTS)
    assert given[0] == {"max_tokens": 3, "temperature": 0.7, "seed": 0}
