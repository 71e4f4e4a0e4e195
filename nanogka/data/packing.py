"""Filling rows with documents, best fit, without padding.

A row has `row_len` tokens and begins with the document token, as every document in it does. Two ways to end a row:

* `bestfit` (default): where no piece fits whole, the longest is cut, and its rest waits as a piece of its own (with a
  document token in front) for a later row. Every token of a document is used once.
* `bos-bestfit-crop` (nanochat's): where none fits whole, the shortest is cropped to fill the row and its rest dropped.

Conversations are packed a third way, `WHOLE`: the one that has waited longest begins a row, the best fits follow, and
where none fits whole, the rest of the row is padding, for which there is nothing to learn. Only pieces of at most a
row's length may be added.
"""

from bisect import bisect_right, insort
from collections.abc import Callable

import numpy as np

PACKINGS = ("bestfit", "bos-bestfit-crop")
WHOLE = "whole"
PADDING = -1


class Packer:
    """Pieces of documents that wait for a place in a row.

    A piece is (length, −serial, document, offset, tokens): its length counts the document token in front, `offset` is
    where in the document it begins, `tokens` are the document's from there on, without a document token. The list is
    sorted, so that the best fit is a bisection; among pieces of one length the oldest is taken.

    Attributes:
        tokens: how many tokens wait, document tokens included.
        dropped: how many tokens of documents were dropped so far.
        placed: the documents in the row filled last, in order; one cut into pieces may come more than once.
    """

    def __init__(self, row_len: int, bos_id: int, packing: str) -> None:
        self.row_len = row_len
        self.bos_id = bos_id
        self.packing = packing
        self.tokens = 0
        self.dropped = 0
        self.placed: list[int] = []
        self._pieces: list[tuple[int, int, int, int, np.ndarray]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, document: int, offset: int, tokens: np.ndarray) -> None:
        """Adds the piece of `document` that begins at `offset`; `tokens` are those from there on."""
        self._serial += 1
        insort(self._pieces, (1 + len(tokens), -self._serial, document, offset, tokens))
        self.tokens += 1 + len(tokens)

    def buffer(self) -> list[list[int]]:
        """[document, offset] of every waiting piece, oldest first: adding them in this order restores the packer."""
        return [[piece[2], piece[3]] for piece in sorted(self._pieces, key=lambda piece: -piece[1])]

    def fill(self, refill: Callable[[int], bool]) -> np.ndarray | None:
        """One row, (row_len,) int64; None at the end of the text, with `WHOLE` only when nothing waits any more.

        `refill(needed)` is asked before every placement to see to it that at least `needed` tokens wait, and returns
        whether they do.
        """
        if not refill(self.row_len) and not (self.packing == WHOLE and self._pieces):
            return None
        row = np.empty(self.row_len, np.int64)
        self.placed = []
        at = 0
        while at < self.row_len:
            room = self.row_len - at
            refill(room)
            fits = bisect_right(self._pieces, (room, 1)) - 1
            if self.packing == WHOLE and at == 0:
                # The oldest begins a row: where no cut makes room, one of an awkward length would wait for ever.
                fits = max(range(len(self._pieces)), key=lambda i: self._pieces[i][1])
            if fits >= 0:
                at = self._place(row, at, *self._take(fits))
            elif self.packing == "bestfit":
                at = self._place_cut(row, at, room)
            elif self.packing == WHOLE:
                row[at:] = PADDING
                break
            else:
                shortest = bisect_right(self._pieces, (self._pieces[0][0], 1)) - 1
                document, offset, tokens = self._take(shortest)
                self.dropped += len(tokens) - (room - 1)
                at = self._place(row, at, document, offset, tokens[: room - 1])
        return row

    def _take(self, index: int) -> tuple[int, int, np.ndarray]:
        length, _, document, offset, tokens = self._pieces.pop(index)
        self.tokens -= length
        return document, offset, tokens

    def _place(self, row: np.ndarray, at: int, document: int, offset: int, tokens: np.ndarray) -> int:
        row[at] = self.bos_id
        row[at + 1 : at + 1 + len(tokens)] = tokens
        if len(tokens):
            self.placed.append(document)
        return at + 1 + len(tokens)

    def _place_cut(self, row: np.ndarray, at: int, room: int) -> int:
        if room == 1:  # the document token ends the last document; a piece would only be taken out and put back
            row[at] = self.bos_id
            return at + 1
        document, offset, tokens = self._take(len(self._pieces) - 1)
        self.add(document, offset + room - 1, tokens[room - 1 :])
        return self._place(row, at, document, offset, tokens[: room - 1])
