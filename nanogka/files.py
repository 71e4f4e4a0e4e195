"""Files that appear whole or not at all, and JSON objects that know whether they are as they were written."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def atomic_write(path: Path, text: str) -> None:
    """Write `text` as UTF-8 under another name, then rename it: a crash leaves the file that was there.

    Raises:
        OSError: naming `path`; what was half-written is removed.
    """
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
    """The sha256 (hex) of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


CHECKSUM = "checksum"


def sealed(content: dict) -> dict:
    """A JSON object with the checksum of all else in it under `checksum`."""
    return {**content, CHECKSUM: _checksum(content)}


def unsealed(content: object) -> dict:
    """The object without its checksum. One that has none, from an earlier version or another hand, is taken as it is.

    Raises:
        ValueError: if it is no object, or not what was written.
    """
    if not isinstance(content, dict):
        raise ValueError(f"got {type(content).__name__}, takes a mapping")
    rest = {name: value for name, value in content.items() if name != CHECKSUM}
    if CHECKSUM in content and content[CHECKSUM] != _checksum(rest):
        raise ValueError("it is not what was written: its checksum differs")
    return rest


def _checksum(content: dict) -> str:
    text = json.dumps({name: value for name, value in content.items() if name != CHECKSUM})
    return hashlib.sha256(text.encode()).hexdigest()[:16]
