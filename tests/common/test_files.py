"""Files appear completely or not at all, foreign ones are bounded, and paths with an unknown user name are no error."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock, Timeout
from full_disk import full_disk

from nanogka.common.files import (
    MAX_JSON_BYTES,
    acquire,
    atomic_write,
    base_dir,
    expand_path,
    free_bytes,
    fsync,
    holder_of,
    open_regular,
    parse_yaml,
    read_bytes,
    read_json,
    read_yaml,
    sha256_of,
)


def test_atomic_write_keeps_the_old_file_on_a_full_disk(tmp_path):
    path = tmp_path / "report.md"
    atomic_write(path, "first")
    with full_disk(1000), pytest.raises(OSError, match="report.md"):
        atomic_write(path, "second" * 1000)
    assert path.read_text() == "first"
    atomic_write(path, "zwölf")
    assert path.read_bytes() == "zwölf".encode()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminal device")
def test_atomic_write_follows_links_and_writes_into_devices(tmp_path):
    """A terminal stands for /dev/null, which only root could replace."""
    ours, theirs = os.openpty()
    (tmp_path / "target").write_text("old")
    for name, target in (("link", tmp_path / "target"), ("device", os.ttyname(theirs))):
        (tmp_path / name).symlink_to(target)
        atomic_write(tmp_path / name, "some text")
        assert (tmp_path / name).is_symlink()
    assert (tmp_path / "target").read_text() == "some text"
    assert os.read(ours, 100) == b"some text"


def test_atomic_write_deletes_only_old_leftovers(tmp_path):
    old, folder, fresh, other = (
        tmp_path / name
        for name in (".report.md.12.partial", ".report.md.12.old", ".report.md.13.partial", ".other.md.12.partial")
    )
    folder.mkdir()
    for path in (old, fresh, other):
        path.write_text("half")
    for path in (old, folder, other):
        os.utime(path, (time.time() - 90_000,) * 2)
    atomic_write(tmp_path / "report.md", "whole")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "report.md", fresh, other])


def test_an_unknown_user_name_in_a_path_is_a_plain_name(monkeypatch):
    assert str(expand_path("~no-such-user/x")) == "~no-such-user/x"
    monkeypatch.setenv("HOME", "/somewhere")
    assert str(expand_path("~/x")) == "/somewhere/x"
    monkeypatch.delenv("NANOGKA_BASE_DIR", raising=False)
    assert str(base_dir()) == "/somewhere/.cache/nanogka"


BOMB = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]" for i in range(12))


@pytest.mark.parametrize("text", ["x: !!bool foo", "x: !!timestamp foo", "x: !!int ''", "a: {", "[" * 5000, BOMB])
def test_any_bad_yaml_is_one_error(text):
    with pytest.raises(ValueError, match=r"^config\.yaml: "):
        parse_yaml(text, "config.yaml")


def test_yaml_that_would_take_seconds_is_refused_at_once(tmp_path):
    (path := tmp_path / "config.yaml").write_text("x: 1\n" * 10_000)
    with pytest.raises(ValueError, match=f"{path}: has 50,000 bytes, expected at most 32,768"):
        read_yaml(path)
    with pytest.raises(ValueError, match="expected at most 32,768"):
        parse_yaml("x: 1\n" * 10_000, "config.yaml")


def test_a_private_file_is_its_owners_alone_from_the_start(tmp_path):
    for private, mode in ((False, 0o666 & ~umask()), (True, 0o600)):
        atomic_write(tmp_path / str(private), "mine", private=private)
        assert (tmp_path / str(private)).stat().st_mode & 0o777 == mode


def umask():
    """The mask of new files' modes."""
    os.umask(found := os.umask(0))
    return found


def test_sizes_and_kinds_of_files_are_bounded(tmp_path):
    sparse, pipe = tmp_path / "sparse.json", tmp_path / "pipe"
    with sparse.open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    os.mkfifo(pipe)
    for path, why in ((sparse, "expected at most"), (pipe, "not a regular file"), (tmp_path, "not a regular file")):
        with pytest.raises(ValueError, match=f"{path}: .*{why}"):
            read_json(path)
    with pytest.raises(ValueError, match="expected at most 3"):
        open_regular(sparse, 3)


NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EACCES)


@pytest.mark.parametrize("code", NO_FOLDER_SYNC)
def test_a_folder_that_cannot_be_synced_is_no_error_and_a_file_is(tmp_path, monkeypatch, code):
    def refuse(descriptor):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    fsync(tmp_path)
    (tmp_path / "a").write_text("a")
    with pytest.raises(OSError, match=os.strerror(code)):
        fsync(tmp_path / "a")


