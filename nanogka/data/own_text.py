"""The user's own text, .jsonl, .csv and .parquet files, as documents and as a corpus.

A line of a .jsonl file is one document: an object with the text under `text`. So is an element of a list in a .json
file, and a row of a .csv file, whose first line names the columns. A small text file (.txt, .md, .rst, .py) is one
document; a longer one is cut at blank lines. All but parquet may be compressed (.gz, .zst).

Text is read once, into parquet shards in `NANOGKA_BASE_DIR/corpora`. Training then reads a corpus like any other, and a
file that changes during a run does no harm.
"""

import csv
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from nanogka.common.errors import Errors
from nanogka.common.files import (
    MAX_DATA_BYTES,
    MAX_JSON_BYTES,
    annotate_oserror,
    base_dir,
    build_once,
    expand_path,
    first_line,
    open_regular,
)
from nanogka.common.formatting import first_few, shorten
from nanogka.data.corpus import (
    COLUMN,
    MANIFEST,
    Corpus,
    document_or_none,
    missing_column,
    read_footer,
    read_row_group,
    to_texts,
)
from nanogka.data.sharding import write_corpus
from nanogka.tokenizer import check_text

T = TypeVar("T")

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py")
LINES_SUFFIXES = (".jsonl", ".ndjson")
TABLE_SUFFIXES = (".csv", ".tsv")
DELIMITERS = ",;\t|"  # of .csv files, the usual one first; spreadsheets write others in some countries
SEPARATOR_LINE = re.compile(r"sep=(.)", re.I)  # a first line that spreadsheets write and read
COMPRESSIONS = (".gz", ".zst")
# Of encodings that are not UTF-8; the longer ones first, because they begin like others.
BYTE_ORDER_MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
# The first bytes of files that are no text, and what to do with them.
FORMATS = {
    b"\x1f\x8b": "compressed with gzip; its name must end with .gz",
    b"(\xb5/\xfd": "compressed with zstd; its name must end with .zst",
    b"BZh": "compressed with bzip2; decompress it",
    b"\xfd7zXZ": "compressed with xz; decompress it",
    b"PK\3\4": "a .zip, .docx or .xlsx file; extract its text",
    b"%PDF": "a PDF; extract its text",
}
# Files that describe the data next to them.
ABOUT = re.compile(r"(readme|licen[cs]e|notice|citation|changelog)\b.*|(dataset_infos?|dataset_dict|state)\.json", re.I)
EXPECTED = (
    "a .parquet, .jsonl, .json, .txt, .md, .rst, .py, .csv or .tsv file (not .parquet: also .gz, .zst), or a folder of"
    " them"
)
SKIP_HINT = "; correct them, or leave them out with `scripts.make_shards --bad-files skip`"
OTHER_SPLIT = re.compile(r"(?<![a-z])(test|testing|eval|evaluation|val|valid|validation|dev)(?![a-z])", re.IGNORECASE)
FORMAT = 3  # raise when the same files would give other shards
DOCUMENT_CHARS = 8192  # a longer .txt is cut at the first blank line beyond this
LONGEST_CHARS = 4 * DOCUMENT_CHARS  # … or here, if there is no blank line


def kind_of(file: Path) -> str:
    """The kind of a file: its suffix in small letters, without that of a compression."""
    name = Path(file.name.lower())
    return Path(name.stem).suffix if name.suffix in COMPRESSIONS else name.suffix


