"""Reading run folders: the right run, sound and whole, or the reason why not."""

import json
import os
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from generate_models import byte_tokenizer, save_run, small_model

from nanogka.checkpoint import Checkpoint, list_checkpoints, save_checkpoint
from nanogka.evaluate import models as evaluate
from nanogka.runs import CONFIG, EXAMPLES, Run, find_run, load_run, read_config, read_metrics, write_config
from nanogka.train.base import open_base
from nanogka.train.chat import ChatSettings


def test_without_any_run_the_error_says_so(base):
    with pytest.raises(ValueError, match="run: got 'nix'"):
        find_run("nix")


def test_the_newest_valid_checkpoint_is_loaded_with_a_note_on_damaged_ones(mine, capsys):
    loaded = load_run("mine")
    assert (loaded.step, loaded.kind, loaded.folder) == (5, "base", mine)
    ids = torch.tensor([loaded.tokenizer.encode("the old cat sees")])
    assert loaded.model(ids).shape == (1, ids.shape[1], loaded.tokenizer.vocab_size)
    capsys.readouterr()
    (mine / "checkpoints" / "step_000005" / "optimizer.pt").write_bytes(b"")
    assert load_run("mine").step == 4
    note = "mine: checkpoint step_000005 is unusable: optimizer.pt is not what the manifest says"
    assert note in (said := capsys.readouterr().err)
    assert "using step_000004 instead" in said
    with pytest.raises(ValueError, match="step: checkpoint .* is unusable"):
        load_run("mine", step=5)
    with pytest.raises(ValueError, match="step: got 7, expected a saved step of .*: 4, 5"):
        load_run("mine", step=7)
    for path in list_checkpoints(mine / "checkpoints"):
        (path / "manifest.json").unlink()
    with pytest.raises(ValueError, match="^run: .*\n.*step_000005"):
        load_run("mine")


def test_a_configuration_can_be_edited_and_one_without_a_model_is_refused(mine):
    path, content = mine / CONFIG, read_config(mine)
    path.write_text("# sha256 of what follows: 0\n" + path.read_text().replace("tag: mine", "tag: yours"))
    assert load_run("mine").config["run"]["tag"] == "yours"
    path.write_text("model: {}\n")
    with pytest.raises(ValueError, match=f"^run: {path}"):
        load_run("mine")
    write_config(mine, {**content, "model": {**content["model"], "n_wing": 3}})
    with pytest.raises(ValueError, match=f"^run: {path}.*n_wing"):
        load_run("mine")
    for forged in ({"n_layer": True}, {"successor_keys": ["full"]}, {"n_head": 1, "n_embd": 2**31 - 4}):
        write_config(mine, {**content, "model": {**content["model"], **forged}})
        with pytest.raises(ValueError, match="^run: .*$"):
            load_run("mine")
    write_config(mine, {**content, "run": {**content["run"], "tokenizer": "0" * 64}})
    with pytest.raises(ValueError, match="^run: .*/tokenizer.*0000"):
        load_run("mine")


def test_a_newest_run_that_cannot_be_loaded_breaks_no_default(mine, base):
    shutil.copytree(mine / "checkpoints", base / "runs" / "foreign" / "checkpoints", copy_function=shutil.copy)
    newer = shutil.copytree(mine, base / "runs" / "newer", copy_function=shutil.copy)
    (newer / "config.yaml").write_bytes(b"\xff")
    assert load_run().folder == mine
    with pytest.raises(ValueError, match="no trained chat run"):
        find_run(kind="chat")
    assert evaluate.open_run("", None, torch.device("cpu"), torch.float32).folder == mine
    assert open_base(ChatSettings()).folder == mine


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_and_break_no_default(mine, base, capsys, value):
    newer = shutil.copytree(mine, base / "runs" / "newer", copy_function=shutil.copy)
    model = load_run("newer").model
    weights = dict(model.state_dict())
    weights["lm_head.weight"][-1, -1] = value
    save_checkpoint(newer / "checkpoints", Checkpoint(9, weights, {}, {}))
    with pytest.raises(ValueError, match="newer.*step_000009: .*nan or inf: lm_head.weight$"):
        load_run("newer")
    capsys.readouterr()
    assert load_run().folder == mine
    assert len([line for line in capsys.readouterr().err.splitlines() if "newer" in line]) == 1
    assert load_run("newer", step=5).step == 5


