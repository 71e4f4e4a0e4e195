"""Own .txt and .jsonl files: how they are cut and split, what is cached, and the errors of bad ones."""

import gzip
import json
import os
import random
from concurrent.futures import ThreadPoolExecutor

import pyarrow
import pytest

from nanogka.data import corpus as corpus_module
from nanogka.data import open_corpus, own_text, sharding
from nanogka.data.own_text import DOCUMENT_CHARS, LONGEST_CHARS


def all_documents(corpus) -> list[str]:
    return [*corpus.documents("train"), *corpus.documents("val")]


def write_jsonl(path, texts) -> None:
    path.write_text("".join(json.dumps({"text": text, "n": i}) + "\n" for i, text in enumerate(texts)))


def test_every_line_of_jsonl_is_a_document_in_one_of_two_splits(tmp_path):
    texts = [f"Document {i} of many, ☕." for i in range(2000)]
    write_jsonl(tmp_path / "a.jsonl", texts[:1500])
    write_jsonl(tmp_path / "b.jsonl", texts[1500:])
    corpus = open_corpus(tmp_path)
    assert sorted(all_documents(corpus)) == sorted(texts)
    assert 60 < len(list(corpus.documents("val"))) < 140
    assert str(tmp_path) in corpus.describe()
    # the files are mixed: neighbors in the corpus are not neighbors in a file
    places = [texts.index(text) for text in corpus.documents("train")]
    assert sum(abs(a - b) == 1 for a, b in zip(places, places[1:])) < 20


def test_the_copy_of_own_text_is_closed_to_other_users(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    assert open_corpus(tmp_path / "a.jsonl").folder.stat().st_mode & 0o077 == 0


def test_a_documents_split_follows_from_its_text_alone(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [f"Document {i}" for i in range(300)])
    before = set(open_corpus(tmp_path).documents("val"))
    write_jsonl(tmp_path / "0.jsonl", [f"Another {i}" for i in range(300)] + [f"Document {i}" for i in range(40)])
    corpus = open_corpus(tmp_path)
    assert {text for text in corpus.documents("val") if text.startswith("Document")} == before
    assert not set(corpus.documents("train")) & set(corpus.documents("val"))


def test_few_documents_leave_at_least_one_in_each_split_and_fewer_than_two_are_an_error(tmp_path):
    for number, texts in enumerate([f"{trial} {i}" for i in range(n)] for n in (2, 10) for trial in range(10)):
        write_jsonl(tmp_path / f"{number}.jsonl", texts)
        corpus = open_corpus(tmp_path / f"{number}.jsonl")
        assert list(corpus.documents("train"))
        assert list(corpus.documents("val"))
    for texts in ([], ["same", "same"]):
        write_jsonl(tmp_path / "a.jsonl", texts)
        with pytest.raises(ValueError, match="^data: "):
            open_corpus(tmp_path / "a.jsonl")


def test_small_txt_files_are_a_document_each_and_blank_text_is_none(tmp_path):
    texts = [f"Text {i}\n\nwith a second paragraph\n" for i in range(5)]
    for i, text in enumerate([*texts, "", " \n\n"]):
        (tmp_path / f"{i}.txt").write_text(text)
    (tmp_path / "c.jsonl").write_text('\n{"text": "one more"}\n\n \n{"text": " "}\n')
    assert sorted(all_documents(open_corpus(tmp_path))) == sorted([*texts, "one more"])


@pytest.mark.parametrize("unit", ["A paragraph. " * 18 + "\n\n", "one line after another\r\n", "no line end ", "☕é"])
def test_a_big_txt_is_cut_into_documents_and_nothing_is_lost(tmp_path, unit):
    rng = random.Random(2)
    text = "".join(unit + str(rng.random()) for _ in range(150_000 // len(unit)))
    (tmp_path / "book.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    documents = sorted(all_documents(open_corpus(tmp_path / "book.txt")), key=text.index)
    assert "".join(documents) == text
    assert len(documents) > 4
    assert all(len(document) < LONGEST_CHARS + DOCUMENT_CHARS for document in documents)
    if "\n\n" in unit:
        assert {document[-2:] for document in documents[:-1]} == {"\n\n"}


def test_compressed_files_are_the_text_in_them(tmp_path):
    texts = [f"Document {i} ☕" for i in range(50)]
    write_jsonl(tmp_path / "plain.jsonl", texts)
    data = (tmp_path / "plain.jsonl").read_bytes()
    half = data.index(b"\n", len(data) // 2) + 1
    for name, pack in (
        ("a.jsonl.gz", gzip.compress),
        ("b.jsonl.zst", lambda part: pyarrow.compress(part, "zstd", asbytes=True)),
    ):
        (tmp_path / name).write_bytes(pack(data[:half]) + pack(data[half:]))  # two members, as parallel tools write
        assert sorted(all_documents(open_corpus(tmp_path / name))) == sorted(texts)
    (tmp_path / "c.md.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf# One\r\n"))
    (tmp_path / "d.rst").write_text("Two")
    assert sorted(own_text.documents([tmp_path / "c.md.gz", tmp_path / "d.rst"])) == ["# One\r\n", "Two"]
    for bad in (b"no gzip", gzip.compress(data)[:-9], gzip.compress(data)[:9] + b"junk"):
        (tmp_path / "a.jsonl.gz").write_bytes(bad)
        with pytest.raises(ValueError, match="a.jsonl.gz"):
            open_corpus(tmp_path / "a.jsonl.gz")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n{"text": 5}\n'))
    with pytest.raises(ValueError, match="a.jsonl.gz, line 2: "):
        open_corpus(tmp_path / "a.jsonl.gz")


def test_what_a_folder_has_besides_its_text_is_counted(tmp_path):
    for name in ("a.txt", "b.md", "c.py", "d.csv", "e.csv", "README", ".hidden"):
        (tmp_path / name).write_text(name)
    (tmp_path / "sub").mkdir()
    corpus = open_corpus(tmp_path)
    assert sorted(all_documents(corpus)) == ["a.txt", "b.md", "c.py"]
    note = ", from 3 files; left out: 2 .csv, "
    assert corpus.describe().partition(note)[2] in (
        "1 without a suffix, 1 folders",
        "1 folders, 1 without a suffix",
    )
    for name in ("a.txt", "b.md", "c.py"):
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=r"expected a .parquet, .jsonl.* for .csv use .*make_shards --dataset"):
        open_corpus(tmp_path)


def test_a_folder_with_one_parquet_file_is_split_like_text_unless_its_manifest_says_that_shards_are_missing(tmp_path):
    texts = [f"Document {i}" for i in range(40)]
    folder = tmp_path / "one"
    folder.mkdir()
    sharding.write_shards(folder, [texts])
    for path in (folder, folder / "shard_00000.parquet"):
        corpus = open_corpus(path)
        assert sorted(all_documents(corpus)) == sorted(texts)
        assert list(corpus.documents("val"))
    corpus_module.write_manifest(folder, validation="shard_00001.parquet", source="x")
    with pytest.raises(ValueError, match="shard_00001.parquet .* missing"):
        open_corpus(folder)


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "unfinished',
        b'{"text": 5}',
        b"[" * 100_000,
        b'{"text": "\xff"}',
        b'{"text": "\\ud83d"}',
        b'{"body": "a"}',
    ],
)
def test_a_bad_line_is_named_with_file_and_line(tmp_path, base, line):
    good = b'{"text": "fine"}\n'
    (tmp_path / "a.jsonl").write_bytes(good * 3 + b"\n" + line + b"\n" + good)
    with pytest.raises(ValueError, match="a.jsonl, line 5: "):
        open_corpus(tmp_path)
    assert not list(base.glob("corpora/text-*"))


def test_a_txt_that_is_not_utf8_is_named_whatever_the_bytes_of_its_name(tmp_path):
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"also good")
    assert sorted(all_documents(open_corpus(tmp_path))) == ["also good", "good"]
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="bad.txt: "):
        open_corpus(tmp_path)