def find_files(path: Path) -> list[Path]:
    """The parquet files of a folder, if it has none its text files, then its tables, then its .json files.

    Of a folder that has only folders, and perhaps a README, as the corpora of the hub have, the parquet files in these.
    A README alone counts as text if it describes nothing else. Or `path`, if it is one of these files. Raises
    ValueError if there is none.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in files if file.is_file() and not file.name.startswith(".")]
    data = [file for file in files if not (path.is_dir() and ABOUT.fullmatch(file.name))]
    shards = [file for file in data or _below(path) if kind_of(file) == ".parquet"]
    texts = [file for file in files if kind_of(file) in (*TEXT_SUFFIXES, *LINES_SUFFIXES)]
    if (data or _folders(path)) and set(texts).isdisjoint(data):  # nothing but a README, of other data
        texts = []
    tables, lists = ([file for file in data if kind_of(file) in tier] for tier in (TABLE_SUFFIXES, (".json",)))
    found = shards or texts or tables or lists
    if not found:
        raise ValueError(f"data: got {str(path)!r}, expected {EXPECTED}{_remedy(path, data)}")
    return unique_files(found)


def _folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []


def _below(path: Path) -> list[Path]:
    """The files in all subfolders of a folder, without hidden ones."""
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        found += [file for file in files if file.is_file()]
    return found


def unique_files(files: Sequence[Path]) -> list[Path]:
    """The first of the names of each file: two names, as links give them, are one text."""
    return list({(file.stat().st_dev, file.stat().st_ino): file for file in reversed(files)}.values())[::-1]


def _remedy(path: Path, files: Sequence[Path]) -> str:
    """Advice if nothing in `path` can be read, from what it is or holds."""
    if path.exists() and not path.is_file() and not path.is_dir():
        return "; it is a pipe or a device: write its content to a file first"
    if any(kind_of(file) == ".arrow" for file in files):
        return "; `scripts.make_shards --dataset` reads a folder that `datasets` saved"
    if (folders := _folders(path)) and not files:
        return f"; it has only subfolders, and no .parquet files in them: name one of them ({first_few(folders)})"
    return ""


def left_out(path: Path, files: Sequence[Path]) -> str:
    """Describe what a folder has in addition to the files that are read: `; left out: 3 .csv, 1 folders`.

    Entries that look like text and are not read are named, because their users expect them to be.
    """
    used = {MANIFEST} if path.is_file() else {MANIFEST} | {file.relative_to(path).parts[0] for file in files}
    others = [] if path.is_file() else [e for e in path.iterdir() if e.name not in used and not e.name.startswith(".")]
    kinds: dict[str, list[str]] = {}
    for entry in sorted(others):
        kinds.setdefault(_why_left_out(entry, files), []).append(entry.name)
    told = [
        f"{len(names):,} {kind}" + (f" ({first_few(names)})" if kind in NAMED_KINDS else "")
        for kind, names in sorted(kinds.items(), key=lambda item: -len(item[1]))
    ]
    return f"; left out: {', '.join(told)}" if told else ""


DANGLING, NOT_A_FILE, TWICE = NAMED_KINDS = ("dangling links", "pipes or devices", "further names of a file")


def _why_left_out(entry: Path, files: Sequence[Path]) -> str:
    if entry.is_dir():
        return "folders"
    if not entry.exists():
        return DANGLING
    if not entry.is_file():
        return NOT_A_FILE
    if any(entry.samefile(file) for file in files):
        return TWICE
    return entry.suffix or "without a suffix"


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
    write = lambda partial: write_corpus(partial, documents(files, hint=SKIP_HINT), source=str(path))  # noqa: E731
    count = f", from {len(files):,} file{'' if len(files) == 1 else 's'}{left_out(path, files)}"
    return Corpus(build_once(folder, write, private=True), name=str(path), note=count)


def documents(files: Sequence[Path], column: str = COLUMN, hint: str = "") -> Iterator[str | None]:
    """The documents of the files; None where a row or line has no text.

    Raises ValueError after the last file if some are bad, with a line for each, the first fault in it and `hint`.
    """
    yield from read_each(files, lambda file: _documents_of(file, column), hint)


def read_each(files: Sequence[Path], read: Callable[[Path], Iterator[T]], hint: str = "") -> Iterator[T]:
    """Yield what `read` gives of each file. Raises one ValueError at the end that names every bad file."""
    errors = Errors()
    for file in files:
        try:
            with annotate_oserror(file):
                yield from read(file)
        except ValueError as error:
            errors.extend(error)
    if errors.lines and len(files) > 1:
        errors.lines.append(f"data: {len(errors.lines)} of {len(files):,} files cannot be read{hint}")
    errors.raise_if_any()


def readable(files: Sequence[Path], column: str, log: Callable[[str], None]) -> list[Path]:
    """The files whose documents can all be read; a line to `log` about each of the others. Reads all text."""
    found = []
    for file in files:
        try:
            for _ in _documents_of(file, column):
                pass
        except ValueError as error:
            log(f"left out: {error}")
        else:
            found.append(file)
    if not found:
        raise ValueError(f"data: got {len(files):,} files, expected at least one that can be read")
    return found


def _documents_of(file: Path, column: str) -> Iterator[str | None]:
    readers = {".parquet": _parquet, ".json": _json} | dict.fromkeys(LINES_SUFFIXES, _json)
    readers |= dict.fromkeys(TABLE_SUFFIXES, _csv) | dict.fromkeys(TEXT_SUFFIXES, _text)
    return readers[kind_of(file)](file, column)


def _parquet(file: Path, column: str) -> Iterator[str | None]:
    read_footer(file, column)
    with pq.ParquetFile(file, page_checksum_verification=True) as opened:
        for group in range(opened.num_row_groups):
            yield from to_texts(read_row_group(opened, file, group, column), file, group)


def _json(file: Path, column: str) -> Iterator[str | None]:
    for place, entry in json_entries(file):
        try:
            value = parse_json_line(entry) if isinstance(entry, bytes) else entry
            # A row without text is null here, as it is in a parquet file.
            if not isinstance(value, dict) or not isinstance(text := value.get(column, 0), str | None):
                raise ValueError(f"expected an object with text under {column!r}")
            yield text and document_or_none(check_text(text))
        except ValueError as error:
            begins = f"it begins {entry[:60]!r}" if isinstance(entry, bytes) else f"got {shorten(repr(entry))}"
            raise ValueError(f"{place}: {error}; {begins}") from error


def _text(file: Path, _: str) -> Iterator[str | None]:
    try:
        with _open(file) as data, io.TextIOWrapper(data, encoding="utf-8-sig", newline="") as opened:
            text = ""
            # readline has a limit, so that a file without line ends is never in memory as a whole.
            while line := opened.readline(DOCUMENT_CHARS):
                if "\0" in line:  # valid UTF-8, but what no text has
                    raise ValueError(f"{file}: holds NUL characters, so it is binary or UTF-16{_encoding_hint(file)}")
                text += line
                if (len(text) >= DOCUMENT_CHARS and not line.strip()) or len(text) >= LONGEST_CHARS:
                    yield document_or_none(text)
                    text = ""
            if text:
                yield document_or_none(text)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(f"{file}: not UTF-8 (byte 0x{byte:02x}){_encoding_hint(file)}") from None


def _csv(file: Path, column: str) -> Iterator[str | None]:
    # Every field is text: also the words NA, null and None, which other readers take for missing values.
    csv.field_size_limit(MAX_JSON_BYTES)
    with _open(file) as data, io.TextIOWrapper(data, encoding="utf-8-sig", newline="") as opened:
        lines = _LimitedLines(file, opened)
        try:
            head = _up_to_text(lines)
            delimiter = _delimiter(head, column)
            if named := SEPARATOR_LINE.fullmatch(head[-1].strip()) if head else None:
                head, delimiter = _up_to_text(lines), named[1]
            rows = csv.reader(itertools.chain(head, lines), strict=True, delimiter=delimiter)
            names = [name.strip() for name in next(filter(None, rows), [])]
            if names.count(column) != 1:
                twice = f"has {names.count(column)} columns {column!r}, expected one"
                raise ValueError(f"{file}: {twice if column in names else missing_column(column, names)}")
            at = names.index(column)
            for row in rows:
                lines.chars = 0
                if row and len(row) != len(names):
                    wrong = f"has {len(row)} fields, expected {len(names)} as in the first line"
                    raise ValueError(f"{file}, line {lines.number}: {wrong}")
                if row:
                    yield document_or_none(row[at])
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise ValueError(f"{file}: not UTF-8 (byte 0x{byte:02x}){_encoding_hint(file)}") from None
        except csv.Error as error:
            remedy = "a quote within a quoted field is written twice"
            raise ValueError(f"{file}, line {lines.number}: {error}; {remedy}") from None


def _up_to_text(lines: Iterable[str]) -> list[str]:
    """The first line that is not blank, after those before it."""
    found = []
    for line in lines:
        found.append(line)
        if line.strip():
            break
    return found


def _delimiter(head: Sequence[str], column: str) -> str:
    """The character between the columns of a table, whose first line is the last of `head`."""
    for delimiter in DELIMITERS:
        with suppress(csv.Error):  # a name with a line end, which is cut here
            if column in (name.strip() for name in next(csv.reader(head[-1:], strict=True, delimiter=delimiter), [])):
                return delimiter
    return DELIMITERS[0]


class _LimitedLines:
    """The lines of a .csv file. Raises ValueError for rows that are too long, which a few compressed bytes can hold."""

    def __init__(self, file: Path, opened: io.TextIOBase) -> None:
        self.file, self.opened = file, opened
        self.chars = 0  # of the lines since the last row, which may have many: set to 0 after each row
        self.number = 0  # of the last line, from 1

    def __iter__(self) -> Iterator[str]:
        while line := self.opened.readline(MAX_JSON_BYTES):
            self.chars += len(line)
            self.number += 1
            if self.chars >= MAX_JSON_BYTES or "\0" in line:
                long = f"has a row of {MAX_JSON_BYTES:,} characters or more"
                wrong = "holds NUL characters" if "\0" in line else long
                raise ValueError(f"{self.file}: {wrong}, expected text")
            yield line


def _encoding_hint(file: Path) -> str:
    """Advice on a text file that is not UTF-8, from its first bytes."""
    with _open(file) as opened:
        start = opened.read(64)
    # Windows' own encoding has the letters of Latin-1, and quotes and dashes where Latin-1 has control characters.
    encoding = ("UTF-16BE" if start[:1] == b"\0" else "UTF-16LE") if b"\0" in start else "CP1252"
    return _hint(start) or f"; if it is {encoding}, convert it with `iconv -f {encoding} -t UTF-8`"


def _hint(start: bytes) -> str:
    """Advice on bytes that are not UTF-8 and begin with a known mark, else an empty string."""
    for mark, name in BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return f"; it is {name}, convert it with `iconv -f {name} -t UTF-8`"
    return next((f"; it is {what}" for mark, what in FORMATS.items() if start.startswith(mark)), "")


@contextmanager
def _open(file: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes, decompressed if its name says so. Raises ValueError for damaged compression."""
    with open_regular(file) as raw:
        compression = file.suffix.lower()
        if compression not in COMPRESSIONS:
            yield raw
            return
        if not os.fstat(raw.fileno()).st_size:  # gzip takes it for no text; it is a transfer that failed
            raise ValueError(f"{file}: is empty, expected compressed text")
        try:
            # Python's gzip accepts zeros behind the end, as tapes and some downloads leave them; pyarrow's does not.
            packed = gzip.GzipFile(fileobj=raw) if compression == ".gz" else pa.CompressedInputStream(raw, "zstd")
            with io.BufferedReader(packed) as opened:
                yield opened
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{file}: cannot be decompressed ({first_line(error)})") from None


