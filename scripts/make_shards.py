"""Convert text to shuffled parquet shards in nanochat's format.

    python -m scripts.make_shards --data ~/texts --out ~/corpora/mine
    python -m scripts.make_shards --dataset HuggingFaceFW/fineweb-edu --subset sample-10BT --streaming

The script shuffles all documents with the help of temporary files. The last shard is for validation. The output folder
appears when it is complete. The training scripts do the same with a folder of text given as `--data`. Use this script
to choose the folder, the seed or the size of the shards.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from nanogka.common.cli import command, flag, flag_name
from nanogka.common.errors import Errors
from nanogka.common.files import base_dir, build_once, expand_path
from nanogka.common.formatting import say
from nanogka.data import open_corpus
from nanogka.data.corpus import read_manifest
from nanogka.data.hub import Hub
from nanogka.data.own_text import EXPECTED, csv_dataset, documents, find_files, left_out, readable
from nanogka.data.sharding import SHARD_CHARS, limited, write_corpus

SKIP_HINT = "; correct them, or leave them out with --bad-files skip"


@dataclass(frozen=True)
class ShardSettings:
    """Settings."""

    data: str = flag("", f"your text: {EXPECTED}")
    dataset: str = flag("", "instead of --data: dataset to load with the `datasets` library, owner/name or a folder")
    subset: str = flag("", "configuration of the dataset, such as sample-10BT")
    split: str = flag("train", "split of the dataset")
    column: str = flag("text", "name of the column or key with the text")
    streaming: bool = flag(False, "read the dataset while downloading it, without storing it on the disk")
    bad_files: str = flag(
        "error",
        "files that cannot be read: `error` names all of them, `skip` reads all text twice and leaves them out",
        choices=("error", "skip"),
    )
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


def make(settings: ShardSettings, errors: Errors) -> None:
    """Write the corpus."""
    settings.check(errors)
    errors.raise_if_any()
    if path := expand_path(settings.data) if settings.data else csv_dataset(settings.dataset, settings.split):
        files = find_files(path)
        print(f"reading {len(files):,} file{'' if len(files) == 1 else 's'}{left_out(path, files)}", flush=True)
        if settings.bad_files == "skip":
            files = readable(files, settings.column, say)
        texts = documents(files, settings.column, SKIP_HINT)
    else:
        where = settings.dataset, settings.subset, settings.split
        texts = Hub().texts(*where, settings.column, streaming=settings.streaming, seed=settings.seed)
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
