"""Checkpoints are whole or absent, and damage is found."""

import errno
from pathlib import Path

import pytest
import torch

from nanogka.checkpoint import (
    MANIFEST,
    OPTIMIZER,
    STATE,
    WEIGHTS,
    Checkpoint,
    latest_valid,
    list_checkpoints,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    verify_checkpoint,
)
from nanogka.model import GPT, GPTConfig


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
    sound, notes = latest_valid(tmp_path)
    assert sound.name == "step_000001"
    assert len(notes) == 1
    assert "step_000002 is unusable" in notes[0]


def test_a_checkpoint_that_cannot_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, checkpoint(1))
    path = save_checkpoint(tmp_path, checkpoint(2)) / OPTIMIZER
    original = Path.open

    def failing(self, *args, **kwargs):
        if self == path:
            raise OSError(errno.EIO, "Input/output error", str(self))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", failing)
    with pytest.raises(OSError, match="Input/output error.*step_000002/optimizer.pt"):
        latest_valid(tmp_path)


def test_only_the_files_that_are_used_are_read(tmp_path, monkeypatch):
    path, opened = save_checkpoint(tmp_path, checkpoint(1)), []
    original = Path.open
    monkeypatch.setattr(
        Path, "open", lambda self, *args, **more: (opened.append(self.name), original(self, *args, **more))[1]
    )
    assert verify_checkpoint(path, (WEIGHTS, STATE)) is None
    assert sorted(set(opened)) == sorted([MANIFEST, WEIGHTS, STATE])
    (path / OPTIMIZER).write_bytes(b"")
    assert "optimizer.pt is not what the manifest says" in verify_checkpoint(path, (WEIGHTS, STATE))
    (path / OPTIMIZER).unlink()
    assert verify_checkpoint(path, (WEIGHTS, STATE)) == "optimizer.pt is missing"


def test_every_changed_byte_of_a_manifest_is_noticed(tmp_path):
    path = save_checkpoint(tmp_path, checkpoint(12)) / MANIFEST
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x04]) + content[at + 1 :])  # 0x04: one blank of another
        assert verify_checkpoint(path.parent), at
    path.write_bytes(content)
    assert verify_checkpoint(path.parent) is None


def test_a_crash_before_the_rename_leaves_no_checkpoint(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, checkpoint(1))
    monkeypatch.setattr("nanogka.checkpoint._fsync", lambda path: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(tmp_path, checkpoint(2))
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_000001"]
    assert verify_checkpoint(tmp_path / "step_000001") is None


def test_weights_of_another_model_are_refused_with_every_difference_named():
    config = GPTConfig.from_depth(1, vocab_size=50, sequence_len=8)
    source, model = GPT(config, seed=1), GPT(config, seed=2)
    weights = source.state_dict()
    load_weights(model, weights, "ours")
    assert torch.equal(model.lm_head.weight, source.lm_head.weight)
    weights["lm_head.weight"] = torch.zeros(3, 3)
    weights["extra"] = weights.pop("x0_lambdas")
    with pytest.raises(ValueError) as error:
        load_weights(model, weights, "--run: x")
    assert str(error.value).startswith("--run: x: its weights are not this model's: x0_lambdas is missing; ")
    assert "lm_head.weight has the shape (3, 3), not (50, " in str(error.value)
    assert "extra is not in the model" in str(error.value)
