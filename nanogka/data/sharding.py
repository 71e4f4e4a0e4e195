"""Write text as a corpus: shuffled parquet shards in nanochat's format, the last one for validation.

Documents are sorted by a hash of their text. That is a random order which does not depend on the order of the files.
The documents with the smallest hashes are validation. So adding a file moves no other document to another split, and
copies of a document are in one split: validation never asks for text that training has seen.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from nanogka.common.files import sha256_of
from nanogka.data.corpus import MAX_DOCUMENT_CHARS, write_manifest
from nanogka.data.permutation import hash_text

SHARD_CHARS = 250_000_000  # as in nanochat: about 100 MB
ROW_GROUP = 1024  # documents, as in nanochat: what a loader reads and decompresses at once
VAL_SHARE = 0.05  # of the documents, but at most about one shard
BUCKETS = 128  # temporary files of the external sort; macOS lets a process open 256 files


def write_corpus(
    folder: Path,
    texts: Iterable[str | None],
    *,
    source: str,
    seed: int = 0,
    shard_chars: int = SHARD_CHARS,
) -> None:
    """Write the documents among `texts`, and the manifest with their number and that of the empty ones.

    A document of more than `MAX_DOCUMENT_CHARS` becomes several. Raises ValueError if there are fewer than two
    different documents.
    """
    counts = {"documents": 0, "chars": 0, "skipped": 0}
    with TemporaryDirectory(dir=folder) as scratch:
        train, val = _sorted(_documents(texts, counts), counts, seed, Path(scratch), shard_chars)
        files = write_shards(folder, _shards(train, val, shard_chars))
    write_manifest(folder, validation=list(files)[-1], source=source, **counts, files=files)


def _documents(texts: Iterable[str | None], counts: dict[str, int]) -> Iterator[str]:
    with tqdm(unit="chars", unit_scale=True, leave=False, disable=None) as bar:
        for text in texts:
            counts["skipped"] += text is None
            text = text or ""
            for start in range(0, len(text), MAX_DOCUMENT_CHARS):
                part = text[start : start + MAX_DOCUMENT_CHARS]
                counts["documents"] += 1
                counts["chars"] += len(part)
                bar.update(len(part))
                yield part


def _sorted(
    texts: Iterable[str], counts: dict[str, int], seed: int, scratch: Path, shard_chars: int
) -> tuple[Iterator[str], Iterator[str]]:
    """The training and the validation documents, each sorted by hash.

    The text may exceed memory. So each document goes into the temporary file of its range of hashes, and then one file
    after the other is sorted.
    """
    salt = f"{seed}\0" if seed else ""
    smallest, largest = 2**64, -1
    with ExitStack() as stack:
        buckets = [stack.enter_context(open(scratch / str(i), "w", encoding="utf-8")) for i in range(BUCKETS)]
        for text in texts:
            key = hash_text(salt + text)
            smallest, largest = min(smallest, key), max(largest, key)
            buckets[key * BUCKETS >> 64].write(json.dumps([key, text]) + "\n")
    if smallest >= largest:
        raise ValueError("data: got fewer than two different documents with text; one of them is validation")
    share = min(VAL_SHARE, shard_chars / counts["chars"])
    border = min(largest, max(smallest + 1, int(share * 2**64)))  # each split has at least one document

    def read(numbers: Iterable[int], is_val: bool) -> Iterator[str]:
        for number in numbers:
            with open(scratch / str(number), encoding="utf-8") as bucket:
                lines = [json.loads(line) for line in bucket]
            yield from (text for key, text in sorted(lines) if (key < border) == is_val)

    at = border * BUCKETS >> 64
    return read(range(at, BUCKETS), False), read(range(at + 1), True)


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
    """Write each list of texts as a shard. Return `documents`, `size` in bytes and `sha256` of each, by name."""
    files: dict[str, dict] = {}
    for texts in shards:
        file = folder / f"shard_{len(files):05d}.parquet"
        is_huge = 4 * sum(map(len, texts)) >= 2**31  # more than the 32-bit offsets of a string column may hold
        table = pa.table({"text": pa.array(texts, pa.large_string() if is_huge else pa.string())})
        # Documents differ from each other, so a dictionary of values would save nothing.
        options = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": page_checksum}
        pq.write_table(table, file, row_group_size=row_group, **options)
        files[file.name] = {"documents": len(texts), "size": file.stat().st_size, "sha256": sha256_of(file)}
    return files


def limited(texts: Iterable[str | None], max_chars: int | None) -> Iterator[str | None]:
    """Yield texts until they have `max_chars` characters; None: all."""
    chars = 0
    for text in texts:
        yield text
        chars += len(text or "")
        if max_chars is not None and chars >= max_chars:
            return
