"""Shards that something is wrong with, all the way through the loader: named, or handled and counted."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanogka.data import PackingLoader, open_corpus
from nanogka.data.pretokenized import pretokenize
from nanogka.tokenizer import Tokenizer

GOOD = [f"document {i} of a good shard" for i in range(40)]


class ByteTokenizer:
    """A byte is an id, which makes tens of megabytes quick."""

    bos_id = 256
    fingerprint = "bytes"

    def encode_arrays(self, texts, pool):
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]


def load(corpus, **changes) -> PackingLoader:
    options = {"batch_size": 4, "sequence_len": 64, "seed": 1, "epochs": 1, "streams": 1, **changes}
    return PackingLoader(corpus, "train", ByteTokenizer(), **options)


def test_null_rows_and_empty_documents_are_skipped_and_counted(tmp_path, write_shards):
    corpus = open_corpus(write_shards(tmp_path, [None, *GOOD, "", " \n\t ", None], ["validation"]))
    with load(corpus) as loader:
        list(loader)
        assert (loader.stats["documents"], loader.stats["skipped"]) == (40, 4)


def test_a_shard_of_nothing_but_null_rows_is_passed_over_and_counted(tmp_path, write_shards):
    corpus = open_corpus(write_shards(tmp_path, [None] * 9, GOOD, ["validation"]))
    with load(corpus) as loader:
        list(loader)
        assert (loader.stats["documents"], loader.stats["skipped"]) == (40, 9)


def test_a_document_of_50_mb_is_used_whole(tmp_path, write_shards):
    huge = "0123456789" * 5_000_000
    folder = write_shards(tmp_path, ["small", huge, "small too"], ["validation"])
    with load(open_corpus(folder), batch_size=64, sequence_len=8191) as loader:
        n = sum(int((b.inputs != 256).sum() + (b.targets[:, -1] != 256).sum()) for b in loader)
        left = loader._state["streams"]["0"]["buffer"]
        assert loader.stats["document_tokens"] == len(huge) + 14
    lengths = [5, len(huge), 9]
    assert n + sum(lengths[row] - offset for row, offset in left) == sum(lengths)


def test_invalid_utf8_reaches_the_consumer_with_file_and_row_group(tmp_path, write_shards):
    write_shards(tmp_path, GOOD, ["validation"])
    broken = pa.array([*(text.encode() for text in GOOD), b"bro\xffken"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": broken}), tmp_path / "shard_00000.parquet", row_group_size=10)
    with load(open_corpus(tmp_path)) as loader, pytest.raises(ValueError, match=r"00000.parquet: row group 4 has text"):
        list(loader)
    tokenizer = Tokenizer.train(GOOD, 266)
    with pytest.raises(ValueError, match=r"00000.parquet: row group 4 has text that is not UTF-8"):
        pretokenize(open_corpus(tmp_path), tokenizer, tmp_path / "tokens")
    assert not (tmp_path / "tokens").exists()


def test_a_damaged_page_reaches_the_consumer_with_file_and_row_group(tmp_path, write_shards):
    folder = write_shards(tmp_path, GOOD, ["validation"], row_group=10, compression="zstd", use_dictionary=False)
    file = folder / "shard_00000.parquet"
    column = pq.read_metadata(file).row_group(2).column(0)
    content = bytearray(file.read_bytes())
    start = column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    file.write_bytes(content)
    with load(open_corpus(folder)) as loader, pytest.raises(ValueError, match=r"00000.parquet: row group 2 cannot be"):
        list(loader)


@pytest.mark.parametrize(
    "write, words",
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-40]), r"00001.parquet: no parquet file, or a truncated one"),
        (lambda file: file.write_bytes(b""), r"00001.parquet: no parquet file, or a truncated one"),
        (lambda file: pq.write_table(pa.table({"body": ["x"]}), file), r"00001.parquet: has the columns body, takes"),
        (lambda file: file.unlink(), r"with fewer than two .parquet shards \(shard_00000.parquet\)"),
    ],
)
def test_what_cannot_be_opened_is_named_at_once(tmp_path, write_shards, write, words):
    write(write_shards(tmp_path, GOOD, ["validation"]) / "shard_00001.parquet")
    with pytest.raises(ValueError, match=words):
        open_corpus(tmp_path)


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match="a folder without any .parquet, .txt or .jsonl file in it"):
        open_corpus(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 7, "validation": "x"}', '{"format": 1, "validation": 3}'])
def test_a_corpus_json_that_cannot_be_read_is_named(tmp_path, write_shards, content):
    folder = write_shards(tmp_path, GOOD, ["validation"])
    (folder / "corpus.json").write_text(content)
    with pytest.raises(ValueError, match=r"corpus.json: "):
        open_corpus(folder)
