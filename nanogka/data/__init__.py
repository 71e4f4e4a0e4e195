"""Corpora and the packing loader: from files to batches of tokens. Order: corpus, tokenizer, packer, loader."""

import platform
from pathlib import Path

from nanogka.common.files import expand_path
from nanogka.data.corpus import FINEWEB, Corpus, fineweb_folder
from nanogka.data.embedded import embedded_corpus
from nanogka.data.own_text import SUFFIXES, text_corpus


def open_corpus(path: str | Path) -> Corpus:
    """Open the corpus at `path`; ValueError names a damaged file.

    `embedded` is built on first use; `fineweb-edu` means all its fetched shards. A folder holds `.parquet` shards (a
    column `text`; the last shard by name is validation), or `.txt` and `.jsonl` files, which are split by document.
    """
    if str(path) == "embedded":
        return Corpus(embedded_corpus(), note=f", from Python {platform.python_version()}")
    if str(path) == FINEWEB:
        path = fineweb_folder()
        if not path.is_dir():
            hint = "fetch some with `python -m scripts.fetch -n 8`"
            raise ValueError(f"--data: got {FINEWEB!r}, but {path} does not exist; {hint}")
    path = expand_path(path)
    if not path.exists():
        raise ValueError(
            f"--data: got {str(path)!r}, which does not exist; expected 'embedded', a folder or a text file"
        )
    if not path.is_dir():
        if not path.is_file() or path.suffix not in SUFFIXES:
            raise ValueError(f"--data: got the file {str(path)!r}, expected a folder, or a .txt or .jsonl file")
        return text_corpus(path, [path])
    files = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
    if shards := [file for file in files if file.suffix == ".parquet"]:
        return Corpus(path, shards)
    if texts := [file for file in files if file.suffix in SUFFIXES]:
        return text_corpus(path, texts)
    raise ValueError(f"--data: got {str(path)!r}, a folder without any .parquet, .txt or .jsonl file in it")
