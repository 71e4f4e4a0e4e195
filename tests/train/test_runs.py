"""Reading run folders: the right run, sound and whole, or the reason why not."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from training import train

from nanogka.checkpoint import list_checkpoints
from nanogka.evaluate import models as evaluate
from nanogka.runs import CONFIG, find_run, load_run, read_config, read_metrics, write_config
from nanogka.train.chat import ChatSettings, open_base


@pytest.fixture
def run(base, flags):
    """The folder of a trained run with two checkpoints."""
    assert train(*flags, "--run", "mine", "--num-iterations", 2, "--save-every", 1, "--eval-every", 0) == 0
    return base / "runs" / "mine"


def test_a_missing_run_says_how_to_train_one(base):
    with pytest.raises(ValueError, match=r"--run: no trained run under .*scripts.base_train"):
        load_run(None)
    with pytest.raises(ValueError, match="--run: got 'nix'.*there are no runs"):
        find_run("nix")


def test_the_newest_checkpoint_is_loaded_and_one_that_is_damaged_is_passed_over_aloud(run, capsys):
    loaded = load_run("mine")
    assert (loaded.step, loaded.kind, loaded.folder) == (2, "base", run)
    ids = torch.tensor([loaded.tokenizer.encode("the old cat sees")])
    assert loaded.model(ids).shape == (1, ids.shape[1], loaded.tokenizer.vocab_size)
    capsys.readouterr()
    (run / "checkpoints" / "step_000002" / "optimizer.pt").write_bytes(b"")
    assert load_run("mine").step == 1
    note = "mine: checkpoint step_000002 is unusable: optimizer.pt is not what the manifest says"
    assert note in (said := capsys.readouterr().err)
    assert "taking step_000001 instead" in said
    with pytest.raises(ValueError, match="--step: checkpoint .* is unusable"):
        load_run("mine", step=2)
    with pytest.raises(ValueError, match="--step: got 7, takes a saved step of .*: 1, 2"):
        load_run("mine", step=7)
    for path in list_checkpoints(run / "checkpoints"):
        (path / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"no usable checkpoint\ncheckpoint step_000002 is unusable"):
        load_run("mine")


def test_a_model_is_loaded_without_reading_the_optimisers_state(run, monkeypatch):
    opened, original = [], Path.open
    monkeypatch.setattr(
        Path, "open", lambda self, *words, **more: (opened.append(self.name), original(self, *words, **more))[1]
    )
    assert load_run("mine").step == 2
    assert "model.safetensors" in opened
    assert "optimizer.pt" not in opened


def test_a_configuration_can_be_mended_by_hand_and_one_that_is_none_is_refused(run):
    path, content = run / CONFIG, read_config(run)
    path.write_text("# sha256 of what follows: 0\n" + path.read_text().replace("tag: mine", "tag: yours"))
    assert load_run("mine").config["run"]["tag"] == "yours"
    path.write_text("model: {}\n")
    with pytest.raises(ValueError, match="it has no settings and model"):
        load_run("mine")
    write_config(run, {**content, "model": {**content["model"], "n_wing": 3}})
    with pytest.raises(ValueError, match="has no model that this version knows: .*n_wing"):
        load_run("mine")


def test_another_tokenizer_in_the_folder_is_refused(run, base):
    config = read_config(run)
    write_config(run, {**config, "run": {**config["run"], "tokenizer": "0" * 64}})
    message = r"tokenizer is another tokenizer \(.*…\) than the run was trained with \(0000"
    with pytest.raises(ValueError, match=message):
        load_run("mine")


def test_the_run_trained_last_is_found_past_folders_that_are_none(run, base, capsys):
    shutil.copytree(run, base / "runs" / "damaged", copy_function=shutil.copy)  # newer files
    (base / "runs" / "damaged" / CONFIG).write_bytes(b"\xff\xfe")
    shutil.copytree(run / "checkpoints", base / "runs" / "foreign" / "checkpoints", copy_function=shutil.copy)
    capsys.readouterr()
    assert find_run() == run
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all(line.startswith("passed over: --run: ") for line in said)
    with pytest.raises(ValueError, match="no trained chat run"):
        find_run(kind="chat")


@pytest.mark.parametrize("damaged", ["checkpoints/*/model.safetensors", "tokenizer/tokenizer.json", "config.yaml"])
def test_a_damaged_newest_run_does_not_break_the_default(run, base, capsys, damaged):
    other = shutil.copytree(run, base / "runs" / "newer", copy_function=shutil.copy)
    for path in other.glob(damaged):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0x80  # which is no UTF-8
        path.write_bytes(content)
    capsys.readouterr()
    assert load_run().folder == run
    assert "newer" in capsys.readouterr().err
    assert evaluate.open_run("", None, torch.device("cpu"), torch.float32).folder == run
    assert open_base(ChatSettings()).folder == run


def test_damaged_lines_of_the_metrics_are_left_out_and_counted(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    line = json.dumps({"kind": "train", "step": 1, "checksum": "of an earlier version"}).encode()
    path.write_bytes(b"\n".join([line, b"[1]", b"7", b"null", b'{"step": 2}', b"\xff\xfe", line, b'{"kind": "tra']))
    assert read_metrics(path) == [{"kind": "train", "step": 1}] * 2
    assert capsys.readouterr().err == f"{path}: 6 damaged lines left out\n"
    assert read_metrics(tmp_path / "none.jsonl") == []
