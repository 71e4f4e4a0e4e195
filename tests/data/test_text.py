"""Own .txt and .jsonl files: cutting, splitting, and the errors of bad ones."""

import json
import random

import pytest

from nanogka.data import open_corpus
from nanogka.data.text import DOCUMENT_BYTES, LONGEST_BYTES


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
    assert list(corpus.documents("val")) == list(open_corpus(tmp_path).documents("val"))
    assert corpus.blocks("train").sizes.max() == 256
    assert corpus.read("train", 1, [5, 0]) == [corpus.read("train", 1)[i] for i in (5, 0)]
    assert "2 text files" in corpus.describe()


def test_a_documents_split_follows_from_its_text_alone(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [f"Document {i}" for i in range(300)])
    before = set(open_corpus(tmp_path).documents("val"))
    write_jsonl(tmp_path / "0.jsonl", [f"Another {i}" for i in range(300)] + [f"Document {i}" for i in range(40)])
    corpus = open_corpus(tmp_path)
    assert {text for text in corpus.documents("val") if text.startswith("Document")} == before
    assert not set(corpus.documents("train")) & set(corpus.documents("val"))


def test_few_documents_leave_at_least_one_in_each_split_and_fewer_than_two_are_an_error(tmp_path):
    for texts in ([f"{trial} {i}" for i in range(n)] for n in (2, 10) for trial in range(10)):
        write_jsonl(tmp_path / "a.jsonl", texts)
        corpus = open_corpus(tmp_path / "a.jsonl")
        assert list(corpus.documents("train"))
        assert list(corpus.documents("val"))
    for texts in ([], ["same", "same"]):
        write_jsonl(tmp_path / "a.jsonl", texts)
        with pytest.raises(ValueError, match=f"with {min(1, len(texts))} documents, expected two different ones"):
            open_corpus(tmp_path)


def test_small_txt_files_are_a_document_each_and_blank_ones_are_counted(tmp_path):
    texts = [f"Text {i}\n\nwith a second paragraph\n" for i in range(5)]
    for i, text in enumerate([*texts, "", " \n\n"]):  # an empty file has no document to skip
        (tmp_path / f"{i}.txt").write_text(text)
    write_jsonl(tmp_path / "c.jsonl", ["one more", "", "  "])
    corpus = open_corpus(tmp_path)
    assert sorted(all_documents(corpus)) == sorted([*texts, "one more"])
    assert "3 without text skipped" in corpus.describe()


@pytest.mark.parametrize("unit", ["A paragraph. " * 18 + "\n\n", "one line after another\n", "no line end ", "☕é"])
def test_a_big_txt_is_cut_into_documents_and_nothing_is_lost(tmp_path, unit):
    rng = random.Random(2)
    text = "".join(unit + str(rng.random()) for _ in range(200_000 // len(unit.encode())))
    (tmp_path / "book.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    documents = sorted(all_documents(open_corpus(tmp_path / "book.txt")), key=text.index)
    assert "".join(documents) == text
    assert len(documents) > 8
    assert all(len(document.encode()) < LONGEST_BYTES + DOCUMENT_BYTES for document in documents)
    if "\n\n" in unit:
        assert {document[-2:] for document in documents[:-1]} == {"\n\n"}


@pytest.mark.parametrize(
    "line, problem",
    [
        (b'{"text": "unfinished', r"is not valid JSON \(Unterminated string"),
        (b'{"text": 5}', r'expected an object such as \{"text"'),
        (b'{"text": "\xff"}', r"is not valid JSON \(not UTF-8 at byte 10"),
        (b'{"text": "\\ud83d"}', r"is not valid JSON \(text: got a lone surrogate"),
    ],
)
def test_a_bad_line_is_named_with_file_and_line(tmp_path, line, problem):
    good = b'{"text": "fine"}\n'
    (tmp_path / "a.jsonl").write_bytes(good * 4 + line + b"\n" + good)
    with pytest.raises(ValueError, match=f"a.jsonl: line 5 {problem}"):
        open_corpus(tmp_path)


def test_a_change_of_the_text_is_seen_by_the_fingerprint_and_while_reading(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [f"Document {i}" for i in range(100)])
    corpus = open_corpus(tmp_path)
    assert open_corpus(tmp_path).fingerprint == corpus.fingerprint
    write_jsonl(tmp_path / "a.jsonl", [f"document {i}" for i in range(100)])
    assert open_corpus(tmp_path).fingerprint != corpus.fingerprint
    (tmp_path / "a.jsonl").write_text("shorter")
    with pytest.raises(ValueError, match="a.jsonl: line 1 is not valid JSON"):
        list(corpus.documents("train"))
