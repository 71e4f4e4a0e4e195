"""Sources of conversations to learn from: memory, files (.jsonl, .json, .parquet), datasets of the Hugging Face hub."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nanogka.common.errors import Errors
from nanogka.common.files import expand_path, first_line
from nanogka.data.chat_forms import COLUMNS, expected_form, form_of
from nanogka.data.conversation import Conversation
from nanogka.data.corpus import not_parquet
from nanogka.data.hub import Hub
from nanogka.data.own_text import LINES_SUFFIXES, json_entries, kind_of, parse_json_line, read_each, unique_files

VAL_SPLITS = ("test", "validation", "val")
ROWS_AT_ONCE = 256  # of a parquet file: a few compressed bytes can stand for a long text in each row

Entry = tuple[str, Any]  # a conversation as its source stores it, after its place: "talk.jsonl, line 12"


@dataclass(frozen=True)
class ConversationSource:
    """Conversations of one origin. `train` and `val` give their entries from the beginning on each call."""

    name: str
    train: Callable[[], Iterator[Entry]]
    val: Callable[[], Iterator[Entry]] | None  # None: a share of `train`'s, chosen by their text
    convert: Callable[[Any], Conversation]  # makes a conversation of an entry; raises for a bad one
    identity: str = ""  # equal identities mean equal conversations; empty: unknown, so that nothing is kept on disk
    promise: str = ""  # what a model that learned these conversations can do, as a sentence of the model


def file_source(path: str | Path) -> ConversationSource:
    """A file with conversations, or all such files of a folder by name.

    A line of a .jsonl file is an object of a form that `chat_forms` lists. A .json file is a list of such objects, or
    has one per line. Both may be compressed (.gz, .zst). A .parquet file has their keys as columns.
    """
    path = expand_path(path)
    entries = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in entries if kind_of(file) in FILE_READERS and not file.name.startswith(".")]
    if not files:
        expected = "the name of a source, or .jsonl, .json (also as .gz or .zst) or .parquet files"
        raise ValueError(f"data: got {str(path)!r}, expected {expected}")
    errors = Errors()
    for file in files:
        if errors.require(
            file.is_file(), "data", str(file), "a file; this is a dangling link, a folder or no file at all"
        ):
            errors.capture(lambda: kind_of(file) == ".parquet" and _columns(file))  # noqa: B023 (called at once)
    errors.raise_if_any()
    files = unique_files(files)

    def read() -> Iterator[Entry]:
        return read_each(files, lambda file: FILE_READERS[kind_of(file)](file))

    stats = [(os.fsencode(file).hex(), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return ConversationSource(str(path), read, None, _from_file, repr(stats))


def _from_file(value: object) -> Conversation:
    return Conversation.from_json(parse_json_line(value) if isinstance(value, bytes) else value)


def _columns(file: Path) -> list[str]:
    """The columns of a parquet file that a conversation may have. Raises ValueError unless they have a known form."""
    try:
        names = pq.read_schema(file).names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise not_parquet(file, error) from error
    require_form(str(file), names)
    return [name for name in names if name in COLUMNS]


def _parquet(file: Path) -> Iterator[Entry]:
    number, columns = 0, _columns(file)
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            for batch in opened.iter_batches(ROWS_AT_ONCE, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    # A column that other rows have is null here.
                    yield f"{file}, row {number}", {name: value for name, value in row.items() if value is not None}
    except Exception as error:  # damage makes pyarrow and Python raise errors without a common type
        raise ValueError(f"{file}: cannot be read after row {number:,} ({first_line(error)})") from error


FILE_READERS = {".parquet": _parquet} | dict.fromkeys((".json", *LINES_SUFFIXES), json_entries)


def require_form(name: str, columns: Sequence[str]) -> None:
    """Raise ValueError unless a table has the columns of a known form of conversations."""
    if form_of(columns) is None:
        raise ValueError(f"data: {name} has the columns {', '.join(columns)}: {expected_form(columns)}")


def hub_source(
    dataset: str,
    *configs: str,
    convert: Callable[[dict], Conversation] | None = None,
    train: str = "train",
    val: str | None = "",
) -> ConversationSource:
    """A dataset of the Hugging Face hub, or a local folder that `datasets` reads; several configurations are joined.

    `convert` makes a conversation of a row. Without it, the dataset must have a form that `chat_forms` lists. `val`
    names the split for validation. By default it is the first of `VAL_SPLITS` that exists; None: a share of `train`.
    """
    names = [f"{dataset} {config}".strip() for config in configs or ("",)]
    parts = [Hub().load(dataset, config) for config in configs or ("",)]
    for name, splits in zip(names, parts):
        if train not in splits:
            raise ValueError(f"data: {name} has the splits {', '.join(splits)}, expected one called {train}")
        if convert is None:
            require_form(name, splits[train].column_names)
    if val == "":
        val = next((split for split in VAL_SPLITS if split in parts[0]), None)

    def entries(split: str) -> Iterator[Entry]:
        for name, splits in zip(names, parts):
            yield from ((f"{name} {split}, row {number}", row) for number, row in enumerate(splits[split], 1))

    # `datasets` gives a split a fingerprint that follows from its files; the name of `convert` stands for its rules.
    prints = [getattr(splits[split], "_fingerprint", "") for splits in parts for split in (train, val) if split]
    identity = repr((names, prints, convert and f"{convert.__module__}.{convert.__qualname__}")) if all(prints) else ""
    validation = None if val is None else lambda: entries(val)
    convert = convert or Conversation.from_json
    return ConversationSource(", ".join(names), lambda: entries(train), validation, convert, identity)
