"""Files: where they go; only regular ones of bounded size are read; they are written whole or not at all.

Everything of a run, tokenizer, corpus or study that somebody else may have left is opened by `open_regular`.
"""

import glob
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import yaml

SMALL, LARGE = 2**20, 2**30  # bytes that a file of settings, or of data in one piece, has at most


def base_dir() -> Path:
    """The folder of all outputs: `NANOGKA_BASE_DIR`, or `~/.cache/nanogka`."""
    return Path(os.environ.get("NANOGKA_BASE_DIR") or Path.home() / ".cache" / "nanogka").expanduser()


def open_regular(path: Path, most: int | None = None) -> BinaryIO:
    """Open a file to read; ValueError at once for a FIFO, device or folder, and for more than `most` bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    regular = stat.S_ISREG(found.st_mode)
    if regular and (most is None or found.st_size <= most):
        return open(descriptor, "rb")
    os.close(descriptor)
    wrong = f"has {found.st_size:,} bytes, expected at most {most:,}" if regular else "is not a regular file"
    raise ValueError(f"{path}: {wrong}")


def read_bytes(path: Path, most: int = LARGE) -> bytes:
    """The content of a file."""
    with open_regular(path, most) as file:
        return file.read()


def read_text(path: Path, most: int = LARGE) -> str:
    """The text of a file in UTF-8, with or without a byte order mark."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8") from None


def read_json(path: Path) -> dict:
    """The JSON in a file, a mapping."""
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, not JSON ({first_line(error)})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: damaged, holds {type(content).__name__}, expected a mapping")
    return content


def has_form(value: object, example: object) -> bool:
    """True if a JSON value is like another: same types, a mapping with its keys, a list as long, numbers from 0."""
    if isinstance(example, dict):
        return isinstance(value, dict) and all(
            name in value and has_form(value[name], example[name]) for name in example
        )
    if isinstance(example, list):
        return isinstance(value, list) and len(value) == len(example) and all(map(has_form, value, example))
    return type(value) is type(example) and (isinstance(value, str) or 0 <= value < 2**62)


def read_yaml(path: Path, loader: type = yaml.SafeLoader) -> Any:
    """The YAML in a file."""
    return parse_yaml(read_text(path), path, loader)


def parse_yaml(text: str, source: object, loader: type = yaml.SafeLoader) -> Any:
    """The YAML in `text`, which `source` names in errors. Aliases, of which nine lines make gigabytes, are refused."""
    if len(text) > SMALL:
        raise ValueError(f"{source}: has {len(text):,} characters, expected at most {SMALL:,}")

    class Loader(loader):
        def compose_node(self, parent: object, index: object) -> object:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("has an alias, expected none")
            return super().compose_node(parent, index)

    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{source}: cannot be read as YAML ({' '.join(str(error).split())[:200]})") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, shortened."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def atomic_write(path: Path, text: str) -> None:
    """Write `text` as UTF-8 under another name, then rename it: a crash leaves the file that was there."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with annotate_oserror(path):
            with partial.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    remove_leftovers(path)


def remove_leftovers(path: Path) -> None:
    """Delete the `.NAME.PID.partial` and `.NAME.PID.old` beside `path` that processes which are gone have left."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        found = re.fullmatch(r"\.(\d{1,9})\.(partial|old)", left.name.removeprefix(f".{path.name}"))
        try:
            os.kill(int(found[1]) if found else os.getpid(), 0)  # sends nothing
        except ProcessLookupError:
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        except PermissionError:
            pass  # another user's process


@contextmanager
def annotate_oserror(path: Path) -> Iterator[None]:
    """Add `path` to an `OSError` of the system that names no file, as that of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fsync(path: Path) -> None:
    """Have a file or folder written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
