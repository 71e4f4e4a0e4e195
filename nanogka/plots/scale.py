"""How far general-purpose compressors get on the same text: a scale for a model's bits per byte.

A compressor's bits per byte are 8 × compressed / original size: like a model's, what it takes to write the text down.
"""

import gzip
import lzma
from collections.abc import Iterable
from dataclasses import dataclass

from nanogka.data import open_corpus

GZIP_LEVEL = 9
XZ_PRESET = 6  # what `xz` does unless told otherwise; its 8 MiB window spans all of a small validation text
MAX_BYTES = 32 * 2**20  # xz takes half a minute for it, and its window is full long before


@dataclass(frozen=True)
class Compression:
    """Compressed sizes of one text.

    Attributes:
        text_bytes: how much UTF-8 text was compressed.
        whole: whether that was all of it.
        gzip_bytes, xz_bytes: what remained, headers included.
    """

    text_bytes: int
    whole: bool
    gzip_bytes: int
    xz_bytes: int

    @property
    def gzip_bpb(self) -> float:
        """Bits per byte of `gzip -9`."""
        return 8 * self.gzip_bytes / self.text_bytes

    @property
    def xz_bpb(self) -> float:
        """Bits per byte of `xz`."""
        return 8 * self.xz_bytes / self.text_bytes


def compress(texts: Iterable[str], max_bytes: int = MAX_BYTES) -> Compression:
    """Compress the texts, one after the other without anything between, as UTF-8.

    Only the first `max_bytes` (to the end of the text they end in) are taken.

    Raises:
        ValueError: if there is no text.
    """
    parts, total, whole = [], 0, True
    for text in texts:
        if total >= max_bytes:
            whole = False
            break
        # A lone surrogate (an own text file may hold one) is no UTF-8: count it as the three bytes it would take.
        parts.append(text.encode("utf-8", "surrogatepass"))
        total += len(parts[-1])
    data = b"".join(parts)
    if not data:
        raise ValueError("validation text: there is none")
    # mtime, or the header would depend on the clock
    packed = gzip.compress(data, GZIP_LEVEL, mtime=0)
    return Compression(len(data), whole, len(packed), len(lzma.compress(data, preset=XZ_PRESET)))


def compress_validation(data: str) -> Compression:
    """`compress` the validation split of the corpus at `data`.

    Raises:
        ValueError, OSError: if the corpus cannot be read.
    """
    return compress(open_corpus(data).documents("val"))
