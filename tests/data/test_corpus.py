"""Corpora of parquet shards: texts, their places, and the errors of damaged ones."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanogka.data import open_corpus
from nanogka.data.corpus import MANIFEST, write_manifest
from nanogka.data.permutation import hash_text, permutation

SHARDS = ([f"a{i}" for i in range(20)], [f"b{i}" for i in range(9)], [f"v{i}" for i in range(11)])


def test_the_last_shard_by_name_is_validation_and_order_is_kept(tmp_path, write_shards):
    folder = write_shards(tmp_path, *SHARDS)
    (folder / "notes.md").write_text("not a shard")
    (folder / ".partial.parquet").write_text("not finished")
    corpus = open_corpus(folder)
    assert list(corpus.documents("train")) == SHARDS[0] + SHARDS[1]
    assert list(corpus.documents("val")) == SHARDS[2]
    assert corpus.read("train", 3, [4, 0, 4]) == ["b4", "b0", "b4"]
    assert "3 parquet shards" in corpus.describe()
    assert "29 training rows, 11 validation rows (shard_00002.parquet)" in corpus.describe()


def test_null_and_blank_rows_are_no_documents(tmp_path, write_shards):
    corpus = open_corpus(write_shards(tmp_path, ["a", None, "", " \n\t", "b"], ["v"]))
    assert list(corpus.documents("train")) == ["a", "b"]
    assert corpus.read("train", 0) == ["a", None, None, None, "b"]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_other_string_columns_are_read_as_well(tmp_path, kind):
    texts = pa.array(["x", None, "é☕"], pa.string()).cast(kind)
    for i in range(2):
        pq.write_table(pa.table({"text": texts}), tmp_path / f"{i}.parquet")
    assert list(open_corpus(tmp_path).documents("train")) == ["x", "é☕"]


def another_size(write, folder):
    write_manifest(folder, validation="shard_00001.parquet", source="here", files={"shard_00000.parquet": {"size": 1}})


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda write, folder: write(folder, ["a"], []), r"whose val split \(shard_00001.parquet\) has no rows"),
        (lambda write, folder: write(folder, [], ["a"]), r"whose train split \(every shard but the last\) has no rows"),
        (
            lambda write, folder: pq.write_table(pa.table({"body": ["a"], "id": [1]}), folder / "0.parquet"),
            r"0.parquet: has the columns body, id, expected 'text'",
        ),
        (
            lambda write, folder: pq.write_table(pa.table({"text": [1]}), folder / "0.parquet"),
            r"0.parquet: the column 'text' holds int64, expected strings",
        ),
        (lambda write, folder: (folder / "0.parquet").write_bytes(b"PAR1" * 9), "0.parquet: not a parquet file, or a"),
        (lambda write, folder: (folder / "0.parquet").write_bytes(b"version https://git"), "begins b'version https://"),
        (lambda write, folder: (folder / "shard_00001.parquet").unlink(), "fewer than two different documents"),
        (lambda write, folder: (folder / MANIFEST).write_text("{}"), "corpus.json: names no validation shard"),
        (another_size, f"shard_00000.parquet: has .* bytes, {MANIFEST} says 1; fetch or make it again"),
    ],
)
def test_a_corpus_that_cannot_be_opened_is_named_at_once(tmp_path, write_shards, damage, words):
    damage(write_shards, write_shards(tmp_path, ["a good document"], ["validation"]))
    with pytest.raises(ValueError, match=words):
        open_corpus(tmp_path)


def test_names_sizes_and_rows_decide_the_fingerprint_and_footers_see_other_texts_of_the_same_size(
    tmp_path, write_shards, monkeypatch
):
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *_: pytest.fail("read"))
    options = {"compression": "none", "use_dictionary": False}
    one = open_corpus(write_shards(tmp_path / "1", *SHARDS, **options))
    first, *rest = SHARDS
    for i, other in enumerate(([first, rest[0]], [first, rest[0], rest[1][:-1]], [[*first[:-1], "longer"], *rest])):
        assert open_corpus(write_shards(tmp_path / f"o{i}", *other, **options)).fingerprint != one.fingerprint
    same_size = open_corpus(write_shards(tmp_path / "2", [*first[:3], "x3", *first[4:]], *rest, **options))
    assert same_size.fingerprint == one.fingerprint
    assert same_size.footers != one.footers
    again = open_corpus((tmp_path / "1").rename(tmp_path / "moved"))
    assert (again.fingerprint, again.footers) == (one.fingerprint, one.footers)


def test_a_changed_byte_is_found_by_the_checksum_of_its_page(tmp_path, write_shards):
    folder = write_shards(tmp_path, *SHARDS, write_page_checksum=True, compression="none", use_dictionary=False)
    shard = folder / "shard_00000.parquet"
    shard.write_bytes(shard.read_bytes().replace(b"a3", b"z3", 1))
    with pytest.raises(ValueError, match="shard_00000.parquet: row group 0 cannot be read .*CRC"):
        list(open_corpus(folder).documents("train"))


def test_threads_may_read_one_corpus(tmp_path, write_shards):
    corpus = open_corpus(write_shards(tmp_path, *([f"{s}.{i}" for i in range(60)] for s in range(9))))
    wanted = list(corpus.documents("train"))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda split: list(corpus.documents(split)), ["train"] * 8)) == [wanted] * 8


# ---- orders that must never change, or every resumed run would read other text ----


def test_the_bits_are_pinned():
    assert hash_text("nanogka") == hash_text(b"nanogka") == 4559099818175738748
    assert permutation(10, 1, 2).tolist() == [1, 0, 4, 5, 7, 3, 8, 2, 6, 9]


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_a_permutation_has_each_number_once_and_depends_on_every_key(n):
    order = permutation(n, 5, 6)
    assert sorted(order.tolist()) == list(range(n))
    if n == 1000:
        assert not np.array_equal(order, permutation(n, 5, 7))
        assert not np.array_equal(order, permutation(n, 56))
        # a random order moves a number by n / 3 on average
        assert abs(np.abs(order - np.arange(n)).mean() - n / 3) < n / 20
