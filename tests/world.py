"""What toy runs are made from, in every room: words, documents, a corpus and its tokenizer."""

import random
from pathlib import Path

from nanogka.data import open_corpus
from nanogka.data.vocabulary import train_on_corpus

WORDS = ("the", "a", "cat", "dog", "sees", "finds", "old", "red", "house", "river", "and", "in", "on", "with", "quick")


def document(rng: random.Random, most: int = 60) -> str:
    """A document of 20 to `most` words."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(20, most))) + "."


def make_text(folder: Path, rng: random.Random, documents: int, most: int = 60) -> None:
    """A folder with a .txt file per document."""
    folder.mkdir()
    for i in range(documents):
        (folder / f"{i:03}.txt").write_text(document(rng, most))


def make_tokenizer(base: Path) -> None:
    """The tokenizer `tiny` of 300 ids, from the text in `base`."""
    tokenizer = train_on_corpus(open_corpus(base / "text"), 300, max_chars=10**6, doc_cap=10**4)
    tokenizer.save(base / "tokenizers" / "tiny")
