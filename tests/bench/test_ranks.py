"""The benchmark of ranks measures both ways, and refuses to compare on one rank."""

import torch
from rank_worlds import run_ranks

from nanogka.bench.ranks import KINDS, compare_ranks
from nanogka.model import GPTConfig
from scripts import bench_ranks


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


def test_one_process_and_bad_numbers_are_refused_together(capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert bench_ranks.main(["--repeats", "0"]) == 2
    errors = capsys.readouterr().err
    assert "ranks: got 1, takes at least 2 (torchrun" in errors
    assert "--repeats: got 0, takes an integer of at least 1" in errors
