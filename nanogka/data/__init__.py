"""Corpora and the packing loader: from files to batches of tokens."""

from nanogka.data.corpus import Corpus, open_corpus
from nanogka.data.embedded import embedded_corpus
from nanogka.data.loader import Batch, PackingLoader, merge_states, validation_batches
from nanogka.data.packing import PACKINGS

__all__ = [
    "PACKINGS",
    "Batch",
    "Corpus",
    "PackingLoader",
    "embedded_corpus",
    "merge_states",
    "open_corpus",
    "validation_batches",
]
