"""Parquet corpora: what is read, and what is said of a damaged one."""

import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanogka.data import open_corpus

SHARDS = ([f"a{i}" for i in range(20)], [f"b{i}" for i in range(9)], [f"v{i}" for i in range(11)])


def test_the_last_shard_by_name_is_validation_and_order_is_kept(tmp_path, write_shards):
    folder = write_shards(tmp_path, *SHARDS)
    (folder / "notes.md").write_text("not a shard")
    (folder / ".partial.parquet").write_text("not finished")
    corpus = open_corpus(folder)
    assert list(corpus.documents("train")) == SHARDS[0] + SHARDS[1]
    assert list(corpus.documents("val")) == SHARDS[2]
    sizes, shard_of = corpus.blocks("train")
    assert (sizes.tolist(), shard_of.tolist()) == ([7, 7, 6, 7, 2], [0, 0, 0, 1, 1])
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


def test_fewer_than_two_shards_is_an_error_that_says_why(tmp_path, write_shards):
    with pytest.raises(ValueError, match=r"fewer than two .parquet shards \(shard_00000.parquet\); takes at least two"):
        open_corpus(write_shards(tmp_path, ["a"]))


def test_an_empty_split_is_an_error(tmp_path, write_shards):
    with pytest.raises(ValueError, match=r"whose val split \(shard_00001.parquet\) has no rows"):
        open_corpus(write_shards(tmp_path / "v", ["a"], []))
    with pytest.raises(ValueError, match=r"whose train split \(every shard but the last\) has no rows"):
        open_corpus(write_shards(tmp_path / "t", [], ["a"]))


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_truncated_shard_is_named_when_the_corpus_is_opened(tmp_path, write_shards, keep):
    file = write_shards(tmp_path, *SHARDS) / "shard_00001.parquet"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"shard_00001.parquet: no parquet file, or a truncated one"):
        open_corpus(tmp_path)


def test_damage_inside_a_row_group_names_file_and_row_group(tmp_path, write_shards):
    texts = [f"{i * 7919 % 1000} words and words" for i in range(50)]
    file = write_shards(tmp_path, texts, ["v"], row_group=10, compression="zstd", use_dictionary=False)
    file = file / "shard_00000.parquet"
    metadata = pq.read_metadata(file)
    start = metadata.row_group(3).column(0).data_page_offset
    data = bytearray(file.read_bytes())
    size = metadata.row_group(3).column(0).total_compressed_size
    data[start : start + size] = b"\xff" * size
    file.write_bytes(data)
    corpus = open_corpus(tmp_path)
    assert corpus.read("train", 2)[0] == texts[20]
    with pytest.raises(ValueError, match=r"shard_00000.parquet: row group 3 cannot be read"):
        corpus.read("train", 3)


def test_a_missing_or_wrong_column_is_named(tmp_path):
    pq.write_table(pa.table({"body": ["a"], "id": [1]}), tmp_path / "0.parquet")
    with pytest.raises(ValueError, match=r"takes at least two"):
        open_corpus(tmp_path)
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "1.parquet")
    with pytest.raises(ValueError, match=r"0.parquet: has the columns body, id, takes one called 'text'"):
        open_corpus(tmp_path)
    for values, kind in (([1], "int64"), ([b"a"], "binary")):
        pq.write_table(pa.table({"text": values}), tmp_path / "0.parquet")
        with pytest.raises(ValueError, match=rf"0.parquet: the column 'text' holds {kind}, takes strings"):
            open_corpus(tmp_path)


def test_invalid_utf8_names_file_and_row_group(tmp_path, write_shards):
    write_shards(tmp_path, *SHARDS)
    broken = pa.array([b"fine", b"bro\xffken"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": broken}), tmp_path / "shard_00000.parquet")
    corpus = open_corpus(tmp_path)
    with pytest.raises(ValueError, match=r"shard_00000.parquet: row group 0 has text that is not UTF-8 .*0xff.*bro"):
        list(corpus.documents("train"))


def test_the_fingerprint_sees_names_sizes_and_rows(tmp_path, write_shards):
    prints = set()
    for i, shards in enumerate(
        [SHARDS, SHARDS[:2], (SHARDS[0], SHARDS[1], SHARDS[2][:-1]), ([*SHARDS[0][:-1], "a longer text"], *SHARDS[1:])]
    ):
        prints.add(open_corpus(write_shards(tmp_path / str(i), *shards)).fingerprint)
    again = open_corpus(write_shards(tmp_path / "again", *SHARDS)).fingerprint
    assert again in prints
    assert len(prints) == 4


def test_threads_read_one_corpus_one_at_a_time(tmp_path, write_shards, monkeypatch):
    corpus = open_corpus(write_shards(tmp_path, *([f"{s}.{i}" for i in range(60)] for s in range(9))))
    wanted = list(corpus.documents("train"))
    inside, most, results = [], [], []
    column = corpus._column

    def watched(*place):
        inside.append(place)
        most.append(len(inside))
        time.sleep(0.0005)  # lets the other threads in, if anything does
        found = column(*place)
        inside.pop()
        return found

    monkeypatch.setattr(corpus, "_column", watched)
    threads = [
        threading.Thread(target=lambda: results.append(list(corpus.documents("train")) == wanted)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4
    assert max(most) == 1


def test_paths_that_are_no_corpus_are_refused(tmp_path):
    with pytest.raises(ValueError, match="--data: got '.*/nothing', which does not exist; takes 'embedded'"):
        open_corpus(tmp_path / "nothing")
    with pytest.raises(ValueError, match="a folder without any .parquet, .txt or .jsonl file"):
        open_corpus(tmp_path)
    (tmp_path / "a.pdf").write_text("x")
    with pytest.raises(ValueError, match="got the file .*a.pdf.*, takes a folder of shards, or a .txt or .jsonl file"):
        open_corpus(tmp_path / "a.pdf")
