"""Bits per byte of general-purpose compressors on the validation text, as a scale for those of a model.

A compressor is a language model, too: better predictions make shorter codes. Its bits per byte are
8 × compressed / original size.
"""

import gzip
import lzma
from collections.abc import Iterable

MAX_BYTES = 32 * 2**20  # xz needs half a minute for this size; its window (8 MiB) is full long before


def compress(texts: Iterable[str], max_bytes: int = MAX_BYTES) -> tuple[int, dict[str, float]]:
    """Return the number of bytes compressed, and the bits per byte of each compressor, headers included.

    The texts are concatenated as UTF-8, up to and including the text that reaches `max_bytes`.
    """
    data = bytearray()
    for text in texts:
        # A lone surrogate (possible in a user's text file) is not valid UTF-8. Count it as its three bytes.
        data += text.encode("utf-8", "surrogatepass")
        if len(data) >= max_bytes:
            break
    if not data:
        raise ValueError("validation text: there is none")
    packed = {"gzip -9": gzip.compress(data, 9, mtime=0), "xz": lzma.compress(data)}  # mtime: bytes without the time
    return len(data), {name: 8 * len(result) / len(data) for name, result in packed.items()}
