"""A tokenizer and a corpus together: training one on the other, and measuring how well it compresses text."""

import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nanogka.data.corpus import Corpus
from nanogka.data.samples import SAMPLES
from nanogka.tokenizer import Tokenizer

BATCH = 256  # documents encoded together


def capped(texts: Iterable[str], max_chars: int, doc_cap: int) -> Iterator[str]:
    """The first `doc_cap` characters of each text, until `max_chars` characters have been given."""
    left = max_chars
    for text in texts:
        text = text[: min(doc_cap, left)]
        yield text
        left -= len(text)
        if left <= 0:
            return


def train_on_corpus(corpus: Corpus, vocab_size: int, *, max_chars: int, doc_cap: int) -> Tokenizer:
    """A tokenizer trained on a corpus' training split; `meta["trained_on"]` says on what.

    `doc_cap` characters of a document at most, so that no long document outweighs the rest. Raises ValueError as
    `Tokenizer.train` and the corpus do.
    """
    tokenizer = Tokenizer.train(capped(corpus.documents("train"), max_chars, doc_cap), vocab_size)
    tokenizer.meta["trained_on"].update(
        corpus=str(corpus.path),
        corpus_fingerprint=corpus.fingerprint,
        max_chars=max_chars,
        doc_cap=doc_cap,
        python=platform.python_version(),
    )
    return tokenizer


@dataclass(frozen=True)
class Compression:
    """How a tokenizer does on one kind of text."""

    kind: str
    bytes: int
    tokens: int
    round_trip: bool

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / max(1, self.tokens)


def compression(tokenizer: Tokenizer, kind: str, texts: Iterable[str]) -> Compression:
    """Bytes, tokens and whether all of `texts` came back the same; streams, in batches of `BATCH`."""
    n_bytes = n_tokens = 0
    same = True
    batch: list[str] = []

    def measure() -> None:
        nonlocal n_bytes, n_tokens, same
        for text, ids in zip(batch, tokenizer.encode_batch(batch)):
            n_bytes += len(text.encode())
            n_tokens += len(ids)
            same = same and tokenizer.decode(ids) == text
        batch.clear()

    for text in texts:
        batch.append(text)
        if len(batch) == BATCH:
            measure()
    measure()
    return Compression(kind, n_bytes, n_tokens, same)


def compression_table(tokenizer: Tokenizer, corpus: Corpus | None, max_chars: int) -> list[Compression]:
    """`compression` on every sample and on the first `max_chars` characters of each split of `corpus`."""
    rows = [compression(tokenizer, kind, [text]) for kind, text in SAMPLES.items()]
    if corpus is not None:
        for split, kind in (("train", "corpus, training"), ("val", "corpus, validation")):
            rows.append(compression(tokenizer, kind, capped(corpus.documents(split), max_chars, max_chars)))
    return rows


def format_table(rows: list[Compression]) -> str:
    """The rows as a table for people."""
    lines = [f"{'text':<20} {'bytes':>12} {'tokens':>12} {'bytes/token':>12}  round trip"]
    for row in rows:
        survived = "ok" if row.round_trip else "CHANGED"
        lines.append(f"{row.kind:<20} {row.bytes:>12,} {row.tokens:>12,} {row.bytes_per_token:>12.2f}  {survived}")
    return "\n".join(lines)
