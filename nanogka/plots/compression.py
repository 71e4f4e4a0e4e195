"""Bits per byte of general-purpose compressors on the validation text: a scale for the model's.

They are 8 × compressed / original size: a compressor is a language model, too, and both count the bits of its code.
"""

import gzip
import lzma
from collections.abc import Iterable
from dataclasses import dataclass

MAX_BYTES = 32 * 2**20  # xz takes half a minute for it, and its window (8 MiB) is full long before


@dataclass(frozen=True)
class Compression:
    """Outcome of the compressors on one text, headers included."""

    text_bytes: int  # as UTF-8
    whole: bool  # whether that was all of it
    gzip_bpb: float  # bits per byte of `gzip -9`
    xz_bpb: float  # and of `xz` at its default


def compress(texts: Iterable[str], max_bytes: int = MAX_BYTES) -> Compression:
    """Compress the concatenated texts as UTF-8, no further than the text in which `max_bytes` are reached."""
    parts, total, whole = [], 0, True
    for text in texts:
        if total >= max_bytes:
            whole = False
            break
        # A lone surrogate (an own text file may hold one) is not UTF-8: count it as the three bytes it would take.
        parts.append(text.encode("utf-8", "surrogatepass"))
        total += len(parts[-1])
    if not total:
        raise ValueError("validation text: there is none")
    data = b"".join(parts)
    packed = gzip.compress(data, 9, mtime=0), lzma.compress(data)  # mtime: or the header depends on the clock
    return Compression(total, whole, *(8 * len(result) / total for result in packed))
