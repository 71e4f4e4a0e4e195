"""A corpus of parquet shards with a column `text`: nanochat's format.

Shards are taken in order of their names and the last is validation, or the one that the folder's corpus.json names (see
`nanogka.data.marker`). A block is a row group: only one of them, and the
last few read, is ever in memory. Footers are read when the corpus is opened, so that a damaged shard is found then.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nanogka.data.corpus import Corpus, check_split, document_or_none
from nanogka.data.marker import read_marker

COLUMN = "text"
CACHED_BLOCKS = 3  # the streams of one loader read at nearly the same place
OPEN_FILES = 4


class ParquetCorpus(Corpus):
    """Parquet shards; see the module."""

    def __init__(self, path: str | Path, shards: Sequence[Path] | None = None) -> None:
        """Opens the shards of the folder `path`, or those given.

        Raises:
            ValueError: on fewer than two shards, a file that is no parquet, a missing or wrong column, an empty split.
        """
        self.path = Path(path)
        self.shards = sorted(shards if shards is not None else self.path.glob("*.parquet"), key=lambda file: file.name)
        self._put_validation_last()
        if len(self.shards) < 2:
            found = self.shards[0].name if self.shards else "none"
            raise ValueError(
                f"--data: got {str(self.path)!r} with fewer than two .parquet shards ({found}); takes at least two,"
                " since the last one by name is validation"
            )
        self._prepare_reading()
        digest = hashlib.sha256()
        sizes, shard_of, group_of = [], [], []
        for shard, file in enumerate(self.shards):
            rows = row_groups(file)
            sizes.extend(rows)
            shard_of.extend([shard] * len(rows))
            group_of.extend(range(len(rows)))
            digest.update(f"{file.name}\0{file.stat().st_size}\0{rows}\n".encode())
        self.fingerprint = digest.hexdigest()
        is_val = np.array(shard_of) == len(self.shards) - 1
        self._blocks = {}
        for split, mask in (("train", ~is_val), ("val", is_val)):
            self._blocks[split] = tuple(np.array(x, np.int64)[mask] for x in (sizes, shard_of, group_of))
            if not self._blocks[split][0].sum():
                names = self.shards[-1].name if split == "val" else "every shard but the last"
                raise ValueError(f"--data: got {str(self.path)!r}, whose {split} split ({names}) has no rows")

    def _prepare_reading(self) -> None:
        # Loaders of both splits read the same corpus from threads of their own.
        self._lock = threading.Lock()
        self._files: OrderedDict[int, pq.ParquetFile] = OrderedDict()
        self._cache: OrderedDict[tuple[int, int], pa.ChunkedArray] = OrderedDict()

    def _put_validation_last(self) -> None:
        marker = read_marker(self.path)
        if marker is None:
            return
        name = marker["validation"]
        chosen = [file for file in self.shards if file.name == name]
        if not chosen:
            raise ValueError(
                f"--data: got {str(self.path)!r}, whose validation shard {name} (named by its corpus.json) is missing;"
                f" finish fetching or making the corpus (source: {marker.get('source', 'unknown')})"
            )
        self.shards = [file for file in self.shards if file.name != name] + chosen

    def blocks(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        sizes, shard_of, _ = self._blocks[check_split(split)]
        return sizes, shard_of

    def read(self, split: str, block: int, rows: Sequence[int] | None = None) -> list[str | None]:
        shard, group = self._place(split, block)
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
        block, row = self._block_and_row(split, document)
        shard, group = self._place(split, block)
        return f"{self.shards[shard].name}, row group {group}, row {row}"

    def describe(self) -> str:
        train, val = (self._blocks[split][0] for split in ("train", "val"))
        size = sum(file.stat().st_size for file in self.shards)
        return (
            f"{self.path}: {len(self.shards)} parquet shards ({size / 1e6:,.1f} MB), {train.sum():,} training rows,"
            f" {val.sum():,} validation rows ({self.shards[-1].name})"
        )

    def _place(self, split: str, block: int) -> tuple[int, int]:
        """The shard and the row group that a block is."""
        _, shard_of, group_of = self._blocks[check_split(split)]
        return int(shard_of[block]), int(group_of[block])

    def _column(self, shard: int, group: int) -> pa.ChunkedArray:
        key = (shard, group)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        file = self.shards[shard]
        try:
            column = self._open(shard).read_row_group(group, columns=[COLUMN], use_threads=False).column(0)
            column = column.cast(pa.large_string())  # one type for string, large_string and dictionary columns
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{file}: row group {group} cannot be read ({_first_line(error)})") from error
        self._cache[key] = column
        if len(self._cache) > CACHED_BLOCKS:
            self._cache.popitem(last=False)
        return column

    def _open(self, shard: int) -> pq.ParquetFile:
        if shard not in self._files:
            self._files[shard] = pq.ParquetFile(self.shards[shard])
            if len(self._files) > OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(shard)
        return self._files[shard]


def row_groups(file: Path) -> list[int]:
    """Rows in each row group of a shard, from its footer."""
    try:
        with pq.ParquetFile(file) as opened:
            schema = opened.schema_arrow
            rows = [opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)]
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file}: no parquet file, or a truncated one ({_first_line(error)})") from error
    if COLUMN not in schema.names:
        raise ValueError(f"{file}: has the columns {', '.join(schema.names) or '(none)'}, takes one called {COLUMN!r}")
    kind = schema.field(COLUMN).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value)):
        raise ValueError(f"{file}: the column {COLUMN!r} holds {kind}, takes strings")
    return rows


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
