"""Text into a corpus of parquet shards: shuffled, in nanochat's format, the last shard being validation.

    with atomic_directory(out) as folder:
        write_shards(shuffled(texts, seed, folder, total_bytes), folder, source="my diary")

The order is random, so any part of it is as good a sample as any other: the validation shard is the last documents in
it, as many as fill a shard, or a twentieth of a small corpus.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from nanogka.data.corpus import document_or_none, first_line, read_footer, write_manifest
from nanogka.data.hashes import sha256_of
from nanogka.data.order import hash_text, permutation
from nanogka.data.text import TextCorpus
from nanogka.files import annotate_oserror

SHARD_CHARS = 250_000_000
ROW_GROUP = 1024
VAL_SHARE = 0.05  # of a corpus of fewer than twenty shards
BUCKET_BYTES = 1 << 27  # shuffled in memory at once
MAX_BUCKETS = 256  # files open at once


@dataclass
class ShardStatistics:
    """Numbers of what was written; `skipped` documents had no text, `files` has size and sha256 of each shard."""

    documents: int = 0
    validation_documents: int = 0
    chars: int = 0
    skipped: int = 0
    files: dict[str, dict] = field(default_factory=dict)


@contextmanager
def atomic_directory(out: Path, say: Callable[[str], None] = print) -> Iterator[Path]:
    """A hidden folder beside `out`; it becomes `out` if the block ends without an error, and is removed otherwise."""
    partial = out.with_name(f".{out.name}.partial")
    if partial.exists():
        say(f"an earlier attempt was broken off: starting again from nothing ({partial} removed)")
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    try:
        with annotate_oserror(partial):
            yield partial
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def own_documents(path: Path, column: str = "text") -> tuple[Iterator[str | None], int]:
    """The documents of the user's own files, and roughly how many bytes of text they hold.

    `path` is a folder of `.parquet` files, or of `.txt` and `.jsonl` files, or one such file.

    Raises:
        ValueError: if there are none; while iterating, if a file is damaged: the text names it.
    """
    files = sorted(file for file in path.iterdir() if not file.name.startswith(".")) if path.is_dir() else [path]
    files = [file for file in files if file.is_file()]  # no devices
    if parquet := [file for file in files if file.suffix == ".parquet"]:
        footers = [read_footer(file, column) for file in parquet]
        size = sum(footer.row_group(i).total_byte_size for footer in footers for i in range(footer.num_row_groups))
        return _parquet_documents(parquet, column), size
    files = [file for file in files if file.suffix in TextCorpus.SUFFIXES]
    if not files:
        raise ValueError(f"--data: got {str(path)!r}, takes a .parquet, .txt or .jsonl file or a folder of such")
    corpus = TextCorpus(path, files)
    texts = (text for split in ("train", "val") for text in corpus.documents(split))
    return texts, sum(file.stat().st_size for file in files)


def _parquet_documents(files: list[Path], column: str) -> Iterator[str | None]:
    for file in files:
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            for group in range(opened.num_row_groups):
                try:
                    texts = opened.read_row_group(group, columns=[column]).column(0).to_pylist()
                except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                    raise ValueError(f"{file}: row group {group} cannot be read ({first_line(error)})") from error
                yield from texts


def shuffled(texts: Iterable[str | None], seed: int, folder: Path, total_bytes: int) -> Iterator[str | None]:
    """All of `texts` in an order that `seed` decides, each order as likely as any other.

    More than `BUCKET_BYTES` are shuffled by way of temporary files in `folder`: every text goes into one of them at
    random, then each file is shuffled in memory.
    """
    n = min(MAX_BUCKETS, -(-total_bytes // BUCKET_BYTES))
    if n <= 1:
        yield from _permuted(list(texts), seed, 0)
        return
    with TemporaryDirectory(dir=folder) as spill, ExitStack() as stack:
        buckets = [stack.enter_context(open(Path(spill) / str(i), "w+", encoding="utf-8")) for i in range(n)]
        for i, text in enumerate(texts):
            buckets[hash_text(f"{seed},{i}") % n].write(json.dumps(text) + "\n")
        for i, bucket in enumerate(buckets):
            bucket.seek(0)
            yield from _permuted([json.loads(line) for line in bucket], seed, i)
            bucket.truncate(0)


def _permuted(texts: list, seed: int, bucket: int) -> Iterator:
    return (texts[i] for i in permutation(len(texts), seed, bucket))


def write_shards(
    texts: Iterable[str | None],
    folder: Path,
    *,
    source: str,
    shard_chars: int = SHARD_CHARS,
    row_group: int = ROW_GROUP,
    max_chars: int | None = None,
    progress: Callable[[int], None] = lambda chars: None,
) -> ShardStatistics:
    """Write `texts`, already in random order, as shards into `folder`; at most two shards of text are in memory.

    `max_chars`: stop once this many characters are taken. `progress` is told of characters as they are taken.

    Raises:
        ValueError: if there are fewer than two documents with text.
    """
    done = ShardStatistics()
    pending: list[str] = []
    size = 0
    for text in texts:
        if document_or_none(text) is None:
            done.skipped += 1
            continue
        pending.append(text)
        size += len(text)
        done.chars += len(text)
        progress(len(text))
        if size >= 2 * shard_chars:  # the last shard's worth stays, because it may become validation
            shard, rest = _split(pending, shard_chars)
            if len(rest) >= 2:
                _write(folder, done, shard, row_group)
                pending, size = rest, sum(map(len, rest))
        if max_chars is not None and done.chars >= max_chars:
            break
    if len(pending) < 2:
        raise ValueError(f"--data: got {len(pending)} documents with text, takes at least two, since one is validation")
    val, train = _split(pending[:0:-1], min(shard_chars, VAL_SHARE * done.chars))
    train = [*train, pending[0]][::-1]
    while train:
        shard, train = _split(train, shard_chars)
        _write(folder, done, shard, row_group)
    done.validation_documents = len(val)
    validation = _write(folder, done, val[::-1], row_group)
    more = {"documents": done.documents, "chars": done.chars, "files": done.files}
    write_manifest(folder, validation=validation, source=source, **more)
    return done


def _split(texts: list[str], chars: float) -> tuple[list[str], list[str]]:
    """The first documents, one at least, until they have `chars` characters; and the others."""
    size = n = 0
    while n < len(texts) and (size < chars or n == 0):
        size += len(texts[n])
        n += 1
    return texts[:n], texts[n:]


def _write(folder: Path, done: ShardStatistics, texts: list[str], row_group: int) -> str:
    """Write one shard; return its name."""
    file = folder / f"shard_{len(done.files):05d}.parquet"
    is_huge = 4 * sum(map(len, texts)) >= 2**31  # more than the 32-bit offsets of a string column may hold
    table = pa.table({"text": pa.array(texts, pa.large_string() if is_huge else pa.string())})
    pq.write_table(table, file, row_group_size=row_group, compression="zstd", use_dictionary=False)
    done.documents += len(texts)
    done.files[file.name] = {"size": file.stat().st_size, "sha256": sha256_of(file)}
    return file.name
