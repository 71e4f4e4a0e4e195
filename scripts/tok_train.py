"""Train a byte-level BPE tokenizer on a corpus.

    python -m scripts.tok_train --data embedded --vocab-size 8192
    python -m scripts.tok_train --data ~/fineweb --max-chars 2000000000 --name fineweb

Writes tokenizer.json, which the `tokenizers` library can also read, and meta.json.
"""

import sys
import time
from dataclasses import dataclass

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.data import open_corpus
from nanogka.data.corpus import Corpus
from nanogka.data.vocabulary import train_on_corpus
from nanogka.tokenizer import ALIGNMENT, DEFAULT_VOCAB_SIZE, MIN_VOCAB_SIZE, tokenizer_folder


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings."""

    data: str = flag(
        "embedded",
        "corpus to train on (its training split): embedded, docstrings, fineweb-edu, climbmix, a folder of parquet"
        " shards with a column `text`, or text and .jsonl files",
    )
    vocab_size: int = flag(
        DEFAULT_VOCAB_SIZE,
        "vocabulary size, including 256 bytes and the special tokens; a small corpus gives fewer, a multiple of 64",
        ge=MIN_VOCAB_SIZE,
        le=2**20,
    )
    max_chars: int = flag(2_000_000_000, "maximum number of characters to train on", ge=1)
    doc_cap: int = flag(10_000, "maximum number of characters per document; the rest is ignored", ge=1)
    name: str = flag("default", "name under NANOGKA_BASE_DIR/tokenizers, or the path of a folder (with a slash)")
    keep: bool = flag(False, "keep an existing tokenizer of this name")


def train(settings: TokenizerSettings, errors: Errors) -> None:
    """Train and save the tokenizer."""
    errors.require(settings.name not in ("", ".", ".."), "--name", settings.name, "a name, or a path with a slash")
    if settings.keep and not errors.lines and (tokenizer_folder(settings.name) / "meta.json").exists():
        print(f"kept: {tokenizer_folder(settings.name)}")
        return
    corpus: Corpus = errors.capture(lambda: open_corpus(settings.data))
    errors.raise_if_any()
    print(corpus.describe())
    began = time.perf_counter()
    tokenizer = train_on_corpus(corpus, settings.vocab_size, max_chars=settings.max_chars, doc_cap=settings.doc_cap)
    used = tokenizer.meta["trained_on"]
    if (size := tokenizer.vocab_size) < settings.vocab_size:
        print(
            f"note: --vocab-size: got {settings.vocab_size}, but {used['bytes']:,} bytes of text have too few repeated"
            f" pairs; the tokenizer has {size}" + f", the next lower multiple of {ALIGNMENT}" * (size % ALIGNMENT == 0)
        )
    folder = tokenizer_folder(settings.name)
    tokenizer.save(folder)
    print(
        f"{tokenizer.vocab_size:,} ids from {used['documents']:,} documents ({used['bytes'] / 1e6:,.1f} MB)"
        f" in {time.perf_counter() - began:.1f} s, fingerprint {tokenizer.fingerprint[:12]}"
    )
    print(f"saved in {folder}")


main = command("tok_train", TokenizerSettings, train, __doc__)

if __name__ == "__main__":
    sys.exit(main())
