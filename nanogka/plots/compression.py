"""Bits per byte of general-purpose compressors on the validation text, for comparison with the model's.

A compressor is a language model, too. Its bits per byte are 8 × compressed / original size.
"""

import gzip
import lzma
from collections.abc import Iterable
from dataclasses import dataclass

MAX_BYTES = 32 * 2**20  # xz needs half a minute for this size; its window (8 MiB) is full long before


@dataclass(frozen=True)
class Compression:
    """Results of the compressors on one text, including headers."""

    text_bytes: int  # as UTF-8
    whole: bool  # whether the whole text was compressed
    gzip_bpb: float  # bits per byte of `gzip -9`
    xz_bpb: float  # bits per byte of `xz` with its default level


def compress(texts: Iterable[str], max_bytes: int = MAX_BYTES) -> Compression:
    """Compress the concatenated texts as UTF-8. Stops after the text that reaches `max_bytes`."""
    parts, total, whole = [], 0, True
    for text in texts:
        if total >= max_bytes:
            whole = False
            break
        # A lone surrogate (possible in a user's text file) is not valid UTF-8. Count it as the three bytes it would
        # need.
        parts.append(text.encode("utf-8", "surrogatepass"))
        total += len(parts[-1])
    if not total:
        raise ValueError("validation text: there is none")
    data = b"".join(parts)
    packed = gzip.compress(data, 9, mtime=0), lzma.compress(data)  # without mtime=0, the header depends on the clock
    return Compression(total, whole, *(8 * len(result) / total for result in packed))
