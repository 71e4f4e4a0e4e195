"""Scaling laws: a known one is found again, and the band has the width that the spread says."""

import numpy as np
import pytest

from nanogka.study.fit import fit_power_law, fit_scaling


@pytest.mark.parametrize("floor, factor, exponent", [(0.9, 30.0, 0.12), (0.0, 5.0, 0.05), (1.7, 1e6, 0.5)])
def test_a_known_law_is_found_again(floor, factor, exponent):
    compute = np.geomspace(1e12, 1e15, 5)
    law = fit_power_law(compute, floor + factor * compute**-exponent)
    assert law.floor == pytest.approx(floor, abs=2e-3)
    assert law.exponent == pytest.approx(exponent, rel=5e-3)
    assert law(1e16) == pytest.approx(floor + factor * 1e16**-exponent, rel=1e-3)


def test_two_budgets_give_a_line_through_both_and_one_gives_none():
    law = fit_power_law([1e12, 1e14], [3.0, 2.0])
    assert (law.floor, law(1e12), law(1e14)) == pytest.approx((0.0, 3.0, 2.0))
    assert law.exponent == pytest.approx(np.log10(1.5) / 2)
    with pytest.raises(ValueError, match="at least two"):
        fit_power_law([1e12, 1e12], [3.0, 2.0])


def test_the_band_is_as_wide_as_the_seeds_say():
    noise = np.array([-0.01, 0.0, 0.01])  # relative, of a sample standard deviation of 0.01
    losses = {1e12: 3 * (1 + noise), 1e14: [2.0]}
    low, high = fit_scaling(losses).band(np.array([1e12, 1e14]))
    width = 2 * 1.645 * 0.01  # 5 to 95 % of a normal distribution
    assert np.log(high / low) == pytest.approx([width / np.sqrt(3), width], rel=0.2)
    assert fit_scaling({1e12: [3.0], 1e14: [2.0]}).band(np.array([1e12])) is None
