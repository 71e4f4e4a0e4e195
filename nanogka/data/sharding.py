"""Write text as a corpus: shuffled parquet shards in nanochat's format, the last one for validation.

Documents are sorted by a hash of their text. That is a random order which does not depend on the order of the files.
The documents with the smallest hashes are validation, so that adding a file moves no other document to another split,
and equal documents are in one split.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from tqdm import tqdm

from nanogka.common.files import annotate_oserror, sha256_of
from nanogka.data.corpus import MAX_DOCUMENT_CHARS, write_manifest
from nanogka.data.order import hash_text

SHARD_CHARS = 250_000_000
ROW_GROUP = 1024
VAL_SHARE = 0.05  # of the documents, but at most one shard
BUCKET_BYTES = 1 << 27  # text to sort in memory at once
MAX_BUCKETS = 256  # files to keep open at once


@contextmanager
def atomic_directory(out: Path) -> Iterator[Path]:
    """A hidden folder next to `out`. It becomes `out` if the block ends without an error, and is removed otherwise."""
    partial = out.with_name(f".{out.name}.partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out.with_name(f".{out.name}.making"))
    try:
        lock.acquire(timeout=0)  # the lock ends with the process, also if it is killed
    except Timeout:
        raise ValueError(f"--out: {out} is being made by another process") from None
    try:
        shutil.rmtree(partial, ignore_errors=True)  # an unfinished earlier attempt
        partial.mkdir()
        with annotate_oserror(partial):
            yield partial
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def write_corpus(
    folder: Path,
    texts: Iterable[str | None],
    *,
    source: str,
    total_bytes: int | None = None,
    seed: int = 0,
    shard_chars: int = SHARD_CHARS,
    row_group: int = ROW_GROUP,
) -> dict:
    """Write the documents among `texts` and the manifest; returns its `documents`, `chars`, `skipped` and `files`.

    `total_bytes` is roughly the size of all texts, None if it is unknown. A document of more than `MAX_DOCUMENT_CHARS`
    becomes several. ValueError if there are fewer than two different documents.
    """
    counts = {"documents": 0, "chars": 0, "skipped": 0}
    with TemporaryDirectory(dir=folder) as scratch:
        train, val = _sorted(_documents(texts, counts), seed, Path(scratch), total_bytes, shard_chars)
        files = write_shards(folder, _shards(train, val, shard_chars), row_group)
    write_manifest(folder, validation=list(files)[-1], source=source, **counts, files=files)
    return counts | {"files": files}


def _documents(texts: Iterable[str | None], counts: dict[str, int]) -> Iterator[str]:
    with tqdm(unit="chars", unit_scale=True, leave=False, disable=None) as bar:
        for text in texts:
            counts["skipped"] += text is None
            for start in range(0, len(text or ""), MAX_DOCUMENT_CHARS):
                part = text[start : start + MAX_DOCUMENT_CHARS]
                counts["documents"] += 1
                counts["chars"] += len(part)
                bar.update(len(part))
                yield part


def _sorted(
    texts: Iterable[str], seed: int, scratch: Path, total_bytes: int | None, shard_chars: int
) -> tuple[Iterator[str], Iterator[str]]:
    """The training and the validation documents, each sorted by hash.

    Memory need not hold them: each text goes into the temporary file of its range of hashes, then one file after the
    other is sorted.
    """
    n = MAX_BUCKETS if total_bytes is None else max(1, min(MAX_BUCKETS, -(-total_bytes // BUCKET_BYTES)))
    share = VAL_SHARE if total_bytes is None else min(VAL_SHARE, shard_chars / max(1, total_bytes))
    salt = f"{seed}\0" if seed else ""
    smallest, largest = 2**64, -1
    with ExitStack() as stack:
        buckets = [stack.enter_context(open(scratch / str(i), "w", encoding="utf-8")) for i in range(n)]
        for text in texts:
            key = hash_text(salt + text)
            smallest, largest = min(smallest, key), max(largest, key)
            buckets[key * n >> 64].write(json.dumps([key, text]) + "\n")
    if smallest >= largest:
        raise ValueError("--data: got fewer than two different documents with text; one of them is validation")
    border = min(largest, max(smallest + 1, int(share * 2**64)))  # each split has at least one document

    def read(numbers: Iterable[int], is_val: bool) -> Iterator[str]:
        for number in numbers:
            with open(scratch / str(number), encoding="utf-8") as bucket:
                lines = [json.loads(line) for line in bucket]
            yield from (text for key, text in sorted(lines) if (key < border) == is_val)

    at = border * n >> 64
    return read(range(at, n), False), read(range(at + 1), True)


def _shards(train: Iterable[str], val: Iterable[str], shard_chars: int) -> Iterator[list[str]]:
    """Lists of training documents with at least `shard_chars` characters each, then all validation documents."""
    shard, size = [], 0
    for text in train:
        shard.append(text)
        size += len(text)
        if size >= shard_chars:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard
    yield list(val)


def write_shards(
    folder: Path, shards: Iterable[list[str]], row_group: int = ROW_GROUP, page_checksum: bool = True
) -> dict[str, dict]:
    """Write each list of texts as a shard; return `documents`, `size` in bytes and `sha256` of each, by name."""
    files: dict[str, dict] = {}
    for texts in shards:
        file = folder / f"shard_{len(files):05d}.parquet"
        is_huge = 4 * sum(map(len, texts)) >= 2**31  # more than the 32-bit offsets of a string column may hold
        table = pa.table({"text": pa.array(texts, pa.large_string() if is_huge else pa.string())})
        options = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": page_checksum}
        pq.write_table(table, file, row_group_size=row_group, **options)
        files[file.name] = {"documents": len(texts), "size": file.stat().st_size, "sha256": sha256_of(file)}
    return files
