"""What every corpus offers, and `open_corpus`, which finds the right kind for a path.

A corpus has two splits, `train` and `val`. A split is a sequence of rows (documents, or rows that hold none: null or
blank), cut into blocks that can be read alone, which lie in shards. Rows are numbered through the split: that number
and the corpus' fingerprint name a document for ever, which is all that a loader's state needs to keep.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nanogka.data.layout import Layout
from nanogka.runtime import base_dir

if TYPE_CHECKING:
    from nanogka.tokenizer import Tokenizer

SPLITS = ("train", "val")
FINEWEB = "fineweb-edu"

Encode = Callable[[list[str]], list[np.ndarray]]  # texts to the ids of each, without a document token


class Corpus(ABC):
    """Documents in two splits.

    Attributes:
        path: where it was opened.
        fingerprint: sha256 (hex) of what it consists of: names, sizes and row counts, not every byte.
    """

    path: Path
    fingerprint: str

    @abstractmethod
    def blocks(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Rows in each block and the shard each block lies in: two (N,) int64 arrays."""

    @abstractmethod
    def read(self, split: str, block: int, rows: Sequence[int] | None = None) -> list[str | None]:
        """The texts of some rows of a block (all if `rows` is None), None where a row holds no document.

        Raises:
            ValueError: if they cannot be read; the text names file and place.
        """

    def layout(self, split: str) -> Layout:
        """How the split is cut; the numbers of blocks that `read` takes are this one's."""
        return Layout(*self.blocks(split))

    def read_tokens(
        self, split: str, block: int, rows: Sequence[int] | None, encode: Encode
    ) -> list[np.ndarray | None]:
        """As `read`, but the ids of each document, (N,) of an unsigned type, by way of `encode` where there is text."""
        texts = self.read(split, block, rows)
        encoded = iter(encode([text for text in texts if text is not None]))
        return [None if text is None else next(encoded) for text in texts]

    def check_tokenizer(self, tokenizer: "Tokenizer") -> None:  # noqa: B027 (text goes with every tokenizer)
        """Raises ValueError if this corpus cannot be read with `tokenizer`."""

    @abstractmethod
    def describe(self) -> str:
        """One line for people: where it is, what it holds."""

    def locate(self, split: str, document: int) -> str:
        """Where the document with this number in its split is to be found, for people."""
        block, row = self._block_and_row(split, document)
        _, shard_of = self.blocks(split)
        return f"shard {shard_of[block]}, row group {self._within_shard(split, block)}, row {row}"

    def _block_and_row(self, split: str, document: int) -> tuple[int, int]:
        ends = np.cumsum(self.blocks(check_split(split))[0])
        if not 0 <= document < ends[-1]:
            raise IndexError(f"document {document}: the {split} split has {ends[-1]}")
        block = int(np.searchsorted(ends, document, "right"))
        return block, document - int(ends[block - 1] if block else 0)

    def _within_shard(self, split: str, block: int) -> int:
        """The place of a block among those of its shard."""
        _, shard_of = self.blocks(split)
        return block - int(np.flatnonzero(shard_of == shard_of[block])[0])

    def documents(self, split: str) -> Iterator[str]:
        """Every document of a split in its fixed order; holds one block in memory."""
        for block in range(len(self.blocks(check_split(split))[0])):
            for text in self.read(split, block):
                if text is not None:
                    yield text

    def close(self) -> None:  # noqa: B027 (most hold nothing open that matters)
        """Ends what goes on in the background; nothing is read afterwards."""


def fineweb_folder() -> Path:
    """Where FineWeb-Edu lives unless told otherwise."""
    return base_dir() / "corpora" / FINEWEB


def check_split(split: str) -> str:
    """`split`, if it is one. Raises ValueError."""
    if split not in SPLITS:
        raise ValueError(f"split: got {split!r}, takes {' or '.join(SPLITS)}")
    return split


def document_or_none(text: str | None) -> str | None:
    """`text`, or None where there is nothing to read in it."""
    return text if text and not text.isspace() else None


def open_corpus(path: str | Path) -> Corpus:
    """Opens the corpus at `path`; `"embedded"` is the one that needs no files (built on first use), `"fineweb-edu"` is
    what of FineWeb-Edu has been fetched.

    A folder with `.parquet` files is read in nanochat's format (a column `text`, the last shard by name is validation);
    a folder with `.txt` and `.jsonl` files, or one such file, is split by document; a folder that `scripts.pretokenize`
    made holds tokens.

    Raises:
        ValueError: if there is no corpus at `path`, or it is damaged; the text names the file.
    """
    from nanogka.data.embedded import embedded_corpus
    from nanogka.data.parquet import ParquetCorpus
    from nanogka.data.pretokenized import META, TokenCorpus
    from nanogka.data.text import TextCorpus

    if str(path) == "embedded":
        return ParquetCorpus(embedded_corpus())
    if str(path) == FINEWEB:
        path = fineweb_folder()
        if not path.is_dir():
            hint = "fetch some with `python -m nanogka.data.fineweb -n 8`"
            raise ValueError(f"--data: got {FINEWEB!r}, of which nothing is in {path}; {hint}")
    path = Path(path).expanduser()
    if not path.exists():
        raise ValueError(f"--data: got {str(path)!r}, which does not exist; takes 'embedded', a folder or a text file")
    if path.is_file():
        if path.suffix not in TextCorpus.SUFFIXES:
            raise ValueError(f"--data: got the file {str(path)!r}, takes a folder of shards, or a .txt or .jsonl file")
        return TextCorpus(path, [path])
    if (path / META).is_file():
        return TokenCorpus(path)
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    shards = [file for file in files if file.suffix == ".parquet"]
    texts = [file for file in files if file.suffix in TextCorpus.SUFFIXES]
    if shards:
        return ParquetCorpus(path, shards)
    if texts:
        return TextCorpus(path, texts)
    raise ValueError(f"--data: got {str(path)!r}, a folder without any .parquet, .txt or .jsonl file in it")
