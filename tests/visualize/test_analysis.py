"""Numbers about attention weights, where they are known beforehand or are computed in another way."""

import numpy as np
import pytest
import torch

from nanogka.visualize.analysis import attended_distance, effective_context, induction_shares, rollout


def random_weights(*shape, seed=0):
    """Row-stochastic causal matrices (…, T, T)."""
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return logits.masked_fill(torch.ones(shape[-2:]).triu(1).bool(), -torch.inf).softmax(-1)


def shifted(length, back):
    """Every position looks at the one so far back; those that cannot, at the first."""
    weights = torch.zeros(length, length)
    weights[torch.arange(length), (torch.arange(length) - back).clamp_min(0)] = 1
    return weights


@pytest.mark.parametrize("n", [1, 7])
def test_the_effective_context_of_a_uniform_row_is_its_length_and_of_an_identity_1(n):
    uniform = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
    torch.testing.assert_close(effective_context(uniform), torch.arange(1.0, n + 1))
    assert effective_context(torch.eye(n)).tolist() == [1] * n


def test_distances_are_counted_in_positions():
    assert attended_distance(shifted(6, 2)).tolist() == [0, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("discard", [0.0, 0.5, 0.9])
def test_rollout_is_the_product_of_its_layers(discard):
    weights = random_weights(3, 9, 9)
    expected = np.eye(9)
    for layer in weights.numpy().copy():
        for i, row in enumerate(layer):
            row[np.argsort(row[: i + 1])[: int(discard * (i + 1))]] = 0
        expected = (layer / layer.sum(1, keepdims=True) + np.eye(9)) / 2 @ expected
    reached = rollout(weights, discard)
    np.testing.assert_allclose(reached, expected, atol=1e-12)
    np.testing.assert_allclose(reached.sum(-1), 1)


@pytest.mark.parametrize("back, expected", [(4, (1, 0)), (5, (0, 1)), (0, (0, 0))])
def test_a_head_that_looks_behind_the_earlier_occurrence_is_an_induction_head(back, expected):
    after, itself = induction_shares(shifted(11, back).expand(2, 11, 11), period=5)
    assert (after.tolist(), itself.tolist()) == ([expected[0]] * 2, [expected[1]] * 2)
