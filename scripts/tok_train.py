"""Trains the byte-level BPE tokenizer on a corpus.

    python -m scripts.tok_train --data embedded --vocab-size 8192
    python -m scripts.tok_train --data ~/fineweb --max-chars 2000000000 --name fineweb

Writes tokenizer.json (which the `tokenizers` library reads as well) and meta.json.
"""

import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from nanogka.cli import flag, flag_name, run
from nanogka.data import Corpus, open_corpus, train_on_corpus
from nanogka.problems import Problems
from nanogka.tokenizer import DEFAULT_VOCAB_SIZE, MIN_VOCAB_SIZE, tokenizer_folder


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings; each field is a flag."""

    data: str = flag(
        "embedded",
        "corpus to train on (its training split): 'embedded', a folder of parquet shards with a column 'text', or a"
        " folder (or one file) of .txt / .jsonl",
    )
    vocab_size: int = flag(
        DEFAULT_VOCAB_SIZE, "ids in all, 256 bytes and the special tokens included; a small corpus may give fewer"
    )
    max_chars: int = flag(2_000_000_000, "characters to train on at most")
    doc_cap: int = flag(10_000, "characters of one document at most")
    name: str = flag("default", "saved as NANOGKA_BASE_DIR/tokenizers/NAME")
    out: str = flag("", "saved in this folder instead")

    @property
    def folder(self) -> Path:
        return Path(self.out).expanduser() if self.out else tokenizer_folder(self.name)

    def check(self, problems: Problems) -> None:
        """Record every setting that does not fit."""
        for name, least in (("vocab_size", MIN_VOCAB_SIZE), ("max_chars", 1), ("doc_cap", 1)):
            value = getattr(self, name)
            problems.check(value >= least, flag_name(name), value, f"an integer of at least {least}")
        plain = self.name not in ("", ".", "..") and not set(self.name) & set("/\\")
        problems.check(plain, "--name", self.name, "a name without slashes (--out takes a folder)")
        blocked = bool(self.out) and self.folder.exists() and not self.folder.is_dir()
        problems.check(not blocked, "--out", self.out, "a folder, not a file")


def train(settings: TokenizerSettings, problems: Problems) -> None:
    """Check the settings, train, save, print."""
    settings.check(problems)
    corpus: Corpus = problems.attempt(lambda: open_corpus(settings.data))
    problems.raise_any()
    print(corpus.describe())
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        tokenizer = train_on_corpus(corpus, settings.vocab_size, max_chars=settings.max_chars, doc_cap=settings.doc_cap)
    for warning in caught:
        print(f"note: {warning.message}")
    tokenizer.save(settings.folder)
    used = tokenizer.meta["trained_on"]
    print(
        f"{tokenizer.vocab_size:,} ids from {used['documents']:,} documents ({used['bytes'] / 1e6:,.1f} MB)"
        f" in {time.perf_counter() - began:.1f} s, fingerprint {tokenizer.fingerprint[:12]}"
    )
    print(f"saved in {settings.folder}")


def main(argv: list[str] | None = None) -> int:
    """Run the script; return the exit code."""
    return run(TokenizerSettings, train, "tok_train", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
