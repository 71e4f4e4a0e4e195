"""One stream of packed rows: a fixed share of a split's documents, in an order that the seed decides.

A loader has one or more streams. A document belongs to exactly one stream in each epoch, whatever the number of ranks:
ranks share out the streams, so their number can change between two runs without repeating or losing a document.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nanogka.data.corpus import Corpus, Encode
from nanogka.data.order import permutation
from nanogka.data.packing import Packer

CHUNK = 64  # documents tokenised together
BUFFER_TOKENS = 1 << 20  # no more are read ahead, however few documents they are
COUNTS = ("rows", "documents", "skipped", "document_tokens", "dropped_tokens")


@dataclass(frozen=True)
class StreamSettings:
    """What decides the rows of every stream: equal settings, equal rows."""

    split: str
    sequence_len: int
    packing: str
    seed: int
    shuffle: bool
    epochs: int | None  # None: without end
    n_streams: int
    buffer_documents: int


class Stream:
    """Stream `index` of `settings.n_streams`; `next_row` gives its rows, `state` where it stands."""

    def __init__(
        self,
        corpus: Corpus,
        encode: Encode,
        bos_id: int,
        index: int,
        settings: StreamSettings,
        state: dict | None = None,
    ) -> None:
        self.corpus, self.encode, self.index, self.settings = corpus, encode, index, settings
        # One token more than a row has inputs, so that the last input has a target.
        self.packer = Packer(settings.sequence_len + 1, bos_id, settings.packing)
        self.sizes, self.shard_of = corpus.blocks(settings.split)
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)
        self.counts = dict.fromkeys(COUNTS, 0)
        # Where the next document to be buffered stands: epoch, block in this epoch's order, row among this stream's.
        self.cursor = (0, 0, 0)
        self._orders: dict[int, np.ndarray] = {}
        if state is not None:
            self.cursor = (state["epoch"], state["block"], state["row"])
            self.counts.update(state["counts"])
            self.packer.dropped = self.counts["dropped_tokens"]
            self._restore(state["buffer"])
        self._pending: deque[tuple[int, np.ndarray | None, tuple[int, int, int]]] = deque()
        self._chunks = self._read_chunks(self.cursor)

    def state(self) -> dict:
        """What a new `Stream` needs to give the rows from here on; JSON, a few bytes a buffered document."""
        epoch, block, row = self.cursor
        counts = {**self.counts, "dropped_tokens": self.packer.dropped}
        return {"epoch": epoch, "block": block, "row": row, "buffer": self.packer.buffer(), "counts": counts}

    def next_row(self) -> np.ndarray | None:
        """The next row, (sequence_len + 1,) int64; None when the last epoch has no more full row."""
        row = self.packer.fill(self._refill)
        if row is not None:
            self.counts["rows"] += 1
        return row

    def _refill(self, needed: int) -> bool:
        packer, most = self.packer, self.settings.buffer_documents
        while packer.tokens < needed or (len(packer) < most and packer.tokens < BUFFER_TOKENS):
            if not self._pull():
                break
        return packer.tokens >= needed

    def _pull(self) -> bool:
        """Moves the next document into the packer; False at the end."""
        if not self._pending:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._pending.extend(zip(*chunk))
        document, tokens, self.cursor = self._pending.popleft()
        if tokens is None:
            self.counts["skipped"] += 1
            return True
        self.counts["documents"] += 1
        self.counts["document_tokens"] += len(tokens)
        self.packer.add(document, 0, tokens)
        return True

    def _read_chunks(self, cursor: tuple[int, int, int]) -> Iterator[tuple[list[int], list, list[tuple]]]:
        """(document numbers, the ids of each or None, the cursor after each) of this stream from `cursor` on."""
        epoch, first_block, first_row = cursor
        barren = 0  # epochs on end in which this stream had no document
        while self.settings.epochs is None or epoch < self.settings.epochs:
            found = False
            order = self._block_order(epoch)
            for at in range(first_block, len(order)):
                block = int(order[at])
                mine = self._rows_of(epoch, at, block)
                for row in range(first_row, len(mine), CHUNK):
                    chosen = mine[row : row + CHUNK]
                    arrays = self.corpus.read_tokens(self.settings.split, block, chosen, self.encode)
                    found = found or any(ids is not None for ids in arrays)
                    cursors = [(epoch, at, row + i + 1) for i in range(len(chosen))]
                    yield (chosen + self.starts[block]).tolist(), arrays, cursors
                first_row = 0
            barren = 0 if found or first_block else barren + 1
            # A stream's share moves on by one each epoch, so that in a small split each has its turn.
            if barren > self.settings.n_streams:
                raise ValueError(f"--data: the {self.settings.split} split of {self.corpus.path} has no text at all")
            epoch, first_block = epoch + 1, 0

    def _block_order(self, epoch: int) -> np.ndarray:
        """The blocks in this epoch's order: shards shuffled, then the blocks within each."""
        if not self.settings.shuffle:
            return np.arange(len(self.sizes))
        shards = np.unique(self.shard_of)
        parts = []
        for shard in shards[permutation(len(shards), self.settings.seed, epoch)]:
            blocks = np.flatnonzero(self.shard_of == shard)
            parts.append(blocks[permutation(len(blocks), self.settings.seed, epoch, int(shard))])
        return np.concatenate(parts)

    def _rows_of(self, epoch: int, at: int, block: int) -> np.ndarray:
        """The rows of `block` that are this stream's in this epoch, in order; the others' are the other streams'."""
        size, n = int(self.sizes[block]), self.settings.n_streams
        rows = permutation(size, self.settings.seed, epoch, block, 1) if self.settings.shuffle else np.arange(size)
        return rows[(self.index - at - epoch) % n :: n]

    def _restore(self, buffer: list[list[int]]) -> None:
        """Reads and encodes the buffered documents again, block by block."""
        wanted: dict[int, list[int]] = {}
        for document, _ in buffer:
            wanted.setdefault(int(np.searchsorted(self.starts, document, "right")) - 1, []).append(document)
        tokens: dict[int, np.ndarray] = {}
        for block, documents in wanted.items():
            rows = [document - int(self.starts[block]) for document in documents]
            arrays = self.corpus.read_tokens(self.settings.split, block, rows, self.encode)
            tokens.update(zip(documents, arrays))
        for document, offset in buffer:
            self.packer.add(document, offset, tokens[document][offset:])
