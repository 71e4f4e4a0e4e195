"""Streaming detokenization: emit whole characters only, and nothing of a stop string.

A byte-level token may end in the middle of a character: "é" is the bytes C3 A9, which may be two tokens. A stop string
may also come in pieces. Both are held back until they are complete or impossible.
"""

import codecs
from collections.abc import Iterable

from nanogka.tokenizer import Tokenizer


class TextStream:
    """The text of one sample, built from its tokens. It ends before the first stop string; `stopped` is then True.

    With `trim`, it begins without blanks: a chat model's reply may begin with one, because words then have the tokens
    that they have within a text.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Iterable[str] = (), trim: bool = False) -> None:
        self.stopped = False
        self._trim = trim  # the blanks at the beginning are left out
        self.decoded = 0  # characters decoded so far, including those held back
        self._tokenizer = tokenizer
        self._silent = frozenset(tokenizer.special_tokens.values())
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop_strings = tuple(stop_strings)
        self._held = ""  # decoded, but perhaps the beginning of a stop string

    def push(self, token: int) -> str:
        """Add a token and return the text that it releases. Bytes that are not UTF-8 become U+FFFD."""
        return "" if token in self._silent else self._release(self._tokenizer.decode_bytes([token]))

    def finish(self) -> str:
        """Return the text that was held back. An incomplete character becomes U+FFFD."""
        return self._release(b"", final=True)

    def _release(self, data: bytes, final: bool = False) -> str:
        if self.stopped:
            return ""
        new = self._decoder.decode(data, final)
        if self._trim:
            new = new.lstrip(" ")
            self._trim = not new
        self.decoded += len(new)
        text = self._held + new
        stops = [at for at in map(text.find, self._stop_strings) if at >= 0]
        if stops:
            self.stopped, self._held = True, ""
            return text[: min(stops)]
        # An end that begins a stop string may still become one: "the e" is held back if "the end" stops the text.
        end = len(text) - (0 if final else self._unfinished(text))
        self._held = text[end:]
        return text[:end]

    def _unfinished(self, text: str) -> int:
        """Length of the longest suffix of `text` that is a prefix of a stop string."""
        longest = min(len(text), max(map(len, self._stop_strings), default=1) - 1)
        return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self._stop_strings)), 0)
