"""Convert text to shuffled parquet shards in nanochat's format.

    python -m scripts.make_shards --data ~/texts --out ~/corpora/mine
    python -m scripts.make_shards --dataset HuggingFaceFW/fineweb-edu --subset sample-10BT --streaming

The script shuffles all documents with the help of temporary files. The last shard is for validation. The output folder
appears when it is complete. The training scripts do the same with a folder of text given as `--data`. Use this script
to choose the folder, the seed or the size of the shards.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanogka.common.cli import command, flag, flag_name
from nanogka.common.errors import Errors
from nanogka.common.files import base_dir, expand_path
from nanogka.data import open_corpus
from nanogka.data.corpus import document_or_none, read_manifest
from nanogka.data.own_text import EXPECTED, documents, find_files, left_out
from nanogka.data.sharding import SHARD_CHARS, build_once, write_corpus

SHUFFLE_BUFFER = 10_000  # documents among which a stream is shuffled before --max-chars cuts it


@dataclass(frozen=True)
class ShardSettings:
    """Settings."""

    data: str = flag("", f"your text: {EXPECTED}")
    dataset: str = flag("", "instead of --data: dataset to load with the `datasets` library, owner/name or a folder")
    subset: str = flag("", "configuration of the dataset, such as sample-10BT")
    split: str = flag("train", "split of the dataset")
    column: str = flag("text", "name of the column or key with the text")
    streaming: bool = flag(False, "read the dataset while downloading it, without storing it on the disk")
    out: str = flag("", "folder to write (default: NANOGKA_BASE_DIR/corpora/<name of the source>)")
    seed: int = flag(1, "seed for shuffling")
    shard_chars: int = flag(SHARD_CHARS, "characters per shard", ge=1)
    max_chars: int | None = flag(None, "stop after this many characters (default: all)", ge=1)

    @property
    def folder(self) -> Path:
        """The folder to write."""
        if self.out:
            return expand_path(self.out)
        name = Path(self.data or self.dataset).name.removesuffix(Path(self.data).suffix if self.data else "")
        return base_dir() / "corpora" / "-".join(part for part in (name, self.subset) if part)

    def check(self, errors: Errors) -> None:
        """Record invalid settings."""
        one = bool(self.data) != bool(self.dataset)
        if errors.require(one, "--data", self.data, "a path, or --dataset a name, and not both") and self.data:
            errors.require(expand_path(self.data).exists(), "--data", self.data, "a file or folder")
        for name in ("subset", "streaming"):
            alone = bool(getattr(self, name)) and not self.dataset
            errors.require(not alone, flag_name(name), getattr(self, name), "nothing without --dataset")
        errors.require(not self.folder.exists(), "--out", str(self.folder), "a folder that does not exist")


def dataset_rows(settings: ShardSettings) -> Iterator[str | None]:
    """The documents of a dataset."""
    import datasets  # slow to import, and only this function needs it

    options = {"split": settings.split, "streaming": settings.streaming}
    loaded = datasets.load_dataset(settings.dataset, settings.subset or None, **options)
    names = loaded.column_names
    if names is not None and settings.column not in names:
        raise ValueError(f"--column: got {settings.column!r}, expected one of {', '.join(names)}")
    buffer = {"buffer_size": SHUFFLE_BUFFER} if settings.streaming else {}
    loaded = loaded.select_columns([settings.column]).shuffle(seed=settings.seed, **buffer)
    return (document_or_none(row[settings.column]) for row in loaded)


def limited(texts: Iterator[str | None], max_chars: int | None) -> Iterator[str | None]:
    """Yield texts until they have `max_chars` characters."""
    chars = 0
    for text in texts:
        yield text
        chars += len(text or "")
        if max_chars is not None and chars >= max_chars:
            return


def make(settings: ShardSettings, errors: Errors) -> None:
    """Write the corpus."""
    settings.check(errors)
    errors.raise_if_any()
    if settings.data:
        path = expand_path(settings.data)
        files = find_files(path)
        print(f"reading {len(files):,} file{'' if len(files) == 1 else 's'}{left_out(path, files)}", flush=True)
        texts = documents(files, settings.column)
    else:
        texts = dataset_rows(settings)
    options = {name: getattr(settings, name) for name in ("seed", "shard_chars")}
    options["source"] = " ".join(part for part in (settings.data or settings.dataset, settings.subset) if part)
    build_once(settings.folder, lambda folder: write_corpus(folder, limited(texts, settings.max_chars), **options))
    made = read_manifest(settings.folder)
    assert made is not None, "`write_corpus` wrote it"
    validation = made["files"][made["validation"]]["documents"]
    print(
        f"{made['documents']:,} documents ({made['chars']:,} characters) in {len(made['files'])} shards,"
        f" {validation:,} of them validation; {made['skipped']:,} without text skipped"
    )
    print(open_corpus(settings.folder).describe())


main = command("make_shards", ShardSettings, make, __doc__)

if __name__ == "__main__":
    sys.exit(main())
