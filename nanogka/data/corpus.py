"""Corpora: the base class `Corpus`, and `ParquetCorpus`, shards in nanochat's format.

A corpus has two splits, `train` and `val`. A split is a sequence of rows: documents, or rows without one (null or
blank). Rows lie in blocks that can be read alone (row groups of a parquet file), blocks in shards. Rows are numbered
through the split; that number and the corpus' fingerprint identify a document, which is all that the state of a loader
has to keep.
"""

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nanogka.data.hashes import hash_files
from nanogka.files import atomic_write, sealed, unsealed
from nanogka.runtime import base_dir

SPLITS = ("train", "val")
FINEWEB = "fineweb-edu"
COLUMN = "text"
CACHED_BLOCKS = 3  # the streams of one loader read at nearly the same place
OPEN_FILES = 4


class Blocks:
    """The blocks of a split, in order.

    Attributes:
        sizes: (N,) int64, rows in each block.
        shards: (N,) int64, number of the shard that each block lies in.
        starts: (N,) int64, number of the first row of each block.
    """

    def __init__(self, sizes: np.ndarray, shards: np.ndarray) -> None:
        self.sizes, self.shards = sizes, shards
        self.starts = np.cumsum(sizes) - sizes

    def of_row(self, row: int) -> int:
        """The number of the block that holds `row`."""
        return int(np.searchsorted(self.starts, row, "right")) - 1


class Corpus(ABC):
    """Documents in two splits.

    Attributes:
        path: where it was opened.
        fingerprint: sha256 (hex) of what it consists of, by which a loader's state and a study know it again.
        content: sha256 (hex) of every byte of it; equal ones give equal documents in equal order.
    """

    path: Path
    fingerprint: str
    content: str

    @abstractmethod
    def blocks(self, split: str) -> Blocks:
        """The blocks of a split. Raises ValueError if there is no such split."""

    @abstractmethod
    def read(self, split: str, block: int, rows: Sequence[int] | None = None) -> list[str | None]:
        """The texts of some rows of a block (all if `rows` is None), None where a row holds no document.

        Raises:
            ValueError: if they cannot be read; the text names file and place.
        """

    @abstractmethod
    def locate(self, split: str, document: int) -> str:
        """File and position, for people, of the document with this row number. Raises IndexError."""

    @abstractmethod
    def describe(self) -> str:
        """One line for people: where the corpus is and what it holds."""

    def documents(self, split: str) -> Iterator[str]:
        """Every document of a split in its fixed order, with one block in memory at a time."""
        for block in range(len(self.blocks(split).sizes)):
            yield from (text for text in self.read(split, block) if text is not None)


