"""Streaming detokenisation: whole characters only, and nothing of a stop string.

A byte-level token may end in the middle of a character: "é" is the bytes C3 A9, which may be two tokens, and C3 alone
is no text. A stop string may come in pieces, too. Both are held back until they are complete or impossible.
"""

import codecs
from collections.abc import Iterable, Sequence

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
        """The text that becomes certain with one more token; "" once stopped.

        Bytes that cannot be UTF-8 become U+FFFD as soon as that is certain: the whole text equals the tokens' bytes
        decoded at once with errors replaced.
        """
        if self.stopped or token in self._silent:
            return ""
        return self._release(self._decoder.decode(self._tokenizer.decode_bytes([token])))

    def finish(self) -> str:
        """The text that was held back; an incomplete character becomes U+FFFD."""
        if self.stopped:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        if self.stopped:
            return text
        rest, self._held = self._held, ""
        return text + rest

    def _release(self, text: str) -> str:
        if not self._stop_strings:
            return text
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stop_strings) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        # An end that begins a stop string may still become one: "the e" is held back if "the end" stops the text.
        keep = _unfinished(text, self._stop_strings)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _unfinished(text: str, stop_strings: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a stop string."""
    longest = min(len(text), max(map(len, stop_strings)) - 1)
    for size in range(longest, 0, -1):
        end = text[len(text) - size :]
        if any(stop.startswith(end) for stop in stop_strings):
            return size
    return 0
