"""A disk that is too small for a run's checkpoints is known before the run starts."""

from types import SimpleNamespace

import pytest
from training import newest, saved, train

from nanogka.runs import Run
from nanogka.train import estimate


@pytest.fixture
def room(monkeypatch):
    """`room(size)`: the disk has `size` free bytes."""
    return lambda size: monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=1e15, free=size))


def test_a_run_starts_only_where_two_checkpoints_fit_and_warns_where_not_all_do(base, short, finished, room, capsys):
    folder = finished / "checkpoints" / "step_000005"
    size = estimate.checkpoint_bytes(Run.open(finished).gpt_config)
    on_disk = sum(path.stat().st_size for path in folder.iterdir())
    assert size == pytest.approx(on_disk, rel=0.05)
    room(2 * size - 1)
    assert train(*short) == 2  # saves at 2, 4 and 5: at most three at once
    assert "expected room for 2 checkpoints of" in capsys.readouterr().err
    assert not (base / "runs" / "mine").exists()
    room(2 * size)
    assert train(*short) == 0
    assert "less than the 3 checkpoints" in capsys.readouterr().out
    room(3 * size)
    assert train(*short, "--overwrite") == 0
    assert "WARNING" not in capsys.readouterr().out


def test_checkpoints_that_rotation_deletes_count_as_room(base, short, mine, room):
    room(0)
    assert len(saved(mine)) == 2
    assert train(*short, "--overwrite") == 0
    assert newest(mine).step == 5


def test_a_run_that_saves_once_needs_room_for_one(base, short, room, capsys):
    once = [*short, "--save-every", "0"]
    room(10)
    assert train(*once) == 2
    assert "room for 1 checkpoints" in capsys.readouterr().err
    assert train(*once, "--dry-run") == 0
