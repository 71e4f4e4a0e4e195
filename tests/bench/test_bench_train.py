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
    assert document["ratios"]["dot_product"]["kept_of_promise"] == pytest.approx(gained / promise)


def test_the_chunked_loss_holds_less_than_the_plain_one(capsys):
    flags = "--compare losses --depth 1 --sequence-len 128 --batch 8 --vocab-size 12000 --repeats 1 --no-compile"
    assert bench_train.main([*flags.split(), "--dtype", "float32", "--device", "cpu"]) == 0
    results = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    logits = 8 * 128 * 12000 * 4
    assert results["plain"]["peak_bytes"] - results["chunked"]["peak_bytes"] > logits
    assert results["plain"]["flops_per_token"] == results["chunked"]["flops_per_token"]
