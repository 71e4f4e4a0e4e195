"""Streaming detokenization: whole characters only, and nothing of a stop string.

A byte-level token may end in the middle of a character ("é" is the bytes C3 A9, which may be two tokens), and a stop
string may come in pieces. Both are held back until they are complete or impossible.
"""

import codecs
from collections.abc import Iterable

from nanogka.tokenizer import Tokenizer


class TextStream:
    """Text of one sample, from its tokens; it ends before the first stop string, and `stopped` is True from then on."""

    def __init__(self, tokenizer: Tokenizer, stop_strings: Iterable[str] = ()) -> None:
        self.stopped = False
        self._tokenizer = tokenizer
        self._silent = frozenset(tokenizer.special_tokens.values())
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop_strings = tuple(stop_strings)
        self._held = ""  # decoded, but perhaps the beginning of a stop string

    def push(self, token: int) -> str:
        """The text that becomes certain with one more token; bytes that cannot be UTF-8 become U+FFFD."""
        return "" if token in self._silent else self._release(self._tokenizer.decode_bytes([token]))

    def finish(self) -> str:
        """The text that was held back; an incomplete character becomes U+FFFD."""
        return self._release(b"", final=True)

    def _release(self, data: bytes, final: bool = False) -> str:
        if self.stopped:
            return ""
        text = self._held + self._decoder.decode(data, final)
        found = [at for at in map(text.find, self._stop_strings) if at >= 0]
        # An end that begins a stop string may still become one: "the e" is held back if "the end" stops the text.
        keep = 0 if found or final else self._unfinished(text)
        self.stopped, end = bool(found), min(found, default=len(text) - keep)
        self._held = "" if found else text[end:]
        return text[:end]

    def _unfinished(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = min(len(text), max(map(len, self._stop_strings), default=1) - 1)
        return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self._stop_strings)), 0)
