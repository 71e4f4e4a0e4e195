"""Read files with a size limit, and write files and folders that are complete or absent.

Runs, tokenizers, corpora and studies may come from other people. Their files are opened by `open_regular`, which
refuses devices, pipes and files that are too large.
"""

import errno
import glob
import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from filelock import BaseFileLock, FileLock, Timeout

from nanogka.common.formatting import say

MAX_YAML_BYTES = 2**15  # the parser is written in Python: 250 KB take it seconds, and a run's configuration has 2 KB
MAX_JSON_BYTES = 2**26
MAX_DATA_BYTES = 2**30
BLOCK = 2**20  # bytes to read at once
NOT_SUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
NO_FOLDER_SYNC = (*NOT_SUPPORTED, errno.EBADF, errno.EACCES, errno.EPERM)
NOTICE_SECONDS = 10.0  # of waiting for a lock
FOREVER = 1e8  # seconds. With an endless wait, filelock 4.1 takes a lock that this process has released for held
MAX_FOLDERS = 256  # in a path
LEFTOVER_SECONDS = 86_400  # a temporary file as old as this belongs to no running process


def base_dir() -> Path:
    """The folder of all outputs: `NANOGKA_BASE_DIR`, or `~/.cache/nanogka`. Raises ValueError if there is no home."""
    named = os.environ.get("NANOGKA_BASE_DIR") or "~/.cache/nanogka"
    if "$" in named or named != named.strip():  # from a file that no shell has read
        raise ValueError(f"NANOGKA_BASE_DIR: got {named!r}, expected a path without variables and blanks at its ends")
    if named != named.encode(errors="replace").decode():
        raise ValueError(f"NANOGKA_BASE_DIR: got {named!r}, expected a path in UTF-8")
    folder = expand_path(named)
    if str(folder).startswith("~"):  # the system does not know the user, or has no home folder for this one
        raise ValueError(f"NANOGKA_BASE_DIR: got {named!r}, whose home folder is unknown; expected another folder")
    return folder


def expand_path(path: str | Path) -> Path:
    """`path` with `~` and `~name` expanded. An unknown user name stays as it is, unlike in `Path.expanduser`.

    Raises ValueError for a path of hundreds of folders, in which `mkdir(parents=True)` would recurse too deeply.
    """
    expanded = Path(os.path.expanduser(path))
    if len(expanded.parts) > MAX_FOLDERS:
        raise ValueError(f"{str(path)[:60]}…: has {len(expanded.parts):,} folders, expected at most {MAX_FOLDERS}")
    return expanded


def open_regular(path: Path, max_bytes: int | None = None) -> BinaryIO:
    """Open a regular file of at most `max_bytes` for reading.

    Raises ValueError for a pipe, device, folder or larger file, and OSError if the system cannot open it. Never blocks.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    regular = stat.S_ISREG(found.st_mode)
    if regular and (max_bytes is None or found.st_size <= max_bytes):
        return open(descriptor, "rb")
    os.close(descriptor)
    wrong = f"has {found.st_size:,} bytes, expected at most {max_bytes:,}" if regular else "is not a regular file"
    raise ValueError(f"{path}: {wrong}")


def read_bytes(path: Path, max_bytes: int = MAX_DATA_BYTES) -> bytes:
    """The content of a regular file."""
    parts, size = [], 0
    with open_regular(path, max_bytes) as file, annotate_oserror(path):
        while part := file.read(BLOCK):  # None where a read would wait, as of /proc/kmsg
            parts.append(part)
            size += len(part)
            if size > max_bytes:  # files of /proc have size 0, whatever they hold
                raise ValueError(f"{path}: has more than {max_bytes:,} bytes")
    return b"".join(parts)


def read_text(path: Path, max_bytes: int = MAX_DATA_BYTES) -> str:
    """The text of a file in UTF-8, without its byte order mark."""
    try:
        return read_bytes(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8") from None


def read_json(path: Path) -> dict:
    """The JSON object in a file."""
    text = read_text(path, MAX_JSON_BYTES)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, not JSON ({first_line(error)})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: damaged, holds {type(content).__name__}, expected an object")
    return content


def read_yaml(path: Path, loader: type = yaml.SafeLoader) -> Any:
    """The YAML in a file."""
    return parse_yaml(read_text(path, MAX_YAML_BYTES), path, loader)


def parse_yaml(text: str, source: object, loader: type = yaml.SafeLoader) -> Any:
    """The YAML in `text`. Raises ValueError that begins with `source`.

    Aliases are rejected, because nine lines of them can expand to gigabytes.
    """
    if len(text) > MAX_YAML_BYTES:
        raise ValueError(f"{source}: has {len(text):,} characters, expected at most {MAX_YAML_BYTES:,}")

    class Loader(loader):
        def compose_node(self, parent: object, index: object) -> object:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("has an alias, expected none")
            return super().compose_node(parent, index)

    try:
        return yaml.load(text, Loader)
    except Exception as error:  # a value such as `!!bool x` makes the constructor raise KeyError, `!!int ''` IndexError
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{source}: cannot be read as YAML ({why})") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def atomic_write(path: Path, content: str | bytes, private: bool = False) -> None:
    """Replace a file by `content`, text in UTF-8. A crash leaves the old file. Only its owner can read a `private` one.

    A link is followed. Content for a pipe or device, such as /dev/null, is written into it.
    """
    path = Path(os.path.realpath(path))
    data = content.encode("utf-8") if isinstance(content, str) else content
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with annotate_oserror(path):
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        try:
            partial.unlink(missing_ok=True)  # it would keep its mode
            # The mode is given at the creation: some file systems have no modes, and refuse to change them.
            with open(
                os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666), "wb"
            ) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    remove_leftovers(path)


def remove_leftovers(path: Path) -> None:
    """Delete day-old temporary files and folders of killed writers of `path`: `.NAME.*.partial` and `.NAME.*.old`.

    Their age decides, because the writer may run on another host or in another container.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with suppress(OSError):
            if left.suffix in (".partial", ".old") and left.stat().st_mtime < time.time() - LEFTOVER_SECONDS:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


