"""The operator's benchmark: its measurements, its table and JSON, on a small shape."""

import json

import torch

from nanogka.bench.attention import CONTESTANTS, Shape, measure
from scripts import bench_attention


def test_last_line_is_json_and_a_new_contestant_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(CONTESTANTS, "mine", lambda z, v, sigma, window: z + v)
    monkeypatch.setitem(CONTESTANTS, "broken", lambda z, v, sigma, window: z @ v)
    flags = "--lengths 64,128 --window 16 --heads 1 --head-dim 16 --repeats 1 --dtype float32 --device cpu"
    names = ["softmax", "gaussian", "reference", "mine", "broken"]
    assert bench_attention.main([*flags.split(), "--contestants", ",".join(names)]) == 0
    lines = capsys.readouterr().out.splitlines()
    measured = {(m["contestant"], m["length"]): m for m in json.loads(lines[-1])["measurements"]}
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


def test_the_literal_version_is_left_out_where_it_does_not_fit():
    result = measure("reference", Shape(1, 64, 1, 16, None, torch.float32), torch.device("cpu"), 1, memory_limit=1000)
    assert result.total_seconds is None
    assert "would take" in result.reason
