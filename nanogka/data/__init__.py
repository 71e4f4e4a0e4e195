"""Corpora and the packing loader: from files to batches of tokens. Order: corpus, tokenizer, packer, loader."""

import platform
from pathlib import Path

from nanogka.common.files import expand_path
from nanogka.data.corpus import Corpus
from nanogka.data.embedded import embedded_corpus
from nanogka.data.hub_corpora import HUB_CORPORA
from nanogka.data.own_text import find_files, text_corpus


def open_corpus(path: str | Path) -> Corpus:
    """Open the corpus that `--data` names. Raises ValueError that names a damaged file.

    `embedded` is built on first use. `fineweb-edu` and `climbmix` mean all their fetched shards. A folder holds
    `.parquet` shards (a column `text`; the last shard by name is validation), or `.txt` and `.jsonl` files, which are
    split by document.
    """
    if str(path) == "embedded":
        return Corpus(embedded_corpus(), note=f", from Python {platform.python_version()}")
    if known := HUB_CORPORA.get(str(path)):
        path = known.folder
        if not path.is_dir():
            hint = f"fetch some with `python -m scripts.fetch --data {known.name} -n 8`"
            raise ValueError(f"--data: got {known.name!r}, but {path} does not exist; {hint}")
    path = expand_path(path)
    if not path.exists():
        names = ", ".join(("embedded", *HUB_CORPORA))
        raise ValueError(f"--data: got {str(path)!r}, which does not exist; expected {names}, a folder or a text file")
    files = find_files(path)
    return Corpus(path, files) if files[0].suffix == ".parquet" else text_corpus(path, files)
