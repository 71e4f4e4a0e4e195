"""`scripts.bench`: what it measures, what it prints, and what it refuses, on small shapes."""

import itertools
import json

import pytest
import torch

from nanogka.bench.attention import CONTESTANTS, Shape
from scripts import bench

CPU = " --dtype float32 --device cpu"


@pytest.fixture
def run(capsys):
    """Runs a benchmark; returns the lines that it prints and the document that the last one is."""

    def run(words: str) -> tuple[list[str], dict]:
        assert bench.main((words + CPU).split()) == 0
        lines = capsys.readouterr().out.splitlines()
        return lines, json.loads(lines[-1])

    return run


# ---- attention ----


def test_attention_measures_every_contestant_at_every_length(run, monkeypatch):
    monkeypatch.setitem(CONTESTANTS, "mine", lambda z, v, sigma, window: z + v)
    monkeypatch.setitem(CONTESTANTS, "broken", lambda z, v, sigma, window: z @ v)
    names = ["softmax", "gaussian", "reference", "mine", "broken"]
    flags = "attention --lengths 64,128 --window 16 --heads 1 --head-dim 16 --repeats 1 --contestants "
    lines, document = run(flags + ",".join(names))
    measured = {(m["contestant"], m["length"]): m for m in document["measurements"]}
    assert list(measured) == [(name, length) for length in (64, 128) for name in names]
    for (name, length), m in measured.items():
        costs = (m["forward_seconds"], m["total_seconds"], m["forward_flops"], m["total_flops"], m["peak_bytes"])
        assert costs == (None,) * 5 if name == "broken" else min(costs) > 0
        assert any(line.startswith(f"| {length} | {name}") for line in lines)
    assert "RuntimeError" in measured["broken", 64]["reason"]
    assert measured["reference", 128]["peak_bytes"] > 3 * measured["reference", 64]["peak_bytes"]


def test_flops_count_the_visible_pairs():
    assert Shape(2, 5, 3, 7, None, torch.float32).forward_flops() == 4 * 2 * 3 * 7 * 15
    assert Shape(1, 5, 1, 1, 2, torch.float32).forward_flops() == 4 * (1 + 2 + 3 + 3 + 3)


# ---- decoding ----


def test_decoding_is_measured_for_every_mixer_context_and_batch_size(run):
    flags = "--depth 2 --vocab-size 300 --contexts 12,20 --batch-sizes 1,3 --tokens 2 --repeats 2"
    lines, document = run(f"generate --mixers gaussian,GD {flags}")
    costs = {(c["mixer"], c["context"], c["batch_size"]): c for c in document["results"]}
    assert set(costs) == set(itertools.product(("gaussian", "GD"), (12, 20), (1, 3)))
    for (_, _, batch_size), cost in costs.items():
        assert cost["tokens_per_second"] == pytest.approx(batch_size / cost["token_seconds"])
        assert min(cost["prefill_seconds"], cost["cache_bytes"]) > 0
    assert sum(line.startswith("| gaussian") for line in lines) == 4


# ---- a training step ----


def test_training_steps_of_both_mixers_are_measured(run):
    flags = "train --depth 1 --sequence-len 32 --batch 2 --vocab-size 600 --repeats 2 --no-compile"
    lines, document = run(flags)
    ours, baseline = document["results"]
    assert (ours["mixer"], baseline["mixer"]) == ("gaussian", "dot_product")
    assert len(ours["seconds"]) == 2
    assert ours["flops_per_token"] < baseline["flops_per_token"]
    assert ours["peak_bytes"] < baseline["peak_bytes"]
    assert any(line.startswith("| gaussian | ") for line in lines)
