"""Orders that must never change, or every resumed run would read other text."""

import numpy as np
import pytest

from nanogka.data.order import hash_text, permutation


def test_the_bits_are_pinned():
    assert hash_text("nanogka") == hash_text(b"nanogka") == 4559099818175738748
    assert permutation(10, 1, 2).tolist() == [1, 0, 4, 5, 7, 3, 8, 2, 6, 9]


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_a_permutation_has_each_number_once_and_depends_on_every_key(n):
    order = permutation(n, 5, 6)
    assert sorted(order.tolist()) == list(range(n))
    if n == 1000:
        assert not np.array_equal(order, permutation(n, 5, 7))
        assert not np.array_equal(order, permutation(n, 56))
        # The mean distance that a number moves in a random order is a third of n.
        assert abs(np.abs(order - np.arange(n)).mean() - n / 3) < n / 20
