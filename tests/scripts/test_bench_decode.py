"""The decoding benchmark on small models."""

import json

import pytest

from scripts import bench_decode


def test_both_mixers_are_measured_with_the_bytes_that_they_read(capsys):
    flags = "--depth 1 --context 40 --sequence-len 32 --batch 2 --vocab-size 600 --steps 4 --dtype float32 --device cpu"
    assert bench_decode.main([*flags.split(), "--kinds", "growing,plain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    results = {(r["mixer"], r["kind"]): r for r in document["results"]}
    assert set(results) == {(m, k) for m in ("gaussian", "dot_product") for k in ("growing", "plain")}
    width, head, kept = 128, 128 * 600, {"gaussian": 1, "dot_product": 2}  # depth 1: 64 rounded up to one head
    matrices = {"gaussian": 9 * width**2, "dot_product": 12 * width**2 + 32}  # and the gate of the value embeddings
    for (mixer, _), result in results.items():
        assert result["weight_bytes"] == 4 * (matrices[mixer] + head)
        assert result["cache_bytes"] == 2 * 4 * kept[mixer] * 40 * width  # two streams; the last layer sees all
        assert result["seconds"] > 0
        total = result["weight_bytes"] + result["cache_bytes"]
        assert result["bandwidth"] == pytest.approx(total / result["seconds"])
    assert sum(line.startswith(("| gaussian", "| dot_product")) for line in lines) == 4


def test_every_bad_flag_is_named(capsys):
    flags = ["--depth", "0", "--context", "0", "--steps", "0", "--kinds", "fast", "--device", "nowhere"]
    assert bench_decode.main(flags) == 2
    complaints = capsys.readouterr().err
    for flag in ("--depth", "--context", "--steps", "--kinds", "--device"):
        assert flag in complaints
