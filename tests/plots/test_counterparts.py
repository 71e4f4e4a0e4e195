"""Reading a run's folder, and which runs may be compared."""

import json
import os

import pytest
from run_fakes import write_chat, write_run

from nanogka.plots.counterparts import base_folder, differing_settings, find_chat_run, find_counterparts
from nanogka.plots.trained_run import TrainedRun


@pytest.mark.parametrize(
    "name, text, says",
    [
        ("metrics.jsonl", None, "no training lines"),
        ("metrics.jsonl", json.dumps({"kind": "train", "step": 1, "bandwidth": [[1.0], [1.0, 2.0]]}), "shape"),
        ("config.yaml", None, "No such file"),
        ("config.yaml", "a: [", "cannot be read as YAML"),
        ("evaluation.json", "[]", "expected an object"),
    ],
)
def test_a_missing_or_damaged_file_is_named(tmp_path, name, text, says):
    folder = write_run(tmp_path / "d2")
    (folder / name).unlink(missing_ok=True)
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(ValueError, match=says) as caught:
        TrainedRun.open(folder)
    assert str(folder / name) in str(caught.value)


@pytest.mark.parametrize(
    "changes, setting",
    [
        ({}, None),
        ({"settings": {"data": "moved"}}, None),  # the corpus has the same fingerprint
        ({"facts": {"corpus": "e" * 64}}, "data"),
        ({"settings": {"seed": 2}}, "seed"),
        ({"settings": {"network": "february", "warmup_steps": 0}}, None),  # the other run is of before
        ({"facts": {"total_batch_size": 2048}}, "total_batch_size"),
        ({"depth": 3}, "n_layer"),
    ],
)
def test_a_counterpart_has_another_mixer_and_the_same_settings(tmp_path, changes, setting):
    run = TrainedRun.open(write_run(tmp_path / "a"))
    other = TrainedRun.open(write_run(tmp_path / "b", **{"attention": "dot_product"} | changes))
    different = differing_settings(run, other)
    assert setting in different if setting else not different
    found = find_counterparts(run, tmp_path), find_counterparts(other, tmp_path)
    assert [[r.tag for r in each] for each in found] == ([["b"], ["a"]] if setting is None else [[], []])


def test_of_several_the_newest_finished_and_undamaged_is_taken(tmp_path):
    run = TrainedRun.open(write_run(tmp_path / "a"))
    write_run(tmp_path / "same", "gaussian")
    write_run(tmp_path / "stopped", "dot_product", steps=4)
    for name in ("config.yaml", "metrics.jsonl"):
        (write_run(tmp_path / f"damaged-{name}", "dot_product") / name).write_text("{")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "config.yaml").symlink_to("nowhere")
    assert find_counterparts(run, tmp_path) == []
    for age, name in ((300, "old"), (100, "new"), (200, "older")):
        path = write_run(tmp_path / name, "dot_product") / "config.yaml"
        os.utime(path, (2e9 - age, 2e9 - age))
    assert [r.tag for r in find_counterparts(run, tmp_path)] == ["new"]
    write_run(tmp_path / "third", "value_less", settings={"lr_scale": 0.7, "short_conv": 3})
    assert sorted(r.tag for r in find_counterparts(run, tmp_path)) == ["new", "third"]
    third = TrainedRun.open(tmp_path / "third")
    assert set(differing_settings(run, third, choices=True)) == {"lr_scale", "short_conv"}


def test_only_chat_runs_of_this_run_count(tmp_path):
    base = TrainedRun.open(write_run(tmp_path / "d2"))
    write_chat(tmp_path / "other-chat", "other")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.yaml").write_text("run: {kind: chat}")
    assert find_chat_run(base) is None
    folder = write_chat(tmp_path / "mine-chat", "d2")
    assert find_chat_run(base).folder == folder
    assert base_folder(TrainedRun.open(folder)) == base.folder
    assert base_folder(base) is None
