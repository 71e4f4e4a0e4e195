"""The benchmark of ranks measures both ways, and refuses to compare on one rank."""

import torch
from rank_worlds import run_ranks

from nanogka.bench.ranks import KINDS, compare_ranks
from nanogka.model import GPTConfig


def measure(ranks):
    config = GPTConfig.from_depth(1, vocab_size=100, sequence_len=8)
    return compare_ranks(config, 1, 2, ranks, torch.device("cpu"))


def test_both_ways_are_timed_and_sharding_halves_the_state():
    first, second = run_ranks(2, measure)
    assert set(first) == set(KINDS)
    for kind in KINDS:
        assert first[kind].seconds == second[kind].seconds  # of the slowest rank, which all agree on
        assert len(first[kind].seconds) == 2
        assert first[kind].median > 0
    assert max(first["sharded"].state_bytes) < 0.7 * max(first["replicated"].state_bytes)
