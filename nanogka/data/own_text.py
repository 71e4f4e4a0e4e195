"""The user's own .txt, .jsonl and .parquet files, as documents and as a corpus.

A line of a .jsonl file is one document: an object with the text under `text`. A small .txt file is one document; a
longer one is cut at blank lines. Text is read once, into parquet shards in `NANOGKA_BASE_DIR/corpora`. Training then
reads a corpus like any other, and a file that changes during a run does no harm.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from nanogka.common.files import base_dir
from nanogka.data.corpus import COLUMN, Corpus, document_or_none, read_footer, read_row_group, to_texts
from nanogka.data.sharding import build_once, write_corpus
from nanogka.tokenizer import check_text

SUFFIXES = (".txt", ".jsonl")
FORMAT = 1  # raise when the same files would give other shards
DOCUMENT_CHARS = 8192  # a longer .txt is cut at the first blank line beyond this
LONGEST_CHARS = 4 * DOCUMENT_CHARS  # … or here, if there is no blank line


def find_files(path: Path) -> list[Path]:
    """The parquet files of a folder if it has any, otherwise its text files; or `path`, if it is one of these files."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in files if file.is_file() and not file.name.startswith(".")]
    shards = [file for file in files if file.suffix == ".parquet"]
    found = shards or [file for file in files if file.suffix in SUFFIXES]
    if not found:
        raise ValueError(f"--data: got {str(path)!r}, expected a .parquet, .txt or .jsonl file, or a folder of them")
    return found


def text_corpus(path: Path, files: Sequence[Path]) -> Corpus:
    """The corpus of .txt and .jsonl files. Raises ValueError that names file and line of bad text.

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
    return Corpus(build_once(folder, write, private=True), name=str(path))


def documents(files: Sequence[Path], column: str = COLUMN) -> Iterator[str | None]:
    """The documents of the files; None where a row or line has no text."""
    readers = {".parquet": _parquet, ".jsonl": _jsonl, ".txt": _txt}
    for file in files:
        yield from readers[file.suffix](file, column)


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


def json_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a .jsonl file that are not blank, with their numbers from 1."""
    with file.open("rb") as opened:  # lines of a binary file end at \n only: JSON may contain other line separators
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
