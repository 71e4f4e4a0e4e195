"""The user's own text, .jsonl and .parquet files, as documents and as a corpus.

A line of a .jsonl file is one document: an object with the text under `text`. A small text file (.txt, .md, .rst, .py)
is one document; a longer one is cut at blank lines. Text and .jsonl may be compressed (.gz, .zst).

Text is read once, into parquet shards in `NANOGKA_BASE_DIR/corpora`. Training then reads a corpus like any other, and a
file that changes during a run does no harm.
"""

import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from nanogka.common.files import base_dir, first_line
from nanogka.data.corpus import COLUMN, MANIFEST, Corpus, document_or_none, read_footer, read_row_group, to_texts
from nanogka.data.sharding import build_once, write_corpus
from nanogka.tokenizer import check_text

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
EXPECTED = "a .parquet, .jsonl, .txt, .md, .rst or .py file (all but .parquet also as .gz or .zst), or a folder of them"
FORMAT = 1  # raise when the same files would give other shards
DOCUMENT_CHARS = 8192  # a longer .txt is cut at the first blank line beyond this
LONGEST_CHARS = 4 * DOCUMENT_CHARS  # … or here, if there is no blank line


def kind_of(file: Path) -> str:
    """The kind of a file: its suffix, without that of a compression."""
    return Path(file.stem).suffix if file.suffix in COMPRESSIONS else file.suffix


def find_files(path: Path) -> list[Path]:
    """The parquet files of a folder if it has any, otherwise its text files; or `path`, if it is one of these files."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in files if file.is_file() and not file.name.startswith(".")]
    shards = [file for file in files if file.suffix == ".parquet"]
    found = shards or [file for file in files if kind_of(file) in (*TEXT_SUFFIXES, ".jsonl")]
    if not found:
        csv = any(kind_of(file) == ".csv" for file in files)
        hint = "; for .csv use `scripts.make_shards --dataset FOLDER --column NAME`" if csv else ""
        raise ValueError(f"data: got {str(path)!r}, expected {EXPECTED}{hint}")
    return found


def left_out(path: Path, files: Sequence[Path]) -> str:
    """Describe what a folder has in addition to the files that are read: `; left out: 3 .csv, 1 folder`."""
    used = {file.name for file in files} | {MANIFEST}
    others = [] if path.is_file() else [e for e in path.iterdir() if e.name not in used and not e.name.startswith(".")]
    counts = Counter("folders" if entry.is_dir() else entry.suffix or "without a suffix" for entry in others)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
    return f"; left out: {kinds}" if kinds else ""


def text_corpus(path: Path, files: Sequence[Path]) -> Corpus:
    """The corpus of the user's files. Raises ValueError that names file and line of bad text.

    Its shards are written on the first call for files of these names, sizes and modification times.
    """
    # Their content is not hashed: that would read all text at every start.
    files = sorted(files, key=lambda file: os.fsencode(file.name))
    digest = hashlib.sha256(f"{FORMAT}\n".encode())
    for file in files:
        stat = file.stat()
        digest.update(os.fsencode(file.name) + f"\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    folder = base_dir() / "corpora" / f"text-{digest.hexdigest()[:16]}"
    write = lambda partial: write_corpus(partial, documents(files), source=str(path))  # noqa: E731
    count = f", from {len(files):,} file{'' if len(files) == 1 else 's'}{left_out(path, files)}"
    return Corpus(build_once(folder, write, private=True), name=str(path), note=count)


def documents(files: Sequence[Path], column: str = COLUMN) -> Iterator[str | None]:
    """The documents of the files; None where a row or line has no text."""
    readers = {".parquet": _parquet, ".jsonl": _jsonl} | dict.fromkeys(TEXT_SUFFIXES, _text)
    for file in files:
        yield from readers[kind_of(file)](file, column)


def _parquet(file: Path, column: str) -> Iterator[str | None]:
    read_footer(file, column)
    with pq.ParquetFile(file, page_checksum_verification=True) as opened:
        for group in range(opened.num_row_groups):
            yield from to_texts(read_row_group(opened, file, group, column), file, group)


def _jsonl(file: Path, column: str) -> Iterator[str | None]:
    for number, line in json_lines(file):
        try:
            value = parse_json_line(line)
            if not isinstance(value, dict) or not isinstance(value.get(column), str):
                raise ValueError(f"expected an object with text under {column!r}")
            yield document_or_none(check_text(value[column]))
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: {error}; it begins {line[:60]!r}") from error


def _text(file: Path, _: str) -> Iterator[str | None]:
    try:
        with _open(file) as data, io.TextIOWrapper(data, encoding="utf-8-sig", newline="") as opened:
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


@contextmanager
def _open(file: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes, decompressed if its name says so. Raises ValueError for damaged compression."""
    compression = COMPRESSIONS.get(file.suffix)
    with file.open("rb") as raw:
        if compression is None:
            yield raw
            return
        try:
            with io.BufferedReader(pa.CompressedInputStream(raw, compression)) as opened:
                yield opened
        except OSError as error:
            raise ValueError(f"{file}: cannot be decompressed ({first_line(error)})") from None


def json_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a .jsonl file, which may be compressed, that are not blank, with their numbers from 1."""
    with _open(file) as opened:  # lines of a binary file end at \n only: JSON may contain other line separators
        yield from ((number, line) for number, line in enumerate(opened, 1) if line.strip())


def parse_json_line(data: bytes) -> object:
    """The JSON value in a line of UTF-8, with or without a byte order mark. Raises ValueError without the line's
    place."""
    try:
        return json.loads(data.decode("utf-8-sig").rstrip("\r\n"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