def test_a_disk_that_fails_is_an_error_of_folders_too(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        fsync(tmp_path)


@pytest.mark.parametrize("read", [read_bytes, sha256_of])
def test_a_disk_that_fails_while_it_is_read_names_the_file(tmp_path, monkeypatch, read):
    class Failing:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def read(self, _):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("nanogka.common.files.open_regular", lambda *_: Failing())
    with pytest.raises(OSError, match=str(tmp_path / "a")):
        read(tmp_path / "a")


def test_free_space_that_a_file_system_does_not_say_is_no_limit(tmp_path, monkeypatch):
    assert 0 < free_bytes(tmp_path / "none" / "yet") < 1e18
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=0, free=0))
    assert free_bytes(tmp_path) == float("inf")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=9, free=0))
    assert free_bytes(tmp_path) == 0

    def refuse(_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("shutil.disk_usage", refuse)
    assert free_bytes(tmp_path) == float("inf")


def test_a_private_file_is_written_where_modes_cannot_be_changed(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    for name in ("chmod", "fchmod"):  # as on exFAT and some network folders
        monkeypatch.setattr(os, name, refuse)
    atomic_write(tmp_path / "mine", "text", private=True)
    assert (tmp_path / "mine").read_text() == "text"


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_works_or_is_named_and_never_waits(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / ".x.lock"
    if code == errno.ENOSYS:  # filelock then uses a file that must not exist
        with pytest.warns(UserWarning, match="soft|lock"), acquire(FileLock(path)):
            assert path.exists()
    else:
        with pytest.raises(OSError, match=f"cannot lock files: .* NANOGKA_BASE_DIR .*'{tmp_path}'"):
            acquire(FileLock(path))


HOLD = """
import errno, fcntl, sys, warnings
def refuse(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")
fcntl.flock = refuse
warnings.simplefilter("ignore")
from filelock import FileLock, Timeout
lock = FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_without_flock_a_killed_holder_on_this_machine_blocks_nobody_and_one_on_another_is_named(
    tmp_path, monkeypatch, capsys
):
    path = tmp_path / ".x.lock"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], text=True, **pipes)
    assert holder.stdout.readline() == "held\n"

    def refuse(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr("nanogka.common.files.NOTICE_SECONDS", 0.2)
    warnings.simplefilter("ignore")
    try:
        assert holder_of(FileLock(path)).startswith(f"process {holder.pid} on the machine {socket.gethostname()}")
        with pytest.raises(Timeout):
            acquire(FileLock(path), timeout=0)
    finally:
        holder.kill()
        holder.communicate()
    with acquire(FileLock(path)):
        record = path.read_text()
    # What a killed holder on another machine leaves. It is deleted by hand while this process waits.
    path.write_text(record.replace(str(os.getpid()), "4711").replace(socket.gethostname(), "node-17"))
    threading.Timer(1.0, path.unlink).start()
    with acquire(FileLock(path)):
        said = capsys.readouterr().err
    assert (
        f"waiting for process 4711 on the machine node-17, which writes here; if that has ended, delete {path}" in said
    )


def test_a_process_that_waits_for_another_says_so(tmp_path, monkeypatch, capsys):
    path = tmp_path / ".x.lock"
    monkeypatch.setattr("nanogka.common.files.NOTICE_SECONDS", 0.1)
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        threading.Timer(0.5, fcntl.flock, (held, fcntl.LOCK_UN)).start()
        with acquire(FileLock(path)):
            pass
    assert capsys.readouterr().err == f"waiting for another process, which holds {path}\n"


def test_a_lock_where_no_file_can_be_made_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        acquire(FileLock(tmp_path / "none" / ".x.lock"))


@pytest.mark.parametrize("named", [None, "~", "~/x", "~nobody-known/x"])
def test_a_user_without_a_home_is_told_to_name_a_folder(monkeypatch, named):
    monkeypatch.setattr(os.path, "expanduser", lambda path: os.fspath(path))  # as without HOME and a passwd entry
    monkeypatch.setenv("NANOGKA_BASE_DIR", named) if named else monkeypatch.delenv("NANOGKA_BASE_DIR", raising=False)
    with pytest.raises(ValueError, match="^NANOGKA_BASE_DIR: got .*whose home folder is unknown"):
        base_dir()


@pytest.mark.parametrize("named", ["$HOME/x", "/data/$USER", " ", "/data\n", os.fsdecode(b"/data/\xff")])
def test_a_base_folder_that_no_shell_has_read_or_is_not_utf8_is_refused(monkeypatch, named):
    monkeypatch.setenv("NANOGKA_BASE_DIR", named)
    expected = "in UTF-8" if "data/\udcff" in named else "without variables and blanks"
    with pytest.raises(ValueError, match=f"^NANOGKA_BASE_DIR: got .*, expected a path {expected}"):
        base_dir()


def test_a_path_of_hundreds_of_folders_is_refused():
    assert expand_path("a/" * 200) == Path("a/" * 200)
    with pytest.raises(ValueError, match="has 1,500 folders, expected at most"):
        expand_path("a/" * 1500)
