"""The user's own .txt, .jsonl and .parquet files, as documents and as a corpus.

A line of a .jsonl file is one document: an object with the text under `text`. A small .txt file is one document; a
longer one is cut at blank lines. Text is read once, into parquet shards in `NANOGKA_BASE_DIR/corpora`: what trains is
then a corpus like any other, and a file that changes meanwhile does no harm.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from filelock import FileLock

from nanogka.common.files import base_dir
from nanogka.data.corpus import COLUMN, MANIFEST, Corpus, document_or_none, read_footer, read_row_group, to_texts
from nanogka.data.sharding import VAL_SHARE, atomic_directory, write_corpus
from nanogka.tokenizer import check_text

SUFFIXES = (".txt", ".jsonl")
FORMAT = 1  # raise when the same files would give other shards
DOCUMENT_CHARS = 8192  # a longer .txt is cut at the first blank line beyond this
LONGEST_CHARS = 4 * DOCUMENT_CHARS  # ... or here, if there is no blank line


def text_corpus(path: Path, files: Sequence[Path]) -> Corpus:
    """The corpus of .txt and .jsonl files; its shards are written on the first call for files of these names, sizes and
    times. Concurrent calls wait for the first. ValueError names file and line of bad text."""
    files = sorted(files, key=lambda file: os.fsencode(file.name))
    digest = hashlib.sha256(f"{FORMAT}\n".encode())
    for file in files:
        stat = file.stat()
        digest.update(os.fsencode(file.name) + f"\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    folder = base_dir() / "corpora" / f"text-{digest.hexdigest()[:16]}"
    if not (folder / MANIFEST).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if not (folder / MANIFEST).exists():
                with atomic_directory(folder) as partial:
                    size = sum(file.stat().st_size for file in files)
                    write_corpus(partial, documents(files), source=str(path), total_bytes=size)
    return Corpus(folder, name=str(path))


def documents(files: Sequence[Path], column: str = COLUMN) -> Iterator[str | None]:
    """The documents of the files; None where a row or line has no text."""
    readers = {".parquet": _parquet, ".jsonl": _jsonl, ".txt": _txt}
    for file in files:
        yield from readers[file.suffix](file, column)


def choose_validation(hashes: np.ndarray) -> np.ndarray:
    """The mask (N,) bool of the validation documents, by their hashes (N,) uint64 alone: equal ones stay together."""
    is_val = hashes < np.uint64(int(VAL_SHARE * 2**64))
    if not is_val.any():
        is_val = hashes == hashes.min()
    if is_val.all():
        is_val = hashes != hashes.max()
    return is_val


def _parquet(file: Path, column: str) -> Iterator[str | None]:
    read_footer(file, column)
    with pq.ParquetFile(file, page_checksum_verification=True) as opened:
        for group in range(opened.num_row_groups):
            yield from to_texts(read_row_group(opened, file, group, column), file, group)


def _jsonl(file: Path, column: str) -> Iterator[str | None]:
    with file.open("rb") as opened:  # lines of a binary file end at \n only: JSON may contain other line separators
        for number, line in enumerate(opened, 1):
            if not line.strip():
                continue
            try:
                value = parse_json_line(line)
                if not isinstance(value, dict) or not isinstance(value.get(column), str):
                    raise ValueError(f"expected an object with text under {column!r}")
                yield document_or_none(check_text(value[column]))
            except ValueError as error:
                raise ValueError(f"{file}, line {number}: {error}; it begins {line[:60]!r}") from error


def _txt(file: Path, _: str) -> Iterator[str | None]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            text = ""
            # readline has a limit, so that a file without line ends is never in memory as a whole.
            while line := opened.readline(DOCUMENT_CHARS):
                text += line
                if (len(text) >= DOCUMENT_CHARS and not line.strip()) or len(text) >= LONGEST_CHARS:
                    yield document_or_none(text)
                    text = ""
            if text:
                yield document_or_none(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 (byte 0x{error.object[error.start]:02x}); save it as UTF-8") from None


def parse_json_line(data: bytes) -> object:
    """The JSON value in a line of UTF-8, with or without a byte order mark; ValueError without the line's place."""
    try:
        return json.loads(data.decode("utf-8-sig").rstrip("\r\n"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
