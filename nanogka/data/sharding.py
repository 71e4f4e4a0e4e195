"""Text into a corpus of parquet shards: shuffled, in nanochat's format, the last shard being validation.

The order is random, so the last documents, as many as fill a shard or a twentieth of a small corpus, are validation.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from nanogka.common.files import annotate_oserror, sha256_of
from nanogka.data.corpus import document_or_none, read_footer, read_row_group, to_texts
from nanogka.data.order import hash_text, permutation
from nanogka.data.text import TextCorpus

SHARD_CHARS = 250_000_000
ROW_GROUP = 1024
VAL_SHARE = 0.05  # of a corpus of fewer than twenty shards
BUCKET_BYTES = 1 << 27  # shuffled in memory at once
MAX_BUCKETS = 256  # files open at once


@contextmanager
def atomic_directory(out: Path, log: Callable[[str], None] = print) -> Iterator[Path]:
    """A hidden folder beside `out`; it becomes `out` if the block ends without an error, and is removed otherwise."""
    partial = out.with_name(f".{out.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    locked = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed, also by the end of this process
    except BlockingIOError:
        os.close(locked)
        raise ValueError(f"--out: {out} is being made by another process") from None
    try:
        if left := list(partial.iterdir()):
            log(f"removing an unfinished earlier attempt ({partial})")
            for path in left:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        with annotate_oserror(partial):
            yield partial
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(locked)


def own_documents(path: Path, column: str = "text") -> tuple[Iterator[str | None], int]:
    """The documents of the user's own files, None where a row has no text, and roughly how many bytes they hold."""
    files = sorted(file for file in path.iterdir() if not file.name.startswith(".")) if path.is_dir() else [path]
    files = [file for file in files if file.is_file()]  # no devices
    if parquet := [file for file in files if file.suffix == ".parquet"]:
        footers = [read_footer(file, column)[0] for file in parquet]
        size = sum(footer.row_group(i).total_byte_size for footer in footers for i in range(footer.num_row_groups))
        return _parquet_documents(parquet, column), size
    files = [file for file in files if file.suffix in TextCorpus.SUFFIXES]
    if not files:
        raise ValueError(f"--data: got {str(path)!r}, expected a .parquet, .txt or .jsonl file or a folder of such")
    corpus = TextCorpus(path, files)
    texts = (text for split in ("train", "val") for text in corpus.documents(split))
    return texts, sum(file.stat().st_size for file in files)


def _parquet_documents(files: list[Path], column: str) -> Iterator[str | None]:
    for file in files:
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            for group in range(opened.num_row_groups):
                yield from to_texts(read_row_group(opened, file, group, column), file, group)


def shuffled(texts: Iterable[str | None], seed: int, folder: Path, total_bytes: int) -> Iterator[str | None]:
    """All of `texts` in an order that `seed` decides, each order as likely as any other.

    For text that memory cannot hold: each goes into one of several temporary files in `folder` at random, then one file
    after the other is read and shuffled.
    """
    n = max(1, min(MAX_BUCKETS, -(-total_bytes // BUCKET_BYTES)))
    with TemporaryDirectory(dir=folder) as temporary, ExitStack() as stack:
        buckets = [stack.enter_context(open(Path(temporary, str(i)), "w+", encoding="utf-8")) for i in range(n)]
        for i, text in enumerate(texts):
            buckets[hash_text(f"{seed},{i}") % n].write(json.dumps(text) + "\n")
        for i, bucket in enumerate(buckets):
            bucket.seek(0)
            lines = bucket.readlines()
            yield from (json.loads(lines[at]) for at in permutation(len(lines), seed, i))
            bucket.truncate(0)  # its text goes into shards now, and needs no second copy on the disk


class CountedTexts:
    """The documents with text among `texts`, until they have `max_chars` characters; counts them and the others."""

    def __init__(self, texts: Iterator[str | None], max_chars: int | None = None) -> None:
        self.texts, self.max_chars = texts, max_chars
        self.chars = self.skipped = 0

    def __iter__(self) -> Iterator[str]:
        with closing(self.texts), tqdm(total=self.max_chars, unit="chars", unit_scale=True, disable=None) as bar:
            for text in self.texts:
                if document_or_none(text) is None:
                    self.skipped += 1
                    continue
                self.chars += len(text)
                bar.update(len(text))
                yield text
                if self.max_chars is not None and self.chars >= self.max_chars:
                    return


def split_into_shards(texts: Iterable[str], shard_chars: int = SHARD_CHARS) -> Iterator[list[str]]:
    """`texts`, already in random order, in lists of at least `shard_chars` characters, the last one for validation.

    At most two shards of text are in memory. ValueError if there are fewer than two documents.
    """
    pending: list[str] = []
    size = total = 0
    for text in texts:
        pending.append(text)
        size += len(text)
        total += len(text)
        if size >= 2 * shard_chars:  # one shard's worth waits, because it may become validation
            shard, rest = _split(pending, shard_chars)
            if len(rest) >= 2:
                yield shard
                pending, size = rest, sum(map(len, rest))
    if len(pending) < 2:
        raise ValueError(f"--data: got {len(pending)} documents with text, expected at least two: one is validation")
    # the validation shard from the end, but never the document that is left for training
    val, train = _split(pending[:0:-1], min(shard_chars, VAL_SHARE * total))
    train = [*train, pending[0]][::-1]
    while train:
        shard, train = _split(train, shard_chars)
        yield shard
    yield val[::-1]


def _split(texts: list[str], chars: float) -> tuple[list[str], list[str]]:
    """The first documents, until they have `chars` characters (at least one), and the others."""
    size = n = 0
    while n < len(texts) and (size < chars or n == 0):
        size += len(texts[n])
        n += 1
    return texts[:n], texts[n:]


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