class ParquetCorpus(Corpus):
    """Parquet shards with a column `text`, in order of their names.

    The last shard is validation, or the one that the folder's manifest names. A block is a row group; the few that were
    read last are kept in memory. All footers are read when the corpus is opened, so that a damaged shard is found then.

    The fingerprint covers names, sizes and row counts, and the sha256 of every shard that the manifest records one for;
    `content` is of the shards themselves, read once (`nanogka.data.hashes`).
    """

    def __init__(self, path: str | Path, shards: Sequence[Path] | None = None) -> None:
        """Open the shards of the folder `path`, or those given.

        Raises:
            ValueError: on fewer than two shards, a file that is not parquet, a missing or wrong column, an empty split,
                a validation shard that is missing, or a shard that is not the one in the manifest.
        """
        self.path = Path(path)
        manifest = read_manifest(self.path)
        found = sorted(self.path.glob("*.parquet") if shards is None else shards, key=lambda file: file.name)
        self.shards = found if manifest is None else self._validation_last(found, manifest)
        if len(self.shards) < 2:
            names = self.shards[0].name if self.shards else "none"
            raise ValueError(
                f"--data: got {str(self.path)!r} with fewer than two .parquet shards ({names}); takes at least two,"
                " since the last one by name is validation"
            )
        self._lock = threading.Lock()  # loaders of both splits read the same corpus, each from its own thread
        self._files: OrderedDict[int, pq.ParquetFile] = OrderedDict()
        self._columns: OrderedDict[tuple[int, int], pa.ChunkedArray] = OrderedDict()
        self._index((manifest or {}).get("files", {}))

    def _validation_last(self, shards: list[Path], manifest: dict) -> list[Path]:
        name = manifest["validation"]
        if name not in [file.name for file in shards]:
            raise ValueError(
                f"--data: got {str(self.path)!r}, whose validation shard {name} (named by its {MANIFEST}) is missing;"
                f" finish fetching or making the corpus (source: {manifest.get('source', 'unknown')})"
            )
        return sorted(shards, key=lambda file: file.name == name)

    def _index(self, recorded: dict[str, dict]) -> None:
        """Read all footers: the blocks of both splits and the fingerprint. `recorded`: size and sha256 by name."""
        digest = hashlib.sha256()
        sizes, shards, groups = [], [], []
        for shard, file in enumerate(self.shards):
            footer = read_footer(file)
            rows = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
            sizes += rows
            shards += [shard] * len(rows)
            groups += range(len(rows))
            size, record = file.stat().st_size, recorded.get(file.name)
            if record and record["size"] != size:
                raise ValueError(
                    f"{file}: has {size:,} bytes, {MANIFEST} says {record['size']:,}; fetch or make it again"
                )
            digest.update(f"{file.name}\0{size}\0{rows}{record['sha256'] if record else ''}\n".encode())
        self.fingerprint = digest.hexdigest()
        hashes = hash_files(self.shards)
        for file, found in zip(self.shards, hashes):
            if recorded.get(file.name, {}).get("sha256", found) != found:
                raise ValueError(f"{file}: is not what {MANIFEST} says (damaged or changed); fetch or make it again")
        names = (f"{file.name}\0{found}\n" for file, found in zip(self.shards, hashes))
        self.content = hashlib.sha256("".join(names).encode()).hexdigest()
        is_val = np.array(shards) == len(self.shards) - 1
        self._blocks, self._groups = {}, {}
        for split, mask in (("train", ~is_val), ("val", is_val)):
            of_split = [np.array(column, np.int64)[mask] for column in (sizes, shards, groups)]
            self._blocks[split], self._groups[split] = Blocks(*of_split[:2]), of_split[2]
            if not of_split[0].sum():
                names = self.shards[-1].name if split == "val" else "every shard but the last"
                raise ValueError(f"--data: got {str(self.path)!r}, whose {split} split ({names}) has no rows")

    def blocks(self, split: str) -> Blocks:
        return self._blocks[check_split(split)]

    def read(self, split: str, block: int, rows: Sequence[int] | None = None) -> list[str | None]:
        shard, group = self._shard_and_group(split, block)
        with self._lock:
            column = self._column(shard, group)
        try:
            texts = (column if rows is None else column.take(pa.array(rows, pa.int64()))).to_pylist()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.shards[shard]}: row group {group} has text that is not UTF-8 ({error.reason}: byte"
                f" 0x{error.object[error.start]:02x} in a document beginning {error.object[:40]!r})"
            ) from None
        return [document_or_none(text) for text in texts]

    def locate(self, split: str, document: int) -> str:
        blocks = self.blocks(split)
        if not 0 <= document < blocks.sizes.sum():
            raise IndexError(f"document {document}: the {split} split has {blocks.sizes.sum()}")
        block = blocks.of_row(document)
        shard, group = self._shard_and_group(split, block)
        return f"{self.shards[shard].name}, row group {group}, row {document - blocks.starts[block]}"

    def describe(self) -> str:
        train, val = (self._blocks[split].sizes.sum() for split in SPLITS)
        size = sum(file.stat().st_size for file in self.shards)
        return (
            f"{self.path}: {len(self.shards)} parquet shards ({size / 1e6:,.1f} MB), {train:,} training rows,"
            f" {val:,} validation rows ({self.shards[-1].name})"
        )

    def _shard_and_group(self, split: str, block: int) -> tuple[int, int]:
        return int(self.blocks(split).shards[block]), int(self._groups[split][block])

    def _column(self, shard: int, group: int) -> pa.ChunkedArray:
        """The text column of a row group, from the cache or the file; the caller holds the lock."""
        key = (shard, group)
        if key not in self._columns:
            try:
                column = self._open(shard).read_row_group(group, columns=[COLUMN], use_threads=False).column(0)
                # one type for string, large_string and dictionary columns
                self._columns[key] = column.cast(pa.large_string())
            except (pa.ArrowException, OSError) as error:
                raise ValueError(
                    f"{self.shards[shard]}: row group {group} cannot be read ({first_line(error)})"
                ) from error
            if len(self._columns) > CACHED_BLOCKS:
                self._columns.popitem(last=False)
        self._columns.move_to_end(key)
        return self._columns[key]

    def _open(self, shard: int) -> pq.ParquetFile:
        if shard not in self._files:
            self._files[shard] = pq.ParquetFile(self.shards[shard], page_checksum_verification=True)
            if len(self._files) > OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(shard)
        return self._files[shard]


