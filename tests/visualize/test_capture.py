"""The capture of a forward pass is exactly what the model computed with."""

import math

import numpy as np
import pytest
import torch

from nanogka.attention import attention_mask, gaussian_reference
from nanogka.attention.rotary import rotary_norm
from nanogka.evaluate.bpb import measure_bits_per_byte
from nanogka.model import MIXERS
from nanogka.visualize.capture import Capture, LayerAttention, capture, clearest_look_back, induction, measure_heads

IDS = torch.randint(0, 256, (40,), generator=torch.Generator().manual_seed(3)).tolist()


def mixer_calls(model, ids):
    """(mixer, x, context, output) of each layer in one forward pass."""
    calls, handles = [], []
    for block in model.blocks:
        hook = lambda mixer, inputs, output: calls.append((mixer, *inputs[:2], output))  # noqa: E731
        handles.append(block.mixer.register_forward_hook(hook))
    with torch.no_grad():
        model.hidden(torch.tensor([ids]))
    for handle in handles:
        handle.remove()
    return calls


@torch.no_grad()
@pytest.mark.parametrize("pattern", [mixer.letter for mixer in MIXERS.values()])
def test_weights_are_those_that_the_mixer_mixes_with(read, pattern):
    model = read(pattern=pattern).run.model
    captured = capture(model, IDS)
    positions = torch.arange(len(IDS))
    for layer, (mixer, x, context, output) in enumerate(mixer_calls(model, IDS)):
        weights = captured.attention[layer].weights
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, len(IDS)), atol=1e-6, rtol=0)
        assert not weights[:, ~attention_mask(positions, positions, mixer.window)].any()
        mixed = torch.einsum("hij,bjhd->bihd", weights, mixer.attention_inputs(x, context).v)
        torch.testing.assert_close(mixer.c_proj(mixed.flatten(2)), output, atol=1e-5, rtol=0)
    assert model.blocks[0].mixer.window == (None if pattern == "M" else 32)  # a mixture sees its whole past
    assert model.blocks[2].mixer.window is None


@torch.no_grad()
def test_weights_and_logits_are_the_papers_kernel(read):
    model = read().run.model
    captured = capture(model, IDS)
    for layer, (mixer, x, context, _) in enumerate(mixer_calls(model, IDS)):
        z = rotary_norm(mixer.split_heads(x), context.cos_sin).double()
        identity = torch.eye(len(IDS), dtype=torch.float64)[None, :, None].expand(1, -1, 2, -1)
        expected = gaussian_reference(z, z, identity, mixer.bandwidth, window=mixer.window)[0].transpose(0, 1)
        attention = captured.attention[layer]
        torch.testing.assert_close(attention.weights.double(), expected, atol=1e-6, rtol=0)
        # a token is its own nearest key, at distance 0
        torch.testing.assert_close(attention.largest_logit, torch.zeros(2, len(IDS)), atol=1e-4, rtol=0)


def test_surprise_sums_to_the_evaluators_loss_and_the_last_layer_predicts_as_the_model(read):
    model = read(pattern="GD").run.model
    captured = capture(model, IDS)
    batch = torch.tensor([IDS[:-1]]), torch.tensor([IDS[1:]])
    measured = measure_bits_per_byte(model, [batch], torch.ones(model.config.vocab_size))
    assert captured.bits[-1].sum().item() == pytest.approx(measured.nats / math.log(2), rel=1e-6)
    with torch.no_grad():
        best = model(torch.tensor([IDS]))[0].softmax(-1).topk(5)
    assert torch.equal(captured.likeliest[-1], best.indices)
    torch.testing.assert_close(captured.probabilities[-1], best.values)
    assert not torch.equal(captured.likeliest[0], captured.likeliest[-1])


def test_a_mixer_that_gives_no_weights_is_left_out(read, monkeypatch):
    trace = read(pattern="GD")
    monkeypatch.setattr(MIXERS["dot_product"], "attention_inputs", lambda *_: None)
    monkeypatch.setattr(MIXERS["dot_product"], "forward", lambda mixer, x, context, cache=None: x)
    captured = capture(trace.run.model, IDS)
    assert list(captured.attention) == [0, 2]
    table = measure_heads(trace.run.model, trace.run.tokenizer, captured)
    assert np.isfinite(table["effective_context"]).tolist() == [[True] * 2, [False] * 2, [True] * 2]


def test_a_head_that_copies_is_told_from_one_that_does_not(read, monkeypatch):
    trace, period = read(), 31  # half of the context

    def looks_back(mixer, x, context):
        length = x.shape[1]
        weights = torch.zeros(len(x), 2, length, length)
        weights[:, 0, torch.arange(length), (torch.arange(length) - period + 1).clamp_min(0)] = 1
        weights[:, 1] = torch.eye(length)
        return weights

    monkeypatch.setattr(MIXERS["gaussian"], "attention_weights", looks_back)
    for after, itself in induction(trace.run.model, trace.run.tokenizer).values():
        assert (after.tolist(), itself.tolist()) == ([1, 0], [0, 0])


def test_the_clearest_look_back_is_the_heaviest_far_weight_but_not_on_the_first_token():
    weights = torch.eye(9).repeat(2, 1, 1)
    weights[0, 8, 0] = 1.0  # far, but the first token
    weights[1, 6, 2], weights[1, 7, 6] = 0.5, 0.9  # 0.5 × 4 beats 0.9 × 1
    layers = {3: LayerAttention(weights, weights[..., 0], None, torch.ones(2), "exp(q·k / τ)")}
    empty = torch.empty(0)
    assert clearest_look_back(Capture(list(range(9)), layers, empty, empty, empty), 9) == (6, 3, 1)
    assert clearest_look_back(Capture(list(range(9)), layers, empty, empty, empty), 6) == (5, 0, 0)  # cut before both