def test_text_is_read_once_and_a_change_makes_another_corpus_while_the_first_stays_as_it_is(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "a.jsonl", [f"Document {i}" for i in range(100)])
    with ThreadPoolExecutor(3) as pool:
        corpus, *others = pool.map(lambda _: open_corpus(tmp_path), range(3))
    assert {other.folder for other in others} == {corpus.folder}
    before = all_documents(corpus)
    with monkeypatch.context() as patch:
        patch.setattr(own_text, "documents", lambda *_: pytest.fail("read again"))
        assert open_corpus(tmp_path).fingerprint == corpus.fingerprint
    write_jsonl(tmp_path / "a.jsonl", [f"document {i}" for i in range(100)])
    os.utime(tmp_path / "a.jsonl", (1, 1))  # as far as a clock can tell, both were written at one time
    assert open_corpus(tmp_path).fingerprint != corpus.fingerprint
    (tmp_path / "a.jsonl").write_text("cut")
    assert all_documents(corpus) == before


def test_text_that_memory_can_not_hold_gives_the_same_corpus(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "a.jsonl", [f"Document {i}" for i in range(300)])
    parts = []
    for buckets in (1, 100):
        monkeypatch.setattr(sharding, "BUCKETS", buckets)
        (folder := tmp_path / str(buckets)).mkdir()
        sharding.write_corpus(folder, own_text.documents([tmp_path / "a.jsonl"]), source="", shard_chars=700)
        corpus = open_corpus(folder)
        parts.append((corpus.fingerprint, list(corpus.documents("train")), list(corpus.documents("val"))))
        assert len(corpus.shards) > 4
    assert parts[0] == parts[1]


def test_a_document_beyond_the_limit_is_cut(tmp_path, monkeypatch, write_shards):
    for module in (corpus_module, sharding):
        monkeypatch.setattr(module, "MAX_DOCUMENT_CHARS", 100)
    write_jsonl(tmp_path / "a.jsonl", ["x" * 250, "short"])
    assert sorted(map(len, all_documents(open_corpus(tmp_path / "a.jsonl")))) == [5, 50, 100, 100]
    corpus = open_corpus(write_shards(tmp_path / "shards", ["y" * 250], ["short"]))
    assert list(corpus.documents("train")) == ["y" * 100]
