"""Attention over a decode cache: the operator itself on the same positions, whoever computes it."""

from contextlib import nullcontext

import pytest
import torch

from nanogka import dispatch
from nanogka.attention import (
    AttentionMetadata,
    gaussian_attention,
    gaussian_attention_cached,
    gaussian_decode,
    softmax_attention,
    softmax_attention_cached,
)
from nanogka.attention.rotary import rotary_cos_sin, rotary_frequencies, rotary_norm


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def in_ring(x, length, window):
    """The slots (B, S, H, D) of a sequence's first `length` positions, and the positions that they hold."""
    if window is None or length <= window + 1:
        return x[:, :length], torch.arange(length)[None]
    slots = torch.arange(window + 1)
    positions = length - 1 - (length - 1 - slots) % (window + 1)
    return x[:, positions], positions[None]


@pytest.mark.parametrize("by", ["torch", "kernel", "kernel, successor"])
@pytest.mark.parametrize("window", [None, 5, 64])
@pytest.mark.parametrize("length", [1, 6, 65, 150])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_new_position_sees_what_the_whole_sequence_shows_it(by, window, length, dtype):
    H, D, successor = 3, 32, "successor" in by
    x, sigma = draw(2, length, H, D), torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    frequencies = rotary_frequencies(D, 10000.0)
    z = rotary_norm(x, rotary_cos_sin(torch.arange(length)[None], frequencies))
    k = torch.cat([z[:, :1], z[:, :-1]], dim=1) if successor else z
    whole = gaussian_attention(z, k, x, sigma, window=window, backend="reference")[:, -1:]
    cached, positions = in_ring(x, length, None if window is None else window + successor)
    metadata = AttentionMetadata(window, torch.tensor([[length - 1]]), positions, frequencies, int(successor))
    new, cached = x[:, -1:].to(dtype), cached.to(dtype)
    with torch.no_grad():
        y = gaussian_decode(new, cached, sigma.to(dtype), metadata, successor) if "kernel" in by else None
        if y is None:
            key = k[:, positions[0]]
            y = gaussian_attention_cached(z[:, -1:].to(dtype), key.to(dtype), cached, sigma.to(dtype), metadata)
    torch.testing.assert_close(y.double(), whole, atol=2e-5, rtol=0)


@pytest.mark.parametrize("by", ["torch", "kernel"])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("length", [1, 6, 150])
def test_softmax_of_one_new_position_sees_what_the_whole_sequence_shows_it(by, window, length):
    x, z = draw(2, length, 3, 32), draw(2, length, 3, 32, seed=1)
    metadata = AttentionMetadata(window, torch.tensor([[length - 1]]), in_ring(x, length, window)[1], torch.ones(16))
    q, k, v = (t.float() for t in (z[:, -1:], in_ring(z, length, window)[0], in_ring(x, length, window)[0]))
    with torch.no_grad(), dispatch.torch_only() if by == "torch" else nullcontext():
        y = softmax_attention_cached(q, k, v, metadata, scale=0.3)
    expected = softmax_attention(z, z, x, scale=0.3, window=window)[:, -1:]
    torch.testing.assert_close(y.double(), expected, atol=2e-5, rtol=0)


def test_earlier_gives_the_value_one_position_before_wherever_it_lies():
    x = draw(1, 40, 1, 2)
    for positions in (torch.arange(7), torch.randperm(40, generator=torch.Generator().manual_seed(0))[:30]):
        positions = torch.cat([positions, torch.tensor([-1, -1])])[None]
        metadata = AttentionMetadata(None, torch.tensor([[39]]), positions, torch.ones(1))
        earlier = metadata.earlier(x[:, positions[0]])
        for slot, position in enumerate(positions[0].tolist()):
            there = position > 0 and position - 1 in positions[0]
            assert torch.equal(earlier[0, slot], x[0, position - 1] if there else torch.zeros(1, 2).double()), position


@pytest.mark.parametrize("window", [None, 7])
def test_several_new_positions_of_ragged_rows_see_theirs_alone(window):
    """Rows of 12 and 9 cached positions, of which the last 4 and 2 are new; slots in any order."""
    H, D, lengths, new = 2, 16, (12, 9), (4, 2)
    x, sigma = draw(2, 12, H, D), torch.tensor([1.5, 3.0], dtype=torch.float64)
    frequencies = rotary_frequencies(D, 10000.0)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    positions, keys = torch.full((2, 4), -1), torch.full((2, 12), -1)
    fresh = torch.zeros(2, 4, H, D, dtype=torch.float64)
    for row, (length, count) in enumerate(zip(lengths, new)):
        positions[row, :count] = torch.arange(length - count, length)
        fresh[row, :count] = x[row, length - count : length]
        keys[row] = torch.where(order < length, order, -1)
    metadata = AttentionMetadata(window, positions, keys, frequencies)
    cos_sin = rotary_cos_sin(metadata.positions.clamp_min(0), metadata.frequencies)
    q, k = rotary_norm(fresh, cos_sin), rotary_norm(x[:, order], metadata.key_cos_sin)
    y = gaussian_attention_cached(q, k, x[:, order], sigma, metadata)
    for row, (length, count) in enumerate(zip(lengths, new)):
        alone = x[row : row + 1, :length]
        z = rotary_norm(alone, rotary_cos_sin(torch.arange(length)[None], frequencies))
        whole = gaussian_attention(z, z, alone, sigma, window=window, backend="reference")[0, -count:]
        torch.testing.assert_close(y[row, :count], whole, atol=1e-6, rtol=0)
    assert torch.isfinite(y).all()
