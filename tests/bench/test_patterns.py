"""The classification of patterns: its data are what they say, and a model that can learn them does."""

import json

import pytest
import torch

from nanogka.bench.patterns import PatternTask
from scripts import bench_patterns


@pytest.mark.parametrize("n, occurrences", [(1, 1), (2, 1), (3, 1), (1, 199), (2, 7), (3, 4)])
def test_a_sequence_has_exactly_the_pattern_of_its_class(n, occurrences):
    task = PatternTask(length=200, pattern_length=n, occurrences=occurrences, symbols=12)
    patterns = [tuple(p) for p in task.all_patterns().tolist()]
    assert len(set(patterns)) == 8
    ids, targets = task.batch(64, torch.Generator().manual_seed(0))
    for row, target in zip(ids.tolist(), targets.tolist()):
        found = [tuple(row[i : i + n]) for i in range(199 - n + 1)]
        occurring = [patterns.index(piece) for piece in found if piece in patterns]
        assert occurring == occurrences * [target[-1] - 13]
        assert row[-1] == 12
        assert set(target[:-1]) == {-1}


def test_the_last_line_is_json(capsys):
    flags = "--length 24 --depth 1 --steps 2 --batch 4 --items 6 --attention mixture,DM --device cpu"
    assert bench_patterns.main(flags.split()) == 0
    *table, last = capsys.readouterr().out.splitlines()
    outcomes = json.loads(last)["outcomes"]
    assert [o["attention"] for o in outcomes] == ["mixture", "DM"]
    for o in outcomes:
        assert 6 * o["accuracy"] == pytest.approx(round(6 * o["accuracy"]))
        assert o["step_seconds"] > 0
        assert any(line.startswith(f"| {o['attention']} | {o['parameters']:,}") for line in table)


def test_bad_flags_are_named_at_once(capsys):
    words = "--length 1 --pattern-length 4 --occurrences 9 --steps 0 --attention x --mixture-components 0".split()
    assert bench_patterns.main(words) == 2
    text = capsys.readouterr().err
    named = ("--length", "--pattern-length", "--occurrences", "--steps", "--attention")
    assert all(f"{name}: got" in text for name in named)
