"""Sampling: supports and frequencies against closed forms, independent of the batch."""

import math

import pytest
import torch

from nanogka.generate.sampling import SamplingSettings, next_token_probabilities, sample, sample_generators

WEIGHTS = torch.tensor([0.05, 0.4, 0.1, 0.25, 0.2])  # by size: 1, 3, 4, 2, 0
LOGITS = WEIGHTS.log()[None]


def support(logits=LOGITS, **settings):
    probabilities = next_token_probabilities(logits, SamplingSettings(**{"temperature": 1.0} | settings))
    assert probabilities.sum(-1).tolist() == pytest.approx([1.0] * len(logits), abs=1e-12)
    return set(probabilities[0].nonzero().flatten().tolist())


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 5}, set(range(5))),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.66}, {1, 3, 4}),
        ({"min_p": 0.6}, {1, 3}),
        ({"min_p": 0.2}, {1, 2, 3, 4}),
        ({"top_k": 2, "top_p": 0.6}, {1}),  # of 0.4 and 0.25 the first alone is 0.615
        ({"top_k": 2, "top_p": 0.62}, {1, 3}),
    ],
)
def test_limits_keep_the_most_likely_tokens(settings, expected):
    assert support(**settings) == expected


def test_top_k_of_equal_tokens_keeps_exactly_k_the_lower_ids_and_0_or_none_keeps_all():
    assert support(torch.zeros(1, 6), top_k=2) == {0, 1}
    assert support(top_k=0) == support(top_k=None) == set(range(5))


@pytest.mark.parametrize("temperature", [0.1, 3.0])
def test_temperature_raises_probabilities_to_its_inverse(temperature):
    expected = WEIGHTS.double() ** (1 / temperature)
    got = next_token_probabilities(LOGITS, SamplingSettings(temperature=temperature))[0]
    torch.testing.assert_close(got, expected / expected.sum(), atol=1e-6, rtol=0)


def test_temperatures_near_zero_are_greedy_not_nan():
    for temperature in (0.0, 1e-30, 1e-300):
        assert support(15 * LOGITS, temperature=temperature) == {1}


def test_the_penalty_pushes_seen_tokens_down():
    logits = torch.tensor([[2.0, 0.9, 0.0], [2.0, 1.1, 0.0], [-1.0, -1.9, -9.0], [-1.0, -2.1, -9.0]])
    past = torch.tensor([[[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]] * 4)
    assert sample(logits, SamplingSettings(0, repetition_penalty=2.0), [], past).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("settings", [{"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.3}])
def test_frequencies_are_the_probabilities(settings):
    settings = SamplingSettings(**{"temperature": 1.0, "seed": 7} | settings)
    expected = next_token_probabilities(LOGITS, settings)[0]
    tokens = sample(LOGITS.expand(20_000, -1), settings, sample_generators(settings.seed, [0]) * 20_000)
    got = torch.bincount(tokens, minlength=5).double() / 20_000
    kept = expected > 0
    assert got[~kept].sum() == 0
    chi_square = (20_000 * (got - expected)[kept].square() / expected[kept]).sum().item()
    assert chi_square < 18.5  # 4 degrees of freedom: exceeded once in a thousand seeds, and this seed is fixed


@pytest.mark.parametrize("drawn, expected", [(0.0, 1), (1 - 2**-53, 4)])
def test_the_ends_of_the_draw_meet_tokens_that_have_a_probability(monkeypatch, drawn, expected):
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.full(size, drawn, dtype=torch.float64))
    settings = SamplingSettings(temperature=1.0, top_k=3)  # leaves 1, 3 and 4
    assert sample(LOGITS, settings, sample_generators(0, [0])).item() == expected


def test_a_sample_depends_on_its_seed_and_number_alone():
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    settings = SamplingSettings(temperature=1.0)

    def draw(seed, numbers):
        generators = sample_generators(seed, numbers)
        return torch.stack([sample(logits.expand(len(numbers), -1), settings, generators) for _ in range(20)], 1)

    together = draw(3, range(5))
    assert torch.equal(draw(3, [4, 2]), together[[4, 2]])
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(draw(4, [0])[0], together[0])


def test_every_bad_setting_is_named():
    with pytest.raises(ValueError) as error:
        SamplingSettings(math.nan, -1, 0.0, 2.0, 1e-320, 3.0, -3.0, -1)
    names = [line.split(":")[0] for line in str(error.value).splitlines()]
    penalties = [f"{name}-penalty" for name in ("repetition", "presence", "frequency")]
    assert names == ["temperature", "top-k", "top-p", "min-p", *penalties, "seed"]
