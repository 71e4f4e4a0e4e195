"""Pack documents of any length into rows of equal length."""

from bisect import bisect_right, insort
from collections.abc import Iterable

import numpy as np

from nanogka.data.permutation import hash_text

PACKINGS = ("bestfit", "bos-bestfit-crop")
PADDED = "padded"  # for conversations, which must not be cut
PADDING = -1
BUFFER_TOKENS = 1 << 20  # limit of what is read ahead, where documents are long


class Packer:
    """Fills rows of `row_len` tokens with pieces of documents, best fit first.

    A row begins with BOS, as every piece in it does. So a model always knows where a text starts, and no row begins in
    the middle of a sentence whose first half it cannot see. Concatenated text cut into rows would do that to most rows.

    The longest of the waiting pieces that still fits is always placed. Large pieces go first, while there is room, and
    small ones fill the gaps. So few documents are cut and no position is wasted. If no waiting piece fits whole:

    * `bestfit`: the longest is cut, and its rest waits as a new piece. Every token is used once.
    * `bos-bestfit-crop` (nanochat's): the shortest is cropped to fill the row, and its rest dropped.
    * `PADDED`: the rest of the row is padding. Each row starts with the oldest waiting piece; otherwise a piece of an
      awkward length might wait forever. No document may be longer than a row. The order within a row is that of a hash:
      short pieces wait longest, so they would always come first, and a model would see no long one at that place.

    `documents` are (number, tokens without BOS). The packer draws one when it needs it, until the buffer is full: the
    more pieces wait, the better one fits.
    """

    def __init__(
        self,
        row_len: int,
        bos_id: int,
        packing: str,
        documents: Iterable[tuple[int, np.ndarray]],
        buffer_documents: float,
        buffer_tokens: float = BUFFER_TOKENS,
    ) -> None:
        self.row_len, self.bos_id, self.packing = row_len, bos_id, packing
        self.documents, self.buffer_documents, self.buffer_tokens = iter(documents), buffer_documents, buffer_tokens
        self.tokens = self.dropped = 0  # waiting, BOS included; dropped so far, without BOS
        # (length with BOS, −serial, document, offset in it, tokens from there on). The list is sorted, so the best fit
        # is found by bisection; −serial makes the oldest of one length come last, where bisection from the right ends.
        self._pieces: list[tuple[int, int, int, int, np.ndarray]] = []
        self._serial = 0
        self.placed: list[tuple[int, int, int]] = []  # in the last row: (document, position of its BOS, tokens)

    def add(self, document: int, offset: int, tokens: np.ndarray) -> None:
        """Add the piece of `document` that begins at `offset`; `tokens` are those from there on."""
        self._serial += 1
        insort(self._pieces, (1 + len(tokens), -self._serial, document, offset, tokens))
        self.tokens += 1 + len(tokens)

    def buffer(self) -> list[list[int]]:
        """[document, offset] of every waiting piece, oldest first. Adding them in this order restores the packer."""
        return [[piece[2], piece[3]] for piece in sorted(self._pieces, key=lambda piece: -piece[1])]

    def next_row(self) -> np.ndarray | None:
        """One row, (row_len,) int64; None if what is left does not fill one (`PADDED`: if nothing is left)."""
        if not self._refill(self.row_len) and not (self.packing == PADDED and self._pieces):
            return None
        row = np.full(self.row_len, PADDING, np.int64)
        at, self.placed = 0, []
        while at < self.row_len:
            room = self.row_len - at
            self._refill(room)
            index = bisect_right(self._pieces, (room, 1)) - 1  # the longest piece that fits, −1 if none does
            if self.packing == PADDED and at == 0:
                index = max(range(len(self._pieces)), key=lambda i: self._pieces[i][1])  # the oldest
            elif index < 0 and self.packing == PADDED:
                break
            elif index < 0 and self.packing == "bestfit":
                if room == 1:  # BOS ends the row: a piece would only be taken out and put back
                    row[at] = self.bos_id
                    break
                index = len(self._pieces) - 1  # the longest
            elif index < 0:
                index = bisect_right(self._pieces, (self._pieces[0][0], 1)) - 1  # the oldest of the shortest
            length, _, document, offset, tokens = self._pieces.pop(index)
            self.tokens -= length
            placed, rest = tokens[: room - 1], tokens[room - 1 :]
            if len(rest) and self.packing == "bestfit":
                self.add(document, offset + room - 1, rest)
            else:
                self.dropped += len(rest)
            row[at] = self.bos_id
            row[at + 1 : at + 1 + len(placed)] = placed
            self.placed.append((document, at, len(placed)))
            at += 1 + len(placed)
        return self._scattered(row) if self.packing == PADDED else row

    def _scattered(self, row: np.ndarray) -> np.ndarray:
        """The row with its pieces in an order that does not depend on their lengths."""
        mixed, at, placed = np.full_like(row, PADDING), 0, []
        for document, begin, tokens in sorted(self.placed, key=lambda piece: hash_text(str(piece[0]))):
            mixed[at : at + 1 + tokens] = row[begin : begin + 1 + tokens]
            placed.append((document, at, tokens))
            at += 1 + tokens
        self.placed = placed
        return mixed

    def _refill(self, needed: int) -> bool:
        """Draw documents until `needed` tokens wait and the buffer is full. Return whether `needed` tokens wait."""
        while self.tokens < needed or (len(self._pieces) < self.buffer_documents and self.tokens < self.buffer_tokens):
            if (found := next(self.documents, None)) is None:
                break
            document, tokens = found
            self.add(document, 0, tokens)
        return self.tokens >= needed
