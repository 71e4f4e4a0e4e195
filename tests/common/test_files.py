"""Files that appear whole or not at all, on a disk that is full too."""

import os
import subprocess

import pytest
from full_disk import full_disk

from nanogka.common.files import annotate_oserror, atomic_write


def test_a_file_is_replaced_whole_or_left_and_a_full_disk_is_named(tmp_path):
    path = tmp_path / "report.md"
    atomic_write(path, "first")
    with full_disk(1000), pytest.raises(OSError, match="report.md"):
        atomic_write(path, "second" * 1000)
    assert path.read_text() == "first"
    atomic_write(path, "zwölf")
    assert path.read_bytes() == "zwölf".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_dead_process_left_half_written_goes_with_the_next_write(tmp_path):
    with subprocess.Popen(["true"]) as process:
        process.wait()
    dead, alive = (tmp_path / f".report.md.{pid}.partial" for pid in (process.pid, os.getppid()))
    other = tmp_path / f".other.md.{process.pid}.partial"
    for path in (dead, alive, other):
        path.write_text("half")
    (tmp_path / f".report.md.{process.pid}.old").mkdir()
    atomic_write(tmp_path / "report.md", "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["report.md", alive.name, other.name])


def test_an_error_that_names_its_file_or_is_not_the_systems_keeps_its_text(tmp_path):
    for error in (FileNotFoundError(2, "gone", "another"), OSError("3 of 4 shards fetched")):
        with pytest.raises(OSError) as raised, annotate_oserror(tmp_path):
            raise error
        assert raised.value is error
