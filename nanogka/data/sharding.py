"""Text into a corpus of parquet shards: shuffled, in nanochat's format, the last shard being validation.

    with making(out) as folder:
        write_shards(shuffled(texts, seed, folder, total_bytes), folder, source="my diary")

The order is random, so any part of it is as good a sample as any other: the validation shard is the last documents in
it, as many as fill a shard, but a twentieth of a corpus that is small.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nanogka.data.corpus import document_or_none
from nanogka.data.marker import write_marker
from nanogka.data.order import hash_text, permutation
from nanogka.data.text import TextCorpus

SHARD_CHARS = 250_000_000
ROW_GROUP = 1024
VAL_SHARE = 0.05  # of a corpus of fewer than twenty shards
BUCKET_BYTES = 1 << 27  # shuffled in memory at once
MAX_BUCKETS = 256  # files open at once
SPILL_CHARS = 1 << 18


@dataclass
class Made:
    """What became of the documents; `skipped` had no text."""

    shards: int = 0
    documents: int = 0
    validation_documents: int = 0
    chars: int = 0
    skipped: int = 0


@contextmanager
def making(out: Path, say: Callable[[str], None] = print) -> Iterator[Path]:
    """A hidden folder beside `out`; it becomes `out` if the block ends without an error, and is removed otherwise."""
    partial = out.with_name(f".{out.name}.partial")
    if partial.exists():
        say(f"an earlier attempt was broken off: starting again from nothing ({partial} removed)")
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


# ---- reading ----


def own_documents(path: Path, column: str = "text") -> tuple[Iterator[str | None], int]:
    """The documents of the user's own files, and about how many bytes of text they are.

    `path` is a folder of `.parquet` files, or of `.txt` and `.jsonl` files, or one such file.

    Raises:
        ValueError: if there are none; while iterating, if a file is damaged: the text names it.
    """
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if not file.name.startswith("."))
    parquet = [file for file in files if file.suffix == ".parquet"]
    if parquet:
        return _parquet_documents(parquet, column), sum(_text_bytes(file, column) for file in parquet)
    files = [file for file in files if file.suffix in TextCorpus.SUFFIXES]
    if not files:
        raise ValueError(f"--data: got {str(path)!r}, takes a .parquet, .txt or .jsonl file or a folder of such")
    corpus = TextCorpus(path, files)
    texts = (text for split in ("train", "val") for text in corpus.documents(split))
    return texts, sum(file.stat().st_size for file in files)


def _text_bytes(file: Path, column: str) -> int:
    """The size of a file's text before compression. Raises ValueError if it has no such column of strings."""
    try:
        with pq.ParquetFile(file) as opened:
            schema, groups = opened.schema_arrow, opened.metadata
            if column not in schema.names:
                raise ValueError(f"{file}: has the columns {', '.join(schema.names)}, --column takes one of them")
            kind = schema.field(column).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise ValueError(f"{file}: the column {column!r} holds {kind}, takes strings")
            return sum(groups.row_group(i).total_byte_size for i in range(groups.num_row_groups))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file}: no parquet file, or a truncated one ({str(error).splitlines()[0]})") from error


def _parquet_documents(files: list[Path], column: str) -> Iterator[str | None]:
    for file in files:
        with pq.ParquetFile(file) as opened:
            for group in range(opened.num_row_groups):
                try:
                    texts = opened.read_row_group(group, columns=[column]).column(0).to_pylist()
                except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                    why = str(error).splitlines()[0][:200]
                    raise ValueError(f"{file}: row group {group} cannot be read ({why})") from error
                yield from texts


# ---- shuffling ----


