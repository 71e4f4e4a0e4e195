"""Corpora and the packing loader: from files to batches of tokens."""

from nanogka.data.corpus import Corpus, open_corpus
from nanogka.data.embedded import embedded_corpus
from nanogka.data.loader import Batch, PackingLoader, merge_states, validation_batches
from nanogka.data.packing import PACKINGS
from nanogka.data.tokenizing import compression_table, format_table, train_on_corpus

__all__ = [
    "PACKINGS",
    "Batch",
    "Corpus",
    "PackingLoader",
    "compression_table",
    "embedded_corpus",
    "format_table",
    "merge_states",
    "open_corpus",
    "train_on_corpus",
    "validation_batches",
]
