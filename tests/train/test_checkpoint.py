"""Checkpoints are complete or absent, damage is found, and training continues while they are written."""

import errno
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from full_disk import full_disk

from nanogka import checkpoint as checkpoint_module
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
    read_weights,
    save_checkpoint,
    try_checkpoint,
    verify_checkpoint,
)
from nanogka.common import files
from nanogka.model import GPT, GPTConfig
from nanogka.train import async_checkpoint as writer_module
from nanogka.train.async_checkpoint import CheckpointError, CheckpointWriter


def checkpoint(step):
    tensor = torch.full((3, 4), float(step))
    return Checkpoint(step, {"a": tensor}, {"0": {"state": [{"momentum": tensor.clone()}]}}, {"loader": {"row": step}})


def names(folder):
    return [path.name for path in list_checkpoints(folder)]


@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER, STATE, MANIFEST])
def test_any_damage_falls_back_to_the_checkpoint_before(tmp_path, name):
    save_checkpoint(tmp_path, checkpoint(1))
    path = save_checkpoint(tmp_path, checkpoint(2)) / name
    content = path.read_bytes()
    middle = len(content) // 2
    for damaged in (content[:middle], content[:middle] + bytes([content[middle] ^ 0x41]) + content[middle + 1 :], None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        sound, (note,) = latest_valid(tmp_path)
        assert sound.name == "step_000001"
        assert "step_000002 is unusable" in note


def test_a_checkpoint_that_cannot_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, checkpoint(1))
    path = save_checkpoint(tmp_path, checkpoint(2)) / OPTIMIZER
    original = files.open_regular

    def failing(opened, *args):
        if opened == path:
            raise OSError(errno.EIO, "Input/output error", str(opened))
        return original(opened, *args)

    monkeypatch.setattr(files, "open_regular", failing)
    assert latest_valid(tmp_path, (WEIGHTS, STATE))[0] == path.parent  # what is not used is not read
    with pytest.raises(OSError, match="Input/output error.*step_000002/optimizer.pt"):
        latest_valid(tmp_path)


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
    assert str(error.value).startswith("--run: x: ")
    assert all(name in str(error.value) for name in ("x0_lambdas", "lm_head.weight", "extra"))
    for dtype in (torch.float8_e4m3fn, torch.int32, torch.complex64):
        weights = source.state_dict() | {"lm_head.weight": source.lm_head.weight.detach().to(dtype)}
        with pytest.raises(ValueError, match=f"x: .* lm_head.weight has the dtype {dtype}, not a floating one"):
            load_weights(model, weights, "x")


def test_a_step_of_seven_digits_is_newer_than_one_of_six(tmp_path):
    for step in (1_000_000, 999_999):
        save_checkpoint(tmp_path, checkpoint(step))
    assert names(tmp_path) == ["step_999999", "step_1000000"]


def test_a_size_is_compared_before_a_file_is_hashed(tmp_path, monkeypatch):
    """A checkpoint that a crash cut, or a sparse file of a terabyte, is refused at once."""
    folder = save_checkpoint(tmp_path, checkpoint(1))
    with (folder / WEIGHTS).open("ab") as file:
        file.truncate(2**34)
    monkeypatch.setattr("nanogka.checkpoint.sha256_of", lambda path: pytest.fail("hashed"))
    assert WEIGHTS in verify_checkpoint(folder, (WEIGHTS,))


# ---- the writer ----


def write(folder, steps, scores=(), **options):
    with CheckpointWriter(folder, **{"keep": 2, **options}) as writer:
        for step in steps:
            writer.submit(checkpoint(step))
            if step in dict(scores):
                writer.scores[step] = dict(scores)[step]
    return names(folder)


def test_training_goes_on_while_the_disk_is_busy_and_what_it_changes_is_not_saved(tmp_path, monkeypatch):
    disk = threading.Event()
    monkeypatch.setattr(writer_module, "save_checkpoint", lambda *args: (disk.wait(20), save_checkpoint(*args))[1])
    writer, one = CheckpointWriter(tmp_path, keep=2), checkpoint(1)
    writer.submit(one)
    assert names(tmp_path) == []  # submit has not waited
    one.weights["a"].fill_(77)
    threading.Timer(0.2, disk.set).start()
    writer.__exit__(KeyError, KeyError(), None)  # also after an error the write is finished
    loaded = load_checkpoint(tmp_path / "step_000001")
    assert (loaded.step, loaded.state["loader"]) == (1, {"row": 1})
    assert loaded.weights["a"].unique().tolist() == [1]
    assert loaded.optimizer["0"]["state"][0]["momentum"].unique().tolist() == [1]


