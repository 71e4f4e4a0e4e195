"""Corpora: parquet shards in nanochat's format.

A split, `train` or `val`, is a sequence of rows. A row is a document, or empty (null, blank, or with NUL characters,
which no text has). Rows are grouped into blocks (row groups of a parquet file, the unit of reading), and blocks into
shards. The number of a row in its split and the fingerprint of the corpus identify a document, so the state of a loader
contains no text.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nanogka.common.files import atomic_write, first_line, open_regular, read_json
from nanogka.common.formatting import shorten

SPLITS = ("train", "val")
COLUMN = "text"
MANIFEST = "corpus.json"
MAX_DOCUMENT_CHARS = 8_000_000  # the rest of a longer row is dropped: tiktoken needs 40 bytes per character
CACHED_BLOCKS = 3  # the streams of a loader read the same few row groups at the same time
OPEN_FILES = 4
# Types of a column of text. Programs that do not mark text as such write bytes; they are checked when they are read.
TEXT_TYPES = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary, pa.types.is_large_binary,
    pa.types.is_binary_view,
)  # fmt: skip


@dataclass(frozen=True)
class Blocks:
    """The N blocks of a split, in order; every array is (N,) int64."""

    sizes: np.ndarray  # rows in each block
    shards: np.ndarray  # number of the shard that holds each block
    groups: np.ndarray  # number of each block among the row groups of its shard
    starts: np.ndarray  # number of the first row of each block

    def of_row(self, row: int) -> int:
        """The number of the block that holds `row`."""
        return int(np.searchsorted(self.starts, row, "right")) - 1


class Corpus:
    """Parquet shards with a column `text`, by name. The last is validation, or the one that corpus.json names.

    Only the footers are read when it is opened: 240 shards of FineWeb-Edu have 24 GB. `fingerprint` (SHA-256, hex)
    identifies the corpus in loader states, runs and studies. It covers name, size, row counts and recorded SHA-256 of
    each shard. A manifest may record the SHA-256 of a shard's documents. It replaces the file's size and SHA-256, which
    depend on the version of pyarrow. `footers` (SHA-256, hex) covers the footers, which hold the smallest and largest
    text of each row group. So it notices most changes of a text that leave the file's size alone. Raises ValueError
    that names a damaged file.
    """

    def __init__(
        self, folder: str | Path, shards: Sequence[Path] | None = None, name: str = "", note: str = ""
    ) -> None:
        self.folder = Path(folder)
        self.path, self.note = name or self.folder, note  # what the user calls the corpus; the end of its description
        manifest = read_manifest(self.folder) or {}
        self.shards = sorted(self.folder.glob("*.parquet") if shards is None else shards, key=lambda file: file.name)
        if validation := manifest.get("validation"):
            if validation not in [file.name for file in self.shards]:
                raise ValueError(
                    f"data: got {str(self.path)!r}, whose validation shard {validation} (named by its {MANIFEST}) is"
                    f" missing; finish fetching or making the corpus (source: {manifest.get('source', 'unknown')})"
                )
            self.shards.sort(key=lambda file: file.name == validation)
        if len(self.shards) < 2:
            names = self.shards[0].name if self.shards else "none"
            raise ValueError(
                f"data: got {str(self.path)!r} with fewer than two .parquet shards ({names}); expected at least two,"
                " since the last one by name is validation"
            )
        self._lock = threading.Lock()  # loaders of both splits read the same corpus, each from its own thread
        self._open = lru_cache(OPEN_FILES)(partial(pq.ParquetFile, page_checksum_verification=True))
        self._column = lru_cache(CACHED_BLOCKS)(lambda file, group: read_row_group(self._open(file), file, group))
        self._index(manifest.get("files", {}))

    def _index(self, recorded: dict[str, dict]) -> None:
        digest, footers, table = hashlib.sha256(), hashlib.sha256(), []
        for shard, file in enumerate(self.shards):
            metadata, raw = read_footer(file)
            rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            table += [(size, shard, group) for group, size in enumerate(rows)]
            size, record = file.stat().st_size, recorded.get(file.name, {})
            if record.get("size", size) != size:
                raise ValueError(
                    f"{file}: has {size:,} bytes, {MANIFEST} says {record['size']:,}; fetch or make it again"
                )
            identity, tail = record.get("documents_sha256"), ""
            if identity is None:
                identity, tail = size, record.get("sha256", "")
            digest.update(f"{file.name}\0{identity}\0{rows}{tail}\n".encode())
            footers.update(hashlib.sha256(raw).digest())
        self.fingerprint, self.footers = digest.hexdigest(), footers.hexdigest()
        sizes, shards, groups = np.array(table, np.int64).reshape(-1, 3).T
        is_val = shards == len(self.shards) - 1
        self._blocks = {}
        for split, mask in (("train", ~is_val), ("val", is_val)):
            starts = np.cumsum(sizes[mask]) - sizes[mask]
            self._blocks[split] = Blocks(sizes[mask], shards[mask], groups[mask], starts)
            if not sizes[mask].sum():
                names = self.shards[-1].name if split == "val" else "every shard but the last"
                raise ValueError(f"data: got {str(self.path)!r}, whose {split} split ({names}) has no rows")

    def blocks(self, split: str) -> Blocks:
        """The blocks of a split."""
        return self._blocks[split]

    def documents(self, split: str) -> Iterator[str]:
        """Every document of a split in its fixed order, with one block in memory at a time."""
        for block in range(len(self.blocks(split).sizes)):
            yield from (text for text in self.read(split, block) if text is not None)

    def read(self, split: str, block: int, rows: Sequence[int] | np.ndarray | None = None) -> list[str | None]:
        """The texts of some rows of a block (default: all), None where a row holds no document."""
        blocks = self.blocks(split)
        file, group = self.shards[int(blocks.shards[block])], int(blocks.groups[block])
        # The whole block is read, because parquet compresses it as one. Only the wanted rows become Python strings.
        with self._lock:
            column = self._column(file, group)
        if rows is not None:  # `pa.array` would import pandas, which takes a second
            indices = pa.py_buffer(np.ascontiguousarray(rows, np.int64))
            column = column.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, indices]))
        texts = to_texts(column, file, group)
        return [text and text[:MAX_DOCUMENT_CHARS] for text in texts]

    def describe(self) -> str:
        """One line on path, size and number of documents."""
        train, val = (self._blocks[split].sizes.sum() for split in SPLITS)
        size = sum(file.stat().st_size for file in self.shards)
        return (
            f"{self.path}: {len(self.shards)} parquet shards ({size / 1e6:,.1f} MB), {train:,} training rows,"
            f" {val:,} validation rows ({self.shards[-1].name}){self.note}"
        )


def read_footer(file: Path, column: str = COLUMN) -> tuple[pq.FileMetaData, bytes]:
    """The footer of a parquet file, parsed and raw. Raises ValueError unless it has `column`, of strings."""
    try:
        with pq.ParquetFile(file) as opened:
            schema, metadata = opened.schema_arrow, opened.metadata
        with open_regular(file) as opened:  # a parquet file ends with the footer, its length (4 bytes) and "PAR1"
            opened.seek(-8 - metadata.serialized_size, 2)
            raw = opened.read(metadata.serialized_size)
    except (pa.ArrowException, OSError) as error:
        raise not_parquet(file, error) from error
    if column not in schema.names:
        raise ValueError(f"{file}: {missing_column(column, schema.names)}")
    kind = schema.field(schema.names.index(column)).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not any(is_text(value) for is_text in TEXT_TYPES):
        raise ValueError(f"{file}: the column {column!r} holds {kind}, expected strings")
    return metadata, raw


def not_parquet(file: Path, error: Exception) -> ValueError:
    """The error of a file that pyarrow cannot open, with its first bytes: a page of a browser, a pointer of Git LFS."""
    start = b""
    with suppress(OSError, ValueError), open_regular(file) as opened:
        start = opened.read(40)
    begins = "" if start[:4] in (b"PAR1", b"") else f"; it begins {start!r}"
    return ValueError(f"{file}: not a parquet file, or a damaged one ({first_line(error)}{begins})")


def missing_column(column: str, names: Sequence[str]) -> str:
    """The error of a table with columns `names`."""
    hint = "; `scripts.make_shards --column NAME` reads another one" if column == COLUMN else ""
    return f"has the columns {shorten(', '.join(names)) or '(none)'}, expected {column!r}{hint}"


def read_row_group(opened: pq.ParquetFile, file: Path, group: int, column: str = COLUMN) -> pa.ChunkedArray:
    """The text column of a row group of `file`, as large_string whichever string type the file has."""
    try:
        return opened.read_row_group(group, columns=[column], use_threads=False).column(0).cast(pa.large_string())
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file}: row group {group} cannot be read ({first_line(error)})") from error


def to_texts(column: pa.ChunkedArray, file: Path, group: int) -> list[str | None]:
    """The documents of a row group, None for an empty one. Raises ValueError if one is not UTF-8."""
    try:
        return [document_or_none(text) for text in column.to_pylist()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: row group {group} has text that is not UTF-8 ({error.object[:40]!r})") from None


def document_or_none(text: str | None) -> str | None:
    """`text`, or None if it is null or blank, or holds NUL characters, which are binary data and no text."""
    return text if text and not text.isspace() and "\0" not in text else None


def read_manifest(folder: str | Path) -> dict | None:
    """The manifest of a folder of shards, None if it has none."""
    path = Path(folder) / MANIFEST
    try:
        content = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{error}; delete it and fetch or make the corpus again") from None
    # Without the name of the validation shard, the last shard of a half-fetched corpus would pass for it.
    if not isinstance(content.get("validation"), str):
        raise ValueError(f"{path}: names no validation shard; fetch or make the corpus again")
    return content


def write_manifest(folder: str | Path, *, validation: str, source: str, **more: object) -> None:
    """Write corpus.json, which names the validation shard and the source of the text."""
    content = {"source": source, "validation": validation, **more}
    atomic_write(Path(folder) / MANIFEST, json.dumps(content, indent=1) + "\n")
