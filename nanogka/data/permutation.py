"""Pseudo-random orders that depend only on their keys, not on the machine or library versions."""

import hashlib

import numpy as np


def hash_text(text: str | bytes) -> int:
    """Return a 64-bit hash of a text. Python's own `hash` differs between processes."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def permutation(n: int, *key: int) -> np.ndarray:
    """The numbers 0 to n − 1, (n,) int64, in a random order that `key` decides.

    NumPy and PyTorch may change the bits of their generators between versions. A resumed run would then read other
    documents.
    """
    # Give each number a random key and sort by it. The keys are a counter, started from the hash of `key`, through the
    # finalizer of SplitMix64: shifts and multiplications that spread a change of one bit over all 64.
    start = hash_text(",".join(map(str, key)))
    x = np.uint64(start) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(x ^ (x >> np.uint64(31)), kind="stable")
