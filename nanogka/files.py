"""Files that appear whole or not at all."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
