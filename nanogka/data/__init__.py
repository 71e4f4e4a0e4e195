"""Corpora and the packing loader: from files to batches of tokens. Order: corpus, tokenizer, packer, loader."""

import platform
from collections.abc import Sequence
from pathlib import Path

from nanogka.common.files import expand_path
from nanogka.common.formatting import first_few
from nanogka.data.corpus import Corpus, read_manifest
from nanogka.data.embedded import embedded_corpus
from nanogka.data.hub_corpora import HUB_CORPORA
from nanogka.data.own_text import OTHER_SPLIT, find_files, kind_of, left_out, text_corpus
from nanogka.data.wheels import docstring_corpus


def open_corpus(path: str | Path) -> Corpus:
    """Open the corpus that `--data` names. Raises ValueError that names a damaged file.

    `embedded` and `docstrings` are built on first use. `fineweb-edu` and `climbmix` mean all their fetched shards. A
    folder holds `.parquet` shards (a column `text`; the last shard by name is validation), or a single one, text and
    `.jsonl` files, which are split by document.
    """
    if str(path) == "embedded":
        return Corpus(embedded_corpus(), note=f", from Python {platform.python_version()}")
    if str(path) == "docstrings":
        return Corpus(docstring_corpus(), name="docstrings")
    if known := HUB_CORPORA.get(str(path)):
        path = known.folder
        if not path.is_dir():
            hint = f"fetch some with `python -m scripts.fetch --data {known.name} -n 8`"
            raise ValueError(f"data: got {known.name!r}, but {path} does not exist; {hint}")
    path = expand_path(path)
    if not path.exists():
        names = ", ".join(("embedded", "docstrings", *HUB_CORPORA))
        raise ValueError(f"data: got {str(path)!r}, which does not exist; expected {names}, a folder or a text file")
    files = find_files(path)
    # A folder with a manifest is one of shards, of which all but one may be missing.
    if kind_of(files[0]) == ".parquet" and (len(files) > 1 or read_manifest(path) is not None):
        _require_one_split(path, files)
        return Corpus(path, files, note=left_out(path, files))
    return text_corpus(path, files)


def _require_one_split(path: Path, shards: Sequence[Path]) -> None:
    """Raise ValueError if a shard before the last is by its name of a test or validation split, and others are not."""
    *others, _ = sorted(shards, key=lambda file: file.name)
    held_out = [file.name for file in others if OTHER_SPLIT.search(file.name)]
    if held_out and not all(OTHER_SPLIT.search(file.name) for file in shards):
        raise ValueError(
            f"data: got {str(path)!r}, whose shards {first_few(held_out)} are not for training by their names, expected"
            f" one split; `scripts.make_shards --dataset {path}` reads the split train alone"
        )
