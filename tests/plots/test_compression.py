"""The compressors' bits per byte."""

import gzip
import lzma

import pytest

from nanogka.plots.compression import compress

TEXTS = ["The first document, with half a surrogate \ud83d\n", "naïve — 日本語 🎈", "And a third, " * 50]


def test_bits_per_byte_are_those_of_the_concatenated_text():
    data = "".join(TEXTS).encode("utf-8", "surrogatepass")
    found = compress(iter(TEXTS))
    assert (found.text_bytes, found.whole) == (len(data), True)
    assert found.gzip_bpb == 8 * len(gzip.compress(data, 9, mtime=0)) / len(data)
    assert found.xz_bpb == 8 * len(lzma.compress(data)) / len(data)


@pytest.mark.parametrize("limit, texts", [(45, 1), (46, 1), (47, 2), (10**6, 3)])
def test_a_long_text_is_cut_after_a_whole_document_and_says_so(limit, texts):
    found = compress(iter(TEXTS), max_bytes=limit)
    assert found.text_bytes == len("".join(TEXTS[:texts]).encode("utf-8", "surrogatepass"))
    assert found.whole == (texts == 3)
