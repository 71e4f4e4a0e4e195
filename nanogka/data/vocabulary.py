"""Train a tokenizer on a corpus, and measure how many bytes per token it reaches."""

import platform
from collections.abc import Iterable, Iterator
from itertools import islice

from nanogka.data.corpus import Corpus
from nanogka.tokenizer import Tokenizer

BATCH = 256  # documents encoded together


def train_on_corpus(corpus: Corpus, vocab_size: int, *, max_chars: int, doc_cap: int) -> Tokenizer:
    """A tokenizer trained on a corpus' training split, which its `meta["trained_on"]` describes."""
    tokenizer = Tokenizer.train(capped(corpus.documents("train"), max_chars, doc_cap), vocab_size)
    tokenizer.meta["trained_on"].update(
        corpus=str(corpus.path),
        corpus_fingerprint=corpus.fingerprint,
        max_chars=max_chars,
        doc_cap=doc_cap,
        python=platform.python_version(),
    )
    return tokenizer


def capped(texts: Iterable[str], max_chars: int, doc_cap: int) -> Iterator[str]:
    """The first `doc_cap` characters of each text, until `max_chars` characters have been given."""
    # The cap keeps a few huge documents from deciding the merges.
    left = max_chars
    for text in texts:
        text = text[: min(doc_cap, left)]
        yield text
        left -= len(text)
        if left <= 0:
            return


def measure_tokenizer(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[int, int, bool]:
    """Bytes and tokens of all `texts` together, and whether decoding gives every text back."""
    n_bytes, n_tokens, same, texts = 0, 0, True, iter(texts)
    while batch := list(islice(texts, BATCH)):
        for text, ids in zip(batch, tokenizer.encode_batch(batch)):
            n_bytes += len(text.encode())
            n_tokens += len(ids)
            same = same and tokenizer.decode(ids) == text
    return n_bytes, n_tokens, same
