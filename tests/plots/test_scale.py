"""The compressors' bits per byte."""

import gzip
import lzma

import pytest

from nanogka.plots.scale import compress, compress_validation

TEXTS = ["The first document, with some words.\n", "naïve — 日本語 🎈", "And a third, " * 50]


def test_bits_per_byte_are_those_of_the_concatenated_text():
    data = "".join(TEXTS).encode()
    found = compress(iter(TEXTS))
    assert found.text_bytes == len(data)
    assert found.whole
    assert found.gzip_bpb == 8 * len(gzip.compress(data, 9, mtime=0)) / len(data)
    assert found.xz_bpb == 8 * len(lzma.compress(data)) / len(data)


def test_a_long_text_is_cut_after_a_whole_document_and_says_so():
    found = compress(iter(TEXTS), max_bytes=40)
    data = "".join(TEXTS[:2]).encode()
    assert (found.text_bytes, found.whole) == (len(data), False)
    assert found.gzip_bytes == len(gzip.compress(data, 9, mtime=0))


def test_a_text_of_just_the_limit_is_whole():
    assert compress(iter(["abcd", "efgh"]), max_bytes=8).whole
    beyond = compress(iter(["abcd", "efgh", "i"]), max_bytes=8)
    assert (beyond.text_bytes, beyond.whole) == (8, False)


def test_half_a_surrogate_is_compressed_like_any_text():
    assert compress(["\ud83d and more"]).text_bytes == 3 + len(" and more")


@pytest.mark.parametrize("texts", [[], [""]])
def test_no_text_is_named(texts):
    with pytest.raises(ValueError, match="validation text"):
        compress(texts)


def test_only_validation_documents_are_compressed(tmp_path):
    for i in range(60):
        (tmp_path / f"{i:02d}.txt").write_text(f"Document {i} of the corpus.\n" * 20)
    from nanogka.data import open_corpus

    documents = list(open_corpus(tmp_path).documents("val"))
    assert 0 < len(documents) < 60
    assert compress_validation(str(tmp_path)) == compress(documents)


def test_a_corpus_that_was_moved_is_named(tmp_path):
    with pytest.raises(ValueError, match="gone"):
        compress_validation(str(tmp_path / "gone"))