def read_footer(file: Path, column: str = COLUMN) -> pq.FileMetaData:
    """The footer of a parquet file that has `column`, of strings.

    Raises:
        ValueError: if it cannot be read or has no such column; the text names the file.
    """
    try:
        with pq.ParquetFile(file) as opened:
            schema, footer = opened.schema_arrow, opened.metadata
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file}: not a parquet file, or a truncated one ({first_line(error)})") from error
    if column not in schema.names:
        raise ValueError(f"{file}: has the columns {', '.join(schema.names) or '(none)'}, takes one called {column!r}")
    kind = schema.field(column).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value)):
        raise ValueError(f"{file}: the column {column!r} holds {kind}, takes strings")
    return footer


# ---- the manifest: corpus.json, in folders that nanogka fetched or made ----

MANIFEST = "corpus.json"
MANIFEST_FORMAT = 1


def read_manifest(folder: str | Path) -> dict | None:
    """The manifest of a folder of shards, None if it has none.

    `validation` is the name of the validation shard (no other will do, so that an unfinished folder is refused rather
    than read with a training shard for validation); `files`, where present, maps shards to `size` and `sha256`;
    `source` says where the text comes from.

    Raises:
        ValueError: if it cannot be read.
    """
    path = Path(folder) / MANIFEST
    try:
        content = unsealed(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); delete it and fetch or make the corpus again") from None
    known = content.get("format") == MANIFEST_FORMAT
    if not known or not isinstance(content.get("validation"), str):
        raise ValueError(f"{path}: not a manifest of format {MANIFEST_FORMAT}, which this version reads")
    return content


def write_manifest(folder: str | Path, *, validation: str, source: str, **more: object) -> None:
    """Write the manifest of a folder, whole or not at all."""
    path = Path(folder) / MANIFEST
    content = {"format": MANIFEST_FORMAT, "source": source, "validation": validation, **more}
    atomic_write(path, json.dumps(sealed(content), indent=1) + "\n")


# ---- small things that every corpus needs ----


def fineweb_folder() -> Path:
    """The folder of FineWeb-Edu unless another is given."""
    return base_dir() / "corpora" / FINEWEB


def check_split(split: str) -> str:
    """`split`, if there is one of that name. Raises ValueError."""
    if split not in SPLITS:
        raise ValueError(f"split: got {split!r}, takes {' or '.join(SPLITS)}")
    return split


def document_or_none(text: str | None) -> str | None:
    """`text`, or None if it is null or blank."""
    return text if text and not text.isspace() else None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, shortened."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
