"""The comparison: every model with every seed, a table of what is finished, and images per second."""

import json

import pytest

pytest.importorskip("timm")

from nanogka.vision import data  # noqa: E402
from scripts import bench, vision_compare  # noqa: E402


def test_a_comparison_is_trained_once_and_then_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path))
    monkeypatch.setattr(data, "HELD_OUT", 1600)  # of 1797 digits: a few steps per epoch
    words = ["--attentions=vlt,gka", "--seeds=1", "--epochs=1", "--device=cpu"]
    assert vision_compare.main([*words, "--table"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == []
    assert vision_compare.main(words) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [outcome["attention"] for outcome in first] == ["vlt", "gka"]
    assert vision_compare.main([*words, "--table"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == first
    assert vision_compare.main(["--attentions=gqa", "--seeds=0"]) == 2
    assert "--attentions: got 'gqa', expected some of softmax,vlt,gka,gka_affine" in capsys.readouterr().err


@pytest.mark.parametrize("training", ["--training", "--no-training"])
def test_throughput_of_each_model_and_batch_is_measured(capsys, training):
    assert bench.main(["vision", "--size=micro", "--batches=1,3", "--repeats=1", "--device=cpu", training]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["measurements"]
    assert [(row["model"], row["batch"]) for row in rows] == [
        (f"deit_micro{kind}_patch2_8", batch) for batch in (1, 3) for kind in ("_gka", "_gka_affine", "_vlt", "")
    ]
    assert all(row["images_per_second"] > 0 for row in rows)
    assert bench.main(["vision", "--batches=1,x", "--models=resnet18"]) == 2
    assert "--batches: got '1,x'" in capsys.readouterr().err
