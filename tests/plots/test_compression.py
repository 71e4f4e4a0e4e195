"""The compressors' bits per byte."""

import gzip
import lzma

import pytest

from nanogka.plots.compression import compress

TEXTS = ["The first document, with half a surrogate \ud83d\n", "naïve — 日本語 🎈", "And a third, " * 50]


@pytest.mark.parametrize("limit, texts", [(46, 1), (47, 2), (10**6, 3)])  # the first text has 46 bytes
def test_bits_per_byte_are_those_of_the_concatenated_text_up_to_a_limit(limit, texts):
    data = "".join(TEXTS[:texts]).encode("utf-8", "surrogatepass")
    packed = {"gzip -9": gzip.compress(data, 9, mtime=0), "xz": lzma.compress(data)}
    expected = {name: 8 * len(code) / len(data) for name, code in packed.items()}
    assert compress(iter(TEXTS), max_bytes=limit) == (len(data), expected)
