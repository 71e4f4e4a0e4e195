"""Checkpoints are whole or absent, and damage is found."""

import json

import pytest
import torch

from nanogka.train.checkpoint import (
    MANIFEST,
    OPTIMIZER,
    STATE,
    WEIGHTS,
    Checkpoint,
    find_run,
    list_checkpoints,
    load_checkpoint,
    load_run,
    newest_sound,
    save_checkpoint,
    step_of,
    why_broken,
)


def checkpoint(step):
    generator = torch.Generator().manual_seed(step)
    weights = {"a": torch.randn(3, 4, generator=generator), "b": torch.randn(5, generator=generator)}
    optimizer = {"0": {"momentum": torch.randn(3, 4, generator=generator)}}
    return Checkpoint(step, weights, optimizer, {"loader": {"row": step}})


def test_what_was_saved_is_loaded(tmp_path):
    saved = checkpoint(7)
    loaded = load_checkpoint(save_checkpoint(tmp_path, saved))
    assert loaded.step == 7
    assert loaded.state["loader"] == {"row": 7}
    assert all(torch.equal(loaded.weights[name], saved.weights[name]) for name in saved.weights)
    assert torch.equal(loaded.optimizer["0"]["momentum"], saved.optimizer["0"]["momentum"])


def test_checkpoints_are_listed_in_order_of_step(tmp_path):
    for step in (100, 9, 1_000_000, 10):
        save_checkpoint(tmp_path, checkpoint(step))
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [9, 10, 100, 1_000_000]


@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER, STATE, MANIFEST])
@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_any_damage_falls_back_to_the_checkpoint_before(tmp_path, name, damage):
    save_checkpoint(tmp_path, checkpoint(1))
    path = save_checkpoint(tmp_path, checkpoint(2)) / name
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 2] ^= 0x41
        path.write_bytes(content)
    else:
        path.unlink()
    sound, notes = newest_sound(tmp_path)
    assert sound.name == "step_000001"
    assert len(notes) == 1
    assert "step_000002 is unusable" in notes[0]


def test_every_changed_byte_of_a_manifest_is_noticed(tmp_path):
    path = save_checkpoint(tmp_path, checkpoint(12)) / MANIFEST
    content = path.read_bytes()
    for at in range(len(content)):
        for flip in (0x01, 0x04, 0x20):  # 0x04 makes one blank of another, which JSON would not mind
            path.write_bytes(content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :])
            assert why_broken(path.parent), (at, flip)
    path.write_bytes(content)
    assert why_broken(path.parent) is None


def test_a_crash_before_the_rename_leaves_no_checkpoint(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, checkpoint(1))
    monkeypatch.setattr("nanogka.train.checkpoint._fsync", lambda path: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(tmp_path, checkpoint(2))
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_000001"]
    assert why_broken(tmp_path / "step_000001") is None


def test_manifest_has_the_size_of_every_file(tmp_path):
    folder = save_checkpoint(tmp_path, checkpoint(3))
    files = json.loads((folder / MANIFEST).read_text())["files"]
    assert {name: entry["bytes"] for name, entry in files.items()} == {
        path.name: path.stat().st_size for path in folder.iterdir() if path.name != MANIFEST
    }


def test_a_missing_run_says_how_to_train_one(base):
    with pytest.raises(ValueError, match=r"--run: no trained run under .*scripts.base_train"):
        load_run(None)
    with pytest.raises(ValueError, match="--run: got 'nix'.*there are no runs"):
        find_run("nix")
