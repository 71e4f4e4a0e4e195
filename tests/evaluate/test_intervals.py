"""Intervals against closed forms, tables, a bootstrap, and the share of samples in which they cover the truth."""

import math

import numpy as np
import pytest

from nanogka.evaluate.intervals import (
    bits_per_byte_interval,
    paired_difference,
    share_interval,
    student_quantile,
)

LN2 = math.log(2)


def documents(count: int, seed: int = 0) -> tuple[list, list]:
    """(nats, bytes) of documents under two models: the lengths differ, and a hard document is hard for both."""
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(6, 1, count).round()
    hardness = rng.normal(1.4, 0.3, count)
    one, other = (sizes * (hardness + better + rng.normal(0, 0.02, count)) for better in (0.0, 0.01))
    return list(zip(one.tolist(), sizes.tolist())), list(zip(other.tolist(), sizes.tolist()))


def test_with_equal_lengths_the_interval_is_that_of_a_mean():
    rng = np.random.default_rng(0)
    nats = rng.normal(140, 30, 25)
    found = bits_per_byte_interval([(value, 100) for value in nats])
    # For documents of one length the ratio is a mean: its error is s / √n, and t has 24 degrees of freedom.
    half = 2.0639 * nats.std(ddof=1) / math.sqrt(25) / (100 * LN2)
    assert found.value == pytest.approx(nats.mean() / (100 * LN2))
    assert (found.half, found.count) == (pytest.approx(half, rel=1e-4), 25)
    assert found.low == pytest.approx(found.value - half, rel=1e-4)


def test_the_paired_interval_of_equal_lengths_is_that_of_the_mean_difference():
    rng = np.random.default_rng(1)
    one = rng.normal(140, 30, 25)
    other = one - rng.normal(3, 2, 25)
    found = paired_difference([(value, 100) for value in one], [(value, 100) for value in other])
    gaps = (one - other) / (100 * LN2)
    assert found.value == pytest.approx(gaps.mean())
    assert found.half == pytest.approx(2.0639 * gaps.std(ddof=1) / 5, rel=1e-4)
    assert found.excludes_zero


@pytest.mark.parametrize("paired", [False, True])
def test_the_standard_error_is_that_of_a_bootstrap_over_documents(paired):
    one, other = map(np.array, documents(400))
    found = paired_difference(one, other) if paired else bits_per_byte_interval(one)
    rng, drawn = np.random.default_rng(2), []
    for _ in range(4000):
        nats, size = one[chosen := rng.integers(400, size=400)].sum(0)
        value = nats / size / LN2
        if paired:
            nats, size = other[chosen].sum(0)
            value -= nats / size / LN2
        drawn.append(value)
    assert found.half / student_quantile(399) == pytest.approx(np.std(drawn), rel=0.06)
    assert [found.low, found.high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.12 * found.half)


def test_pairing_narrows_the_interval_because_documents_share_their_hardness():
    one, other = documents(400)
    paired = paired_difference(one, other)
    assert paired.half < 0.15 * bits_per_byte_interval(one).half
    assert paired.high < 0  # the first model is better by 0.01 nats, and the interval shows it
    assert paired_difference(other, one).value == -paired.value
    assert paired_difference(one, one) == paired_difference(other, other)
    assert paired_difference(one, one).half == 0


def test_the_interval_covers_the_truth_in_95_percent_of_samples():
    # The truth is the ratio of expectations: the difference is 0.01 nats per byte whatever the length.
    found = [paired_difference(*documents(60, seed)) for seed in range(600)]
    covered = np.mean([interval.low <= -0.01 / LN2 <= interval.high for interval in found])
    assert 0.91 <= covered <= 0.98


def test_documents_of_other_bytes_are_ratios_of_their_own_bytes():
    one = [(10.0 + i, 10.0) for i in range(12)]
    other = [(10.0 + i, 20.0) for i in range(12)]
    assert paired_difference(one, other).value == pytest.approx(sum(range(10, 22)) / 120 / LN2 / 2)


def test_too_few_documents_have_no_interval():
    found = bits_per_byte_interval([(7.0, 10)] * 9)
    assert (found.value, found.count) == (pytest.approx(0.7 / LN2), 9)
    assert math.isnan(found.half)
    assert not found.excludes_zero
    # The nats 1 to 10 have the standard error 3.0277 / √10; t has 9 degrees of freedom.
    assert bits_per_byte_interval([(i, 1) for i in range(1, 11)]).half == pytest.approx(2.166 / LN2, rel=1e-3)
    with pytest.raises(ValueError, match="got 9 and 8"):
        paired_difference([(7.0, 10)] * 9, [(7.0, 10)] * 8)
    with pytest.raises(ValueError, match="no text"):
        bits_per_byte_interval([])


@pytest.mark.parametrize(
    "freedom,quantile", [(9, 2.2622), (10, 2.2281), (15, 2.1314), (30, 2.0423), (120, 1.9799), (10**6, 1.95997)]
)
def test_students_quantiles_are_those_of_the_table(freedom, quantile):
    assert student_quantile(freedom) == pytest.approx(quantile, abs=1e-3)


@pytest.mark.parametrize("freedom, quantile", [(31, 2.0395134), (50, 2.0085591), (120, 1.9799304)])
def test_students_quantiles_of_many_have_five_digits(freedom, quantile):
    assert student_quantile(freedom) == pytest.approx(quantile, abs=3e-6)


@pytest.mark.parametrize("right,count", [(0, 10), (10, 10), (3, 10), (270, 300), (300, 300), (77, 77)])
def test_wilsons_ends_are_the_shares_that_a_test_just_does_not_reject(right, count):
    # By definition: the shares q with |share − q| = z √(q (1 − q) / n), found here by bisection.
    share = right / count

    def rejected(q: float) -> bool:
        return abs(share - q) > 1.959964 * math.sqrt(q * (1 - q) / count)

    def end(inside: float, outside: float) -> float:
        for _ in range(60):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if rejected(middle) else (middle, outside)
        return inside

    found = share_interval(share, count)
    inside = min(max(share, 1e-9), 1 - 1e-9)
    assert found.low == pytest.approx(0 if right == 0 else end(inside, 0), abs=1e-6)
    assert found.high == pytest.approx(1 if right == count else end(inside, 1), abs=1e-6)
    assert 0 <= found.low <= share <= found.high <= 1
    assert found.half > 0


@pytest.mark.parametrize("freedom", range(1, 9))
def test_students_quantiles_of_few_seeds_leave_a_fortieth_on_each_side(freedom):
    """Against the density, integrated from 0 by trapezoids."""
    quantile = student_quantile(freedom)
    x = np.linspace(0, quantile, 100_001)
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    density = scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    assert (density[1:] + density[:-1]).sum() / 2 * x[1] == pytest.approx(0.475, abs=3e-5)