def shuffled(texts: Iterable[str | None], seed: int, folder: Path, total_bytes: int) -> Iterator[str | None]:
    """All of `texts` in an order that `seed` decides, each order as likely as any other.

    More than `BUCKET_BYTES` go by way of files in `folder`: every text into one of several at random, then each file
    is shuffled in memory.
    """
    n = min(MAX_BUCKETS, -(-total_bytes // BUCKET_BYTES))
    if n <= 1:
        yield from _permuted(list(texts), seed, 0)
        return
    spill = folder / "spill"
    spill.mkdir()
    schema = pa.schema([("text", pa.large_string())])
    with ExitStack() as stack:
        writers = [stack.enter_context(pa.ipc.new_stream(str(spill / str(i)), schema)) for i in range(n)]
        waiting: list[list[str | None]] = [[] for _ in range(n)]
        sizes = [0] * n

        def flush(bucket: int) -> None:
            writers[bucket].write_batch(pa.record_batch([pa.array(waiting[bucket], pa.large_string())], schema=schema))
            waiting[bucket], sizes[bucket] = [], 0

        for i, text in enumerate(texts):
            bucket = hash_text(f"{seed},{i}") % n
            waiting[bucket].append(text)
            sizes[bucket] += len(text or "")
            if sizes[bucket] > SPILL_CHARS:
                flush(bucket)
        for bucket in range(n):
            flush(bucket)
    for bucket in range(n):
        file = spill / str(bucket)
        with pa.ipc.open_stream(str(file)) as reader:
            found = reader.read_all().column(0).to_pylist()
        file.unlink()
        yield from _permuted(found, seed, bucket)
    spill.rmdir()


def _permuted(texts: list, seed: int, bucket: int) -> Iterator:
    return (texts[i] for i in permutation(len(texts), seed, bucket))


# ---- writing ----


def write_shards(
    texts: Iterable[str | None],
    folder: Path,
    *,
    source: str,
    shard_chars: int = SHARD_CHARS,
    row_group: int = ROW_GROUP,
    max_chars: int | None = None,
    progress: Callable[[int], None] = lambda chars: None,
) -> Made:
    """Writes `texts`, already in random order, as shards into `folder`; two shards of text are in memory at most.

    `max_chars`: stop once so many characters are taken. `progress` is told of characters as they are taken.

    Raises:
        ValueError: if there are fewer than two documents with text.
    """
    made = Made()
    full: list[str] = []  # a whole shard, not written yet because it may be the last
    filling: list[str] = []
    size = 0
    for text in texts:
        if document_or_none(text) is None:
            made.skipped += 1
            continue
        filling.append(text)
        size += len(text)
        made.chars += len(text)
        progress(len(text))
        if size >= shard_chars:
            if full:
                _write(folder, made, full, row_group)
            full, filling, size = filling, [], 0
        if max_chars is not None and made.chars >= max_chars:
            break
    train, val = _part(full + filling, min(shard_chars, VAL_SHARE * made.chars))
    while train:
        part, train = _first(train, shard_chars)
        _write(folder, made, part, row_group)
    made.validation_documents = len(val)
    name = _write(folder, made, val, row_group)
    write_marker(folder, validation=name, source=source, documents=made.documents, chars=made.chars)
    return made


def _part(texts: list[str], val_chars: float) -> tuple[list[str], list[str]]:
    """(training, validation): the last documents, until they have `val_chars`; one at least on either side."""
    if len(texts) < 2:
        raise ValueError(f"--data: got {len(texts)} documents with text, takes at least two, since one is validation")
    cut, size = len(texts) - 1, len(texts[-1])
    while size < val_chars and cut > 1:
        cut -= 1
        size += len(texts[cut])
    return texts[:cut], texts[cut:]


def _first(texts: list[str], chars: int) -> tuple[list[str], list[str]]:
    """The first documents, until they have `chars` characters, and the others."""
    size = n = 0
    while n < len(texts) and size < chars:
        size += len(texts[n])
        n += 1
    return texts[:n], texts[n:]


def _write(folder: Path, made: Made, texts: list[str], row_group: int) -> str:
    name = f"shard_{made.shards:05d}.parquet"
    table = pa.table({"text": pa.array(texts, pa.large_string() if _is_huge(texts) else pa.string())})
    pq.write_table(table, folder / name, row_group_size=row_group, compression="zstd", use_dictionary=False)
    made.shards += 1
    made.documents += len(texts)
    return name


def _is_huge(texts: list[str]) -> bool:
    """Whether a column of 32-bit offsets might not hold them."""
    return 4 * sum(map(len, texts)) >= 2**31
