"""Reading a run's folder, and which runs can be compared."""

import json

import pytest
from run_fakes import write_chat, write_run

from nanogka.plots.trained_run import TrainedRun, check_comparable, differing_settings, find_chat_run


@pytest.mark.parametrize(
    "name, text, says",
    [
        ("metrics.jsonl", None, "no training lines"),
        ("metrics.jsonl", json.dumps({"kind": "train", "step": 1, "bandwidth": [[1.0], [1.0, 2.0]]}), "shape"),
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
        ({"settings": {"sample_every": 3, "profile": 2, "shards": 4}}, None),  # not the losses
        ({"settings": {"seed": 2}}, "seed"),
        ({"settings": {"lr_scale": 0.7}}, "lr_scale"),
        ({"settings": {"network": "february", "warmup_steps": 0}}, None),  # the other run is older than these flags
        ({"facts": {"total_batch_size": 2048}}, "total_batch_size"),
        ({"depth": 3}, "n_layer"),
    ],
)
def test_settings_that_differ_are_found(tmp_path, changes, setting):
    run = TrainedRun.open(write_run(tmp_path / "a"))
    other = TrainedRun.open(write_run(tmp_path / "b", **{"attention": "dot_product"} | changes))
    different = differing_settings(run, other)
    assert setting in different if setting else not different


@pytest.mark.parametrize("fact", ["corpus", "tokenizer"])
def test_runs_on_different_text_do_not_compare(tmp_path, fact):
    run, same, other = (
        TrainedRun.open(write_run(tmp_path / name, facts={fact: value * 64})) for name, value in zip("abc", "eef")
    )
    check_comparable(run, same)
    with pytest.raises(ValueError, match="compare: got 'c'.*ffffffffffff.*eeeeeeeeeeee"):
        check_comparable(run, other)


def test_only_chat_runs_of_this_run_count(tmp_path):
    base = TrainedRun.open(write_run(tmp_path / "d2"))
    write_chat(tmp_path / "other-chat", "other")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.yaml").write_text("run: {kind: chat}")
    assert find_chat_run(base) is None
    folder = write_chat(tmp_path / "mine-chat", "d2")
    assert find_chat_run(base).folder == folder
    assert TrainedRun.open(folder).base_folder == base.folder
    assert base.base_folder is None