def json_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a .jsonl file, which may be compressed, that are not blank, with their numbers from 1.

    Raises ValueError for a line of more than 64 MiB, which a few compressed bytes can hold.
    """
    with _open(file) as opened:  # lines of a binary file end at \n only: JSON may contain other line separators
        for number, line in enumerate(iter(lambda: opened.readline(MAX_JSON_BYTES + 1), b""), 1):
            if len(line) > MAX_JSON_BYTES:
                raise ValueError(
                    f"{file}, line {number}: has more than {MAX_JSON_BYTES:,} bytes, expected at most that"
                )
            if line.strip():
                yield number, line


def parse_json_line(data: bytes) -> object:
    """The JSON value in a line of UTF-8, with or without a byte order mark. Raises ValueError without the line's
    place."""
    try:
        return json.loads(data.decode("utf-8-sig").rstrip("\r\n"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}{_hint(data)}") from None
    except json.JSONDecodeError as error:
        hint = "; a value of several lines belongs in a .json file" if data.strip() in (b"[", b"{") else ""
        raise ValueError(f"{error.msg} at column {error.colno}{hint}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_entries(file: Path) -> Iterator[tuple[str, Any]]:
    """The values in a file of JSON, after their places: the lines of a .jsonl file as bytes, or the elements of a list.

    Many files with an object per line, or with a single one, are called .json. Raises ValueError that names the file.
    """
    if kind_of(file) in LINES_SUFFIXES or _has_json_lines(file):
        yield from ((f"{file}, line {number}", line) for number, line in json_lines(file))
        return
    with _open(file) as opened:
        data = opened.read(MAX_DATA_BYTES + 1)
    if len(data) > MAX_DATA_BYTES:
        raise ValueError(f"{file}: has more than {MAX_DATA_BYTES:,} bytes; write one object per line, as .jsonl")
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 (byte 0x{error.object[error.start]:02x}){_encoding_hint(file)}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: is not JSON ({first_line(error)})") from None
    values = content if isinstance(content, list) else [content]
    yield from ((f"{file}, number {number}", value) for number, value in enumerate(values, 1))


def _has_json_lines(file: Path) -> bool:
    """True if the first line of a file is a JSON object and others follow."""
    try:
        lines = [parse_json_line(line) for _, line in itertools.islice(json_lines(file), 2)]
    except ValueError:
        return False
    return len(lines) == 2 and isinstance(lines[0], dict)


def csv_dataset(name: str, split: str) -> Path | None:
    """The folder or file of .csv files that a dataset's name stands for, None if `datasets` must read it."""
    path = expand_path(name)
    files = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
    kinds = {kind_of(file) for file in files if file.exists() and not file.name.startswith(".")}
    other = split != "train" or any(OTHER_SPLIT.search(file.name) for file in files)
    return path if ".csv" in kinds and kinds <= {".csv", ".md"} and not other else None
