"""Attention over a decode cache: the operator itself on the same positions, whoever computes it."""

from contextlib import nullcontext

import pytest
import torch

from nanogka import dispatch
from nanogka.attention import (
    AttentionMetadata,
    gaussian_attention,
    gaussian_attention_cached,
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


@pytest.mark.parametrize("by", ["torch", "kernels"])
@pytest.mark.parametrize("window", [None, 5, 64])
@pytest.mark.parametrize("length", [1, 6, 65, 150])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_new_position_sees_what_the_whole_sequence_shows_it(by, window, length, dtype):
    H, D = 3, 32
    x, sigma = draw(2, length, H, D), torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    frequencies = rotary_frequencies(D, 10000.0)
    z = rotary_norm(x, rotary_cos_sin(torch.arange(length)[None], frequencies))
    whole = gaussian_attention(z, z, x, sigma, window=window, backend="reference")[:, -1:]
    cached, positions = in_ring(x, length, window)
    metadata = AttentionMetadata(window, torch.tensor([[length - 1]]), positions, frequencies)
    with torch.no_grad(), dispatch.torch_only() if by == "torch" else nullcontext():
        y = gaussian_attention_cached(x[:, -1:].to(dtype), cached.to(dtype), sigma.to(dtype), metadata)
        q, k = (t.to(dtype) for t in (z[:, -1:], in_ring(z, length, window)[0]))
        other = softmax_attention_cached(q, k, cached.to(dtype), metadata, scale=0.3)
    torch.testing.assert_close(y.double(), whole, atol=2e-5, rtol=0)
    expected = softmax_attention(z, z, x, scale=0.3, window=window)[:, -1:]
    torch.testing.assert_close(other.double(), expected, atol=2e-5, rtol=0)


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
    y = gaussian_attention_cached(fresh, x[:, order], sigma, AttentionMetadata(window, positions, keys, frequencies))
    for row, (length, count) in enumerate(zip(lengths, new)):
        alone = x[row : row + 1, :length]
        z = rotary_norm(alone, rotary_cos_sin(torch.arange(length)[None], frequencies))
        whole = gaussian_attention(z, z, alone, sigma, window=window, backend="reference")[0, -count:]
        torch.testing.assert_close(y[row, :count], whole, atol=1e-6, rtol=0)
    assert torch.isfinite(y).all()
