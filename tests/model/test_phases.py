"""Decoding the Gaussian mixer from rotated features, by torch, against keys and values made in float64."""

import pytest
import torch

from nanogka.model.layers import NORM_EPS, rotary_frequencies
from nanogka.model.phases import BLOCK, PhasePlan, attend_phased

H, D = 2, 16
FREQUENCIES, BANDWIDTH = rotary_frequencies(D, 1e4), torch.tensor([1.3, 2.1])
# window, slots, position: filled or not, rings not full, full, wrapped, shorter than their window, odd sizes
CASES = [
    (None, 300, 0), (None, 300, BLOCK - 1), (None, 300, 250), (None, BLOCK, BLOCK - 1), (100, 101, 5), (100, 101, 100),
    (100, 101, 163), (100, 101, 350), (300, 200, 199), (BLOCK, BLOCK + 1, 1000), (3 * BLOCK - 1, 3 * BLOCK, 700),
    (0, 1, 9),
]  # fmt: skip


def turned(x, positions, frequencies):
    angles = positions.double()[:, None, None] * frequencies.double()
    first, second = x.double().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos + second * sin, second * cos - first * sin], -1)


def made_up(window, slots, position, seed):
    """(H, D) features of a new position, what a cache keeps (slots, H, D), and the answer by the definition."""
    generator = torch.Generator().manual_seed(seed)
    held = torch.arange(position + 1 if window is None else min(position + 1, window + 1))
    held = position - held
    x = torch.randn(len(held), H, D, generator=generator)
    ring = slots if window is None else window + 1
    u = torch.full((slots, H, D), 7.0)  # what an empty slot holds must not matter
    u[held % ring] = turned(x, held % ring % BLOCK, FREQUENCIES).float()

    z = turned(x, held, FREQUENCIES)
    z = z / (z.square().mean(-1, keepdim=True) + NORM_EPS).sqrt()
    distance = (z[0] - z).square().sum(-1)
    weights = torch.softmax(-distance / (2 * BANDWIDTH.double().square()), 0)
    y = (weights[..., None] * x.double()).sum(0)
    return x[0], u, y


@pytest.mark.parametrize("window,slots,position", CASES)
def test_it_is_the_operator(window, slots, position):
    heads, u, expected = map(torch.stack, zip(*(made_up(window, slots, position, seed) for seed in range(2))))
    plan = PhasePlan.at(position, window, FREQUENCIES)
    phased = attend_phased(heads, u[:, : plan.slots], BANDWIDTH, plan)
    torch.testing.assert_close(phased.double(), expected, atol=1e-5, rtol=1e-5)