@contextmanager
def annotate_oserror(path: Path) -> Iterator[None]:
    """Add `path` to an `OSError` of the system that names no file, for example that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def acquire(lock: FileLock, timeout: float = -1) -> BaseFileLock:
    """Acquire `lock`, which a `with` block releases, as does the system when the process ends.

    Raises OSError that names the folder if no file can be made in it or if its file system has no locks, and
    `filelock.Timeout` after `timeout` seconds; a negative one waits forever, with a notice.
    """
    folder = Path(lock.lock_file).parent
    try:
        with tempfile.TemporaryFile(dir=folder):  # where no file can be made, the lock would wait forever
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, lock.lock_file) from error
    try:
        lock.acquire(NOTICE_SECONDS if timeout < 0 else timeout)
    except Timeout:
        if timeout >= 0:
            raise
        say(f"waiting for {holder_of(lock)}")
        lock.acquire(FOREVER)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, *NOT_SUPPORTED):
            raise OSError(error.errno, error.strerror, lock.lock_file) from error
        why = f"{error.strerror}; the file system of this folder cannot lock files: mount it with locks (flock), or set"
        raise OSError(error.errno, f"{why} NANOGKA_BASE_DIR to a folder on another one", str(folder)) from error
    return lock


def holder_of(lock: FileLock) -> str:
    """Describe the process that holds `lock`.

    A file system without flock has a file for a lock, which names the process. If that has ended, filelock deletes the
    file on the same machine. Elsewhere nobody can know, so the text says what to do.
    """
    process = machine = ""
    with suppress(OSError, ValueError):
        process, machine = (read_text(Path(lock.lock_file), MAX_YAML_BYTES).splitlines() + ["", ""])[:2]
    if not machine:
        return f"another process, which holds {lock.lock_file}"
    remedy = f"if that has ended, delete {lock.lock_file}"
    return f"process {process} on the machine {machine}, which writes here; {remedy}"


def build_once(
    folder: Path,
    write: Callable[[Path], object],
    is_valid: Callable[[Path], bool] = Path.is_dir,
    private: bool = False,
) -> Path:
    """Return `folder`. The first process that finds it missing or not valid lets `write` fill it; others wait.

    `write` gets a hidden folder with another name, so a killed process leaves no half-written `folder`. A `private`
    folder, for copies of the user's own text, is closed to other users.
    """
    if is_valid(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial, lock = (folder.with_name(f".{folder.name}.{end}") for end in ("partial", "lock"))
    with acquire(FileLock(lock)):
        try:
            if not is_valid(folder):
                shutil.rmtree(folder, ignore_errors=True)
                shutil.rmtree(partial, ignore_errors=True)  # an unfinished earlier attempt
                partial.mkdir(mode=0o700 if private else 0o777)
                with annotate_oserror(partial):
                    write(partial)
                os.rename(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            lock.unlink(missing_ok=True)
    return folder


def sha256_of(path: Path, max_bytes: int | None = None) -> str:
    """The SHA-256 of a regular file of at most `max_bytes`, in hexadecimal."""
    digest = hashlib.sha256()
    with open_regular(path, max_bytes) as file, annotate_oserror(path):
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def free_bytes(folder: Path) -> float:
    """Free space on the disk of a folder, which need not exist yet. Infinity if its file system does not say."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        usage = shutil.disk_usage(existing)
    except OSError:
        return math.inf
    return usage.free if usage.total else math.inf  # some mounts of object stores have the size 0


def fsync(path: Path) -> None:
    """Write a file or folder to the disk. A file system that cannot do this for a folder does it in its own time."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:  # some network and shared folders refuse it, although their files are safe
        if error.errno not in NO_FOLDER_SYNC or not path.is_dir():
            raise
