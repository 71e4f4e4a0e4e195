"""Turn text into a corpus: parquet shards in nanochat's format, shuffled, the last one being validation.

    python -m scripts.make_shards --data ~/texts --out ~/corpora/mine
    python -m scripts.make_shards --dataset HuggingFaceFW/fineweb-edu --subset sample-10BT --streaming

Own files are shuffled wholly, by way of the disk; a streamed dataset within a buffer. The folder appears when it is
complete; an unfinished earlier attempt is removed.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanogka.common.cli import command, flag, flag_name
from nanogka.common.errors import Errors
from nanogka.common.files import base_dir, expand_path
from nanogka.data import open_corpus
from nanogka.data.corpus import write_manifest
from nanogka.data.sharding import (
    ROW_GROUP,
    SHARD_CHARS,
    CountedTexts,
    atomic_directory,
    own_documents,
    shuffled,
    split_into_shards,
    write_shards,
)


@dataclass(frozen=True)
class ShardSettings:
    """Settings."""

    data: str = flag("", "own text: a .txt, .jsonl or .parquet file, or a folder of such")
    dataset: str = flag("", "instead of --data, a dataset for the `datasets` library: owner/name, or a folder")
    subset: str = flag("", "configuration of the dataset, such as sample-10BT")
    split: str = flag("train", "split of the dataset")
    column: str = flag("text", "column with the text, in parquet files and datasets")
    streaming: bool = flag(False, "read the dataset while it is downloaded, keeping nothing of it on the disk")
    shuffle_buffer: int = flag(10_000, "number of documents among which a stream is shuffled", ge=1)
    out: str = flag("", "folder to make (default: NANOGKA_BASE_DIR/corpora/NAME, NAME being that of the source)")
    seed: int = flag(1, "seed of the order of the documents")
    shard_chars: int = flag(SHARD_CHARS, "characters per shard", ge=1)
    row_group: int = flag(ROW_GROUP, "documents per row group", ge=1)
    max_chars: int | None = flag(None, "stop after this many characters (default: all)", ge=1)

    @property
    def folder(self) -> Path:
        if self.out:
            return expand_path(self.out)
        name = Path(self.data or self.dataset).name.removesuffix(Path(self.data).suffix if self.data else "")
        return base_dir() / "corpora" / "-".join(part for part in (name, self.subset) if part)

    def check(self, errors: Errors) -> None:
        one = bool(self.data) != bool(self.dataset)
        if errors.require(one, "--data", self.data, "a path, or --dataset a name, and not both") and self.data:
            errors.require(expand_path(self.data).exists(), "--data", self.data, "a file or folder")
        for name in ("subset", "streaming"):
            alone = bool(getattr(self, name)) and not self.dataset
            errors.require(not alone, flag_name(name), getattr(self, name), "nothing without --dataset")
        errors.require(not self.folder.exists(), "--out", str(self.folder), "a folder that is not there yet")


def documents(settings: ShardSettings, scratch: Path) -> Iterator[str | None]:
    """The documents in random order."""
    if settings.data:
        texts, total_bytes = own_documents(expand_path(settings.data), settings.column)
        yield from shuffled(texts, settings.seed, scratch, total_bytes)
        return
    import datasets  # here, because it takes seconds to import

    options = {"split": settings.split, "streaming": settings.streaming}
    loaded = datasets.load_dataset(settings.dataset, settings.subset or None, **options)
    names = loaded.column_names
    if names is not None and settings.column not in names:
        raise ValueError(f"--column: got {settings.column!r}, expected one of {', '.join(names)}")
    buffer = {"buffer_size": settings.shuffle_buffer} if settings.streaming else {}
    loaded = loaded.select_columns([settings.column]).shuffle(seed=settings.seed, **buffer)
    yield from (row[settings.column] for row in loaded)


def make(settings: ShardSettings, errors: Errors) -> None:
    settings.check(errors)
    errors.raise_if_any()
    with atomic_directory(settings.folder) as folder:
        texts = CountedTexts(documents(settings, folder), settings.max_chars)
        files = write_shards(folder, split_into_shards(texts, settings.shard_chars), settings.row_group)
        counts = [record["documents"] for record in files.values()]
        source = " ".join(part for part in (settings.data or settings.dataset, settings.subset) if part)
        totals = {"documents": sum(counts), "chars": texts.chars}
        write_manifest(folder, validation=list(files)[-1], source=source, **totals, files=files)
    print(
        f"{sum(counts):,} documents ({texts.chars:,} characters) in {len(files)} shards,"
        f" {counts[-1]:,} of them validation; {texts.skipped:,} without text skipped"
    )
    print(open_corpus(settings.folder).describe())


main = command("make_shards", ShardSettings, make, __doc__)

if __name__ == "__main__":
    sys.exit(main())
