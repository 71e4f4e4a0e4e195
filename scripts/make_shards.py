"""Turns text into a corpus: parquet shards in nanochat's format, shuffled, the last one being validation.

    python -m scripts.make_shards --data ~/texts --out ~/corpora/mine
    python -m scripts.make_shards --dataset HuggingFaceFW/fineweb-edu --subset sample-10BT --streaming

Own files are shuffled wholly, on the disk where memory would not do; a dataset that is streamed within a buffer. The
folder appears when it is complete. An attempt that was broken off is begun again from nothing.
"""

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from nanogka.cli import flag, flag_name, run
from nanogka.data import open_corpus
from nanogka.data.sharding import ROW_GROUP, SHARD_CHARS, atomic_directory, own_documents, shuffled, write_shards
from nanogka.problems import Problems
from nanogka.runtime import base_dir


@dataclass(frozen=True)
class ShardSettings:
    """Settings; each field is a flag."""

    data: str = flag("", "own text: a .txt, .jsonl or .parquet file, or a folder of such")
    dataset: str = flag("", "or a dataset that the `datasets` library loads: owner/name, or a folder")
    subset: str = flag("", "the dataset's configuration, such as sample-10BT")
    split: str = flag("train", "the dataset's split")
    column: str = flag("text", "the column with the text, in parquet files and datasets")
    streaming: bool = flag(False, "read the dataset while it is downloaded, keeping nothing of it on the disk")
    shuffle_buffer: int = flag(10_000, "documents that a stream is shuffled among")
    out: str = flag("", "folder to make (default: NANOGKA_BASE_DIR/corpora/NAME, NAME being that of what is read)")
    seed: int = flag(1, "of the order")
    shard_chars: int = flag(SHARD_CHARS, "characters per shard")
    row_group: int = flag(ROW_GROUP, "documents per row group")
    max_chars: int | None = flag(None, "stop after so many characters (default: all)")

    @property
    def folder(self) -> Path:
        if self.out:
            return Path(self.out).expanduser()
        name = Path(self.data or self.dataset).name.removesuffix(Path(self.data).suffix if self.data else "")
        return base_dir() / "corpora" / "-".join(part for part in (name, self.subset) if part)

    def check(self, problems: Problems) -> None:
        """Record every setting that does not fit."""
        one = bool(self.data) != bool(self.dataset)
        if problems.check(one, "--data", self.data, "a path, or --dataset a name, and not both") and self.data:
            problems.check(Path(self.data).expanduser().exists(), "--data", self.data, "a file or folder")
        for name in ("subset", "streaming"):
            alone = bool(getattr(self, name)) and not self.dataset
            problems.check(not alone, flag_name(name), getattr(self, name), "nothing without --dataset")
        for name in ("shuffle_buffer", "shard_chars", "row_group", "max_chars"):
            value = getattr(self, name)
            problems.check(value is None or value >= 1, flag_name(name), value, "an integer of at least 1")
        problems.check(not self.folder.exists(), "--out", str(self.folder), "a folder that is not there yet")


def documents(settings: ShardSettings, scratch: Path) -> Iterator[str | None]:
    """The documents in random order."""
    if settings.data:
        texts, total_bytes = own_documents(Path(settings.data).expanduser(), settings.column)
        yield from shuffled(texts, settings.seed, scratch, total_bytes)
        return
    import datasets  # here, because it takes seconds to import

    options = {"split": settings.split, "streaming": settings.streaming}
    loaded = datasets.load_dataset(settings.dataset, settings.subset or None, **options)
    names = loaded.column_names
    if names is not None and settings.column not in names:
        raise ValueError(f"--column: got {settings.column!r}, takes one of {', '.join(names)}")
    buffer = {"buffer_size": settings.shuffle_buffer} if settings.streaming else {}
    loaded = loaded.select_columns([settings.column]).shuffle(seed=settings.seed, **buffer)
    yield from (row[settings.column] for row in loaded)


def make(settings: ShardSettings, problems: Problems) -> None:
    """Check the settings, make the corpus, print."""
    settings.check(problems)
    problems.raise_any()
    with (
        atomic_directory(settings.folder) as folder,
        closing(documents(settings, folder)) as texts,
        tqdm(total=settings.max_chars, unit="chars", unit_scale=True, disable=None) as bar,
    ):
        done = write_shards(
            texts,
            folder,
            source=" ".join(part for part in (settings.data or settings.dataset, settings.subset) if part),
            shard_chars=settings.shard_chars,
            row_group=settings.row_group,
            max_chars=settings.max_chars,
            progress=bar.update,
        )
    print(
        f"{done.documents:,} documents ({done.chars:,} characters) in {len(done.files)} shards,"
        f" {done.validation_documents:,} of them validation; {done.skipped:,} without text skipped"
    )
    print(open_corpus(settings.folder).describe())


def main(argv: list[str] | None = None) -> int:
    """Run the script; return the exit code."""
    return run(ShardSettings, make, "make_shards", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
