"""The operator's benchmark: what it measures, prints and saves, on a small shape."""

import json

import pytest
import torch

from nanogka.bench.attention import Shape, measure, peak_memory, table
from scripts import bench_attention


def test_last_line_is_json_and_the_plot_is_saved(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path))
    flags = "--lengths 64,128 --window 16 --heads 1 --head-dim 16 --repeats 1 --dtype float32 --device cpu"
    assert bench_attention.main(flags.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    measured = {(m["contestant"], m["length"]): m for m in document["measurements"]}
    assert len(measured) == 8
    for name in ("ours", "reference", "sdpa"):
        for length in (64, 128):
            m = measured[name, length]
            assert min(m["forward_seconds"], m["total_seconds"], m["peak_bytes"], m["total_flops"]) > 0
    assert measured["reference", 128]["peak_bytes"] > 3 * measured["reference", 64]["peak_bytes"]
    assert "backward on CPU" in measured["flex", 64]["reason"]
    assert (tmp_path / "benchmarks" / "attention-cpu-float32-window-16.png").stat().st_size > 10_000


def test_every_bad_flag_is_named_and_nothing_is_created(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path))
    flags = "--lengths 64,x --window -1 --batch 0 --contestants ours,mine --dtype int8 --device cpu"
    assert bench_attention.main(flags.split()) == 2
    complaints = capsys.readouterr().err
    for flag in ("--lengths", "--window", "--batch", "--contestants", "--dtype"):
        assert flag in complaints
    assert not list(tmp_path.iterdir())


def test_flops_count_the_pairs_that_are_seen():
    full = Shape(2, 5, 3, 7, None, torch.float32)
    assert full.forward_flops() == 4 * 2 * 3 * 7 * 15
    windowed = Shape(1, 5, 1, 1, 2, torch.float32)
    assert windowed.forward_flops() == 4 * (1 + 2 + 3 + 3 + 3)
    assert windowed.forward_flops(dense=True) == 4 * 15


def test_the_literal_version_is_left_out_where_it_does_not_fit():
    result = measure("reference", Shape(1, 64, 1, 16, None, torch.float32), torch.device("cpu"), 1, memory_limit=1000)
    assert result.total_seconds is None
    assert "would take" in result.reason
    assert "would take" in table([result])[-1]


@pytest.mark.parametrize("size", [1000, 100_000])
def test_peak_memory_counts_what_is_held_at_once(size):
    def hold():
        for _ in range(3):
            a = torch.ones(size)
            b = a + 1
            del a, b

    assert peak_memory(hold, torch.device("cpu")) == pytest.approx(8 * size, rel=0.2)