def test_damaged_lines_of_the_metrics_are_left_out_and_counted(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    line = json.dumps({"kind": "train", "step": 1}).encode()
    path.write_bytes(b"\n".join([line, b"[1]", b"7", b"null", b'{"step": 2}', b"\xff\xfe", line, b'{"kind": "tra']))
    assert read_metrics(path) == [{"kind": "train", "step": 1}] * 2
    assert capsys.readouterr().err == f"{path}: 6 damaged lines left out\n"
    assert read_metrics(tmp_path / "none.jsonl") == []


def test_the_latest_run_is_the_one_that_was_trained_last_whatever_the_times_of_its_files(base, monkeypatch):
    for number, (name, kind) in enumerate((("old", "chat"), ("chat", "chat"), ("base", "base"))):
        monkeypatch.setattr("nanogka.checkpoint.time.time", lambda number=number: 1e9 + number)
        manifest = save_run(base / "runs" / name, small_model(), kind=kind) / "checkpoints/step_000007/manifest.json"
        os.utime(manifest, (2e9 - number,) * 2)  # as if it had been copied
    assert find_run().name == load_run().folder.name == "base"
    assert find_run(kind="chat").name == "chat"
    assert find_run(prefer="chat").name == load_run(prefer="chat").folder.name == "chat"
    for broken, found in (("chat", "old"), ("old", "base")):  # what cannot be loaded is skipped
        (base / "runs" / broken / "tokenizer/tokenizer.json").write_text("{}")
        assert load_run(prefer="chat").folder.name == found
    # Checkpoints of an earlier version do not say when they were made, so the time of their files decides.
    state = base / "runs/old/checkpoints/step_000007/state.json"
    state.write_text('{"saved": null}')
    assert find_run().name == "old"


def test_a_tokenizer_with_more_ids_than_the_model_is_refused_and_breaks_no_default(base, capsys):
    save_run(base / "runs" / "sound", small_model(vocab_size=265))
    save_run(base / "runs" / "wide", small_model(vocab_size=264))
    assert byte_tokenizer().vocab_size == 265
    with pytest.raises(ValueError, match=r"^run: .*wide/tokenizer has 265 ids, expected at most the 264 of the model$"):
        Run.open(base / "runs" / "wide").saved()
    assert load_run().folder.name == "sound"
    assert "wide" in capsys.readouterr().err


@pytest.mark.parametrize(
    "document, place",
    [
        ({"bpb": [1.5]}, "bpb"),
        ({"bpb": {"val": "1.5"}}, "bpb.val"),
        ({"samples": ["text"]}, "samples.0"),
        ({"tasks": {"name": "addition"}}, "tasks"),
        ({"tasks": [{"name": "addition"}]}, "tasks.0.accuracy"),
        ({"tasks": [{"name": "addition", "accuracy": 0.5, "items": "4"}]}, "tasks.0.items"),
        ({"tasks": [{"name": "addition", "accuracy": 1, "replies": [3]}]}, "tasks.0.replies.0"),
        ({"tasks": [{"name": "addition", "accuracy": 1, "replies": [{"right": True}]}]}, "tasks.0.replies.0.prompt"),
    ],
)
def test_a_damaged_evaluation_is_named_with_its_place_and_has_no_examples(tmp_path, document, place):
    file = tmp_path / "chat_evaluation.json"
    good = {"name": "addition", "accuracy": 1, "replies": [{"prompt": "2+3?", "reply": "5", "right": True}]}
    run = {"run": {"kind": "chat"}}
    file.write_text(json.dumps({"bpb": {"val": 1.5, "train": None}, "tasks": [good], "samples": None}))
    assert Run(tmp_path, run).examples == ["2+3?"]
    file.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=f"{file}: damaged, {place}: "):
        _ = Run(tmp_path, run).evaluation
    assert Run(tmp_path, run).examples == []


def test_examples_of_another_person_are_read_with_limits(tmp_path):
    def examples(content: str) -> list[str]:
        (tmp_path / EXAMPLES).write_text(content)
        return Run(tmp_path, {}).examples

    assert examples('["Why?", " ", 3, "ä"]') == ["Why?", "ä"]
    assert examples(json.dumps([f"{i}" * 200 for i in range(9)] + ["x" * 201])) == [f"{i}" * 200 for i in range(8)]
    assert examples(json.dumps(["x" * 201, "y"])) == ["y"]
    for bad in ('["a \\ud800 b"]', "[" * 100_000, '{"a": 1}', json.dumps(["a"] * 2**18)):
        assert examples(bad) == []
    (tmp_path / EXAMPLES).unlink()
    os.mkfifo(tmp_path / EXAMPLES)
    assert Run(tmp_path, {}).examples == []  # without waiting


def test_a_configuration_that_is_no_file_is_refused_in_a_line(base, monkeypatch):
    folder = save_run(base / "runs" / "mine", small_model())
    config = folder / CONFIG
    config.unlink()
    config.symlink_to(config)
    with pytest.raises(ValueError, match="expected a run's folder"):
        find_run("mine")
    config.unlink()
    # As root, /proc/kmsg looks like an empty file, and a read that would wait returns None.
    waiting = SimpleNamespace(read=lambda size: None)
    monkeypatch.setattr("nanogka.common.files.open_regular", lambda *_: nullcontext(waiting))
    with pytest.raises(ValueError, match=f"^run: {config} cannot be used"):
        read_config(folder)
    # Other files of /proc have no size, and do not end.
    endless = SimpleNamespace(read=lambda size: b"x" * size)
    monkeypatch.setattr("nanogka.common.files.open_regular", lambda *_: nullcontext(endless))
    with pytest.raises(ValueError, match=f"^run: {config}: has more than 32,768 bytes"):
        read_config(folder)
