"""Fixtures of the data tests: a tokenizer whose ids say where they come from, and corpora made on the spot."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SPAN = 100_000  # ids of one document: document × SPAN + position


class TracingTokenizer:
    """Reads "document:length" as that many ids, which no other document has; id 0 is the document token."""

    bos_id = 0
    fingerprint = "tracing"

    def encode_batch(self, texts):
        spans = (map(int, text.split(":")) for text in texts)
        return [range((1 + document) * SPAN, (1 + document) * SPAN + length) for document, length in spans]


@pytest.fixture
def tracing() -> TracingTokenizer:
    return TracingTokenizer()


@pytest.fixture(autouse=True)
def own_base(base):
    """Every test has its own base folder."""


@pytest.fixture
def write_shards():
    """Writes one parquet shard for each list of texts; returns the folder."""

    def write(folder: Path, *shards: list, row_group: int = 7, **options) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for i, texts in enumerate(shards):
            table = pa.table({"text": pa.array(texts, pa.string()), "other": list(range(len(texts)))})
            pq.write_table(table, folder / f"shard_{i:05d}.parquet", row_group_size=row_group, **options)
        return folder

    return write
