"""The compressors' bits per byte."""

import gzip
import lzma

import pytest

from nanogka.data import open_corpus
from nanogka.plots.compression import compress, compress_validation

TEXTS = ["The first document, with some words.\n", "naïve — 日本語 🎈", "And a third, " * 50]


def test_bits_per_byte_are_those_of_the_concatenated_text():
    data = "".join(TEXTS).encode()
    found = compress(iter(TEXTS))
    assert (found.text_bytes, found.whole) == (len(data), True)
    assert found.gzip_bpb == 8 * len(gzip.compress(data, 9, mtime=0)) / len(data)
    assert found.xz_bpb == 8 * len(lzma.compress(data)) / len(data)


@pytest.mark.parametrize("limit, texts", [(36, 1), (37, 1), (38, 2), (10**6, 3)])
def test_a_long_text_is_cut_after_a_whole_document_and_says_so(limit, texts):
    found = compress(iter(TEXTS), max_bytes=limit)
    assert found.text_bytes == len("".join(TEXTS[:texts]).encode())
    assert found.whole == (texts == 3)


def test_half_a_surrogate_is_compressed_like_any_text_and_no_text_is_named():
    assert compress(["\ud83d and more"]).text_bytes == 3 + len(" and more")
    with pytest.raises(ValueError, match="validation text"):
        compress([""])


def test_only_validation_documents_are_compressed(tmp_path):
    for i in range(60):
        (tmp_path / f"{i:02d}.txt").write_text(f"Document {i} of the corpus.\n" * 20)
    documents = list(open_corpus(tmp_path).documents("val"))
    assert 0 < len(documents) < 60
    assert compress_validation(str(tmp_path)) == compress(documents)
    with pytest.raises(ValueError, match="gone"):
        compress_validation(str(tmp_path / "gone"))