def test_the_newest_and_the_best_are_kept(tmp_path):
    scores = {10: 1.5, 20: 1.1, 30: 1.3, 40: float("nan"), 50: 1.2}
    assert write(tmp_path / "a", scores, scores, keep=2, keep_best=1) == ["step_000020", "step_000040", "step_000050"]
    assert write(tmp_path / "b", scores, scores, keep=1, keep_best=2) == ["step_000020", "step_000050"]
    assert write(tmp_path / "c", scores, scores, keep=1, keep_best=0) == ["step_000050"]
    assert write(tmp_path / "e", scores, scores, keep=1) == ["step_000050"]
    scores = {10: float("nan"), 20: 1.0, 30: 0.5, 40: 0.9}  # first, where a comparison with nan leaves it
    assert write(tmp_path / "d", scores, scores, keep=1, keep_best=1) == ["step_000030", "step_000040"]


def test_a_disk_that_fills_in_the_middle_of_a_file_leaves_the_checkpoints_before(tmp_path):
    write(tmp_path, [1])
    large = checkpoint(2)
    large.weights["a"] = torch.zeros(1 << 20)
    writer, deadline = CheckpointWriter(tmp_path, keep=2), time.monotonic() + 20
    with full_disk(1 << 20):  # a real write that fails, in the library
        writer.submit(large)
        while not writer.failed and time.monotonic() < deadline:
            time.sleep(0.01)
    with pytest.raises(CheckpointError, match="step_000002 could not be written .*--resume auto"):
        writer.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
    assert verify_checkpoint(tmp_path / "step_000001") is None


@pytest.mark.parametrize("free,named", [(4000, True), (9000, False)])
def test_a_full_disk_is_named_as_the_cause_once(tmp_path, monkeypatch, capsys, free, named):
    """torch's zip writer says "unexpected pos 2100928 vs 2100816" where a disk is full."""

    def fail(*_):
        raise RuntimeError("unexpected pos 2100928 vs 2100816")

    monkeypatch.setattr(writer_module, "save_checkpoint", fail)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=10000, free=free))
    large = checkpoint(2)
    large.weights["a"] = torch.zeros(2000)

    def train():
        with CheckpointWriter(tmp_path, keep=2) as writer:
            writer.submit(large)
            writer.wait()

    with pytest.raises(CheckpointError) as error:
        train()
    assert ("the disk is full (0.0 MB free for a checkpoint of 0.0 MB)" in str(error.value)) == named
    assert "unexpected pos" in str(error.value)
    assert capsys.readouterr().err == ""  # the script prints the error


FORGED = {
    "too short": b"\x01",
    "header too large": (2**40).to_bytes(8, "little") + b"{}",
    "header is no JSON": (4).to_bytes(8, "little") + b"{{{{",
    "unknown dtype": b'{"a":{"dtype":"X9","shape":[1],"data_offsets":[0,4]}}',
    "offsets beyond the file": b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}',
    "overflow": b'{"a":{"dtype":"F32","shape":[9223372036854775807,9],"data_offsets":[0,4]}}',
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_file_of_weights_is_one_line_with_its_name(tmp_path, kind):
    content = FORGED[kind]
    if content.startswith(b"{"):
        content = len(content).to_bytes(8, "little") + content + bytes(4)
    (tmp_path / WEIGHTS).write_bytes(content)
    with pytest.raises(ValueError, match=f"^{tmp_path / WEIGHTS}: damaged, not safetensors .*") as error:
        read_weights(tmp_path)
    assert "\n" not in str(error.value)


FOREIGN = {
    "text": b"hello",
    "nothing": b"",
    "cut zip": b"PK\x03\x04" + b"x" * 300,
    "a pickle that runs code": b"cos\nsystem\n(S'true'\ntR.",
    "a list": [1, 2],
    "None": None,
    "a tensor": torch.ones(3),
    "an older format": {"old": torch.ones(3)},
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_optimizer_file_is_one_line_with_its_name(tmp_path, kind):
    folder = save_checkpoint(tmp_path, checkpoint(1))
    content, file = FOREIGN[kind], folder / OPTIMIZER
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file, _use_new_zipfile_serialization=kind != "an older format")
    with pytest.raises(ValueError, match=f"^{file}: damaged, ") as error:
        load_checkpoint(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu", 0)])
def test_weights_are_read_on_a_numbered_cpu(tmp_path, device):
    folder = save_checkpoint(tmp_path, checkpoint(1))
    assert read_weights(folder, device)["a"].equal(torch.ones(3, 4))


def test_a_folder_that_cannot_keep_checkpoints_is_found_before_training(tmp_path, monkeypatch):
    try_checkpoint(tmp_path)
    assert list(tmp_path.iterdir()) == []

    def cannot_map(*args, **options):
        raise RuntimeError("unable to mmap 440 bytes: No such device (19)")

    monkeypatch.setattr(torch, "load", cannot_map)
    with pytest.raises(ValueError, match=f"^NANOGKA_BASE_DIR: {tmp_path} cannot keep checkpoints .*unable to mmap"):
        try_checkpoint(tmp_path)
    monkeypatch.setattr(
        checkpoint_module, "_fingerprint", lambda path: {"bytes": path.stat().st_size, "sha256": id(path)}
    )
    with pytest.raises(ValueError, match="is not what the manifest says"):
        try_checkpoint(tmp_path)
    assert list(tmp_path.iterdir()) == []
