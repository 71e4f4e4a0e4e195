"""The training-step benchmark on a small model."""

import json

import pytest

from scripts import bench_train


def test_both_mixers_are_measured_and_compared(capsys):
    flags = "--depth 1 --sequence-len 32 --batch 2 --vocab-size 600 --repeats 3 --no-compile --device cpu"
    flags += " --dtype float32"
    assert bench_train.main(flags.split()) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    ours, baseline = document["results"]["gaussian"], document["results"]["dot_product"]
    assert len(ours["seconds"]) == 3
    assert ours["flops_per_token"] < baseline["flops_per_token"]
    assert ours["peak_bytes"] < baseline["peak_bytes"]
    promise = baseline["flops_per_token"] / ours["flops_per_token"]
    gained = sorted(b / a for a, b in zip(ours["seconds"], baseline["seconds"]))[1]  # median of pairs
    assert document["kept_of_promise"] == pytest.approx(gained / promise)


def test_every_bad_flag_is_named(capsys):
    assert bench_train.main(["--depth", "0", "--batch", "0", "--device", "nowhere"]) == 2
    complaints = capsys.readouterr().err
    for flag in ("--depth", "--batch", "--device"):
        assert flag in complaints
