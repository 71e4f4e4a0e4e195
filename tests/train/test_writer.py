"""The writer of checkpoints: behind the training's back, one at a time, and never without a word where it fails."""

import threading
import time

import pytest
import torch

from nanogka.checkpoint import Checkpoint, list_checkpoints, load_checkpoint, save_checkpoint, verify_checkpoint
from nanogka.train import writer as writer_module
from nanogka.train.writer import CheckpointError, CheckpointWriter


def checkpoint(step, value=None):
    tensor = torch.full((3, 4), float(step if value is None else value))
    return Checkpoint(step, {"a": tensor}, {"0": {"state": [{"momentum": tensor.clone()}]}}, {"loader": {"row": step}})


def names(folder):
    return [path.name for path in list_checkpoints(folder)]


def write(folder, steps, scores=(), **options):
    with CheckpointWriter(folder, **{"keep": 2, **options}) as writer:
        for step in steps:
            writer.submit(checkpoint(step))
            if step in dict(scores):
                writer.score(step, dict(scores)[step])
    return names(folder)


@pytest.fixture
def held(monkeypatch):
    """Every write waits for this event."""
    event = threading.Event()
    real = save_checkpoint
    monkeypatch.setattr(writer_module, "save_checkpoint", lambda *args: (event.wait(20), real(*args))[1])
    yield event
    event.set()


def test_training_goes_on_while_the_disk_is_busy_and_what_it_changes_is_not_saved(tmp_path, held):
    with CheckpointWriter(tmp_path, keep=2) as writer:
        one = checkpoint(1)
        writer.submit(one)
        assert names(tmp_path) == []  # submit has not waited
        one.weights["a"].fill_(77)
        one.optimizer["0"]["state"][0]["momentum"].fill_(77)
        held.set()
    loaded = load_checkpoint(tmp_path / "step_000001")
    assert loaded.weights["a"].unique().tolist() == [1]
    assert loaded.optimizer["0"]["state"][0]["momentum"].unique().tolist() == [1]


def test_one_write_is_in_flight_at_most_and_a_wait_for_the_disk_is_said(tmp_path, held, monkeypatch):
    monkeypatch.setattr(writer_module, "LONG_WAIT", 0.05)
    said = []
    with CheckpointWriter(tmp_path, keep=2, say=said.append) as writer:
        writer.submit(checkpoint(1))
        threading.Timer(0.2, held.set).start()
        writer.submit(checkpoint(2))
        assert names(tmp_path)[0] == "step_000001"  # before the second began
    assert "too slow for this --save-every" in said[0]


def test_leaving_finishes_the_write_also_on_an_exception(tmp_path, held):
    threading.Timer(0.2, held.set).start()
    writer = CheckpointWriter(tmp_path, keep=2)
    writer.submit(checkpoint(1))
    writer.__exit__(KeyError, KeyError(), None)
    assert verify_checkpoint(tmp_path / "step_000001") is None


def test_the_newest_and_the_best_are_kept(tmp_path):
    scores = {10: 1.5, 20: 1.1, 30: 1.3, 40: float("nan"), 50: 1.2}
    assert write(tmp_path / "a", scores, scores, keep=2, keep_best=1) == ["step_000020", "step_000040", "step_000050"]
    assert write(tmp_path / "b", scores, scores, keep=1, keep_best=2) == ["step_000020", "step_000050"]
    assert write(tmp_path / "c", scores, scores, keep=1, keep_best=0) == ["step_000050"]


def test_damaged_checkpoints_after_the_resumed_one_neither_displace_sound_ones_nor_outlive_the_next(tmp_path):
    for step in (100, 200):
        save_checkpoint(tmp_path, checkpoint(step))
    (tmp_path / "step_000200" / "optimizer.pt").unlink()
    with CheckpointWriter(tmp_path, keep=1, resumed_from=100):
        pass
    assert names(tmp_path) == ["step_000100", "step_000200"]  # nothing new yet: nothing goes
    with CheckpointWriter(tmp_path, keep=1, resumed_from=100) as writer:
        writer.submit(checkpoint(150))
    assert names(tmp_path) == ["step_000150"]


def test_a_disk_that_fills_in_the_middle_of_a_file_leaves_the_checkpoints_before(tmp_path):
    resource = pytest.importorskip("resource")
    write(tmp_path, [1])
    large = checkpoint(2)
    large.weights["a"] = torch.zeros(1 << 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = CheckpointWriter(tmp_path, keep=2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # a real write that fails, in the library
    try:
        writer.submit(large)
        deadline = time.monotonic() + 20
        while not writer.failed and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(CheckpointError, match="step_000002 could not be written .*--resume auto"):
        writer.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
    assert verify_checkpoint(tmp_path / "step_000001") is None
