"""One stream of packed rows: a fixed share of a split's documents, in an order that the seed decides.

A loader has one or more streams. A document belongs to exactly one stream in each epoch, whatever the number of ranks:
ranks share out the streams, so their number can change between two runs without repeating or losing a document.
"""

from collections import deque
from collections.abc import Callable, Iterator
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


class Stopped(Exception):
    """The loader was closed while a stream waited for a shard."""


class Stream:
    """Stream `index` of `settings.n_streams`; `next_row` gives its rows, `state` where it stands.

    `wait(shard)` returns once that shard of the split is there.
    """

    def __init__(
        self,
        corpus: Corpus,
        encode: Encode,
        bos_id: int,
        index: int,
        settings: StreamSettings,
        state: dict | None = None,
        wait: Callable[[int], None] = lambda shard: None,
    ) -> None:
        self.corpus, self.encode, self.index, self.settings = corpus, encode, index, settings
        # One token more than a row has inputs, so that the last input has a target.
        self.packer = Packer(settings.sequence_len + 1, bos_id, settings.packing)
        self.layout, self.wait = corpus.layout(settings.split), wait
        self.counts = dict.fromkeys(COUNTS, 0)
        # Where the next document to be buffered stands: epoch, shard in this epoch's order, block in this epoch's
        # order of that shard, row among this stream's.
        self.cursor = (0, 0, 0, 0)
        if state is not None:
            self.cursor = (state["epoch"], state["shard"], state["block"], state["row"])
            self.counts.update(state["counts"])
            self.packer.dropped = self.counts["dropped_tokens"]
            self._restore(state["buffer"])
        self._pending: deque[tuple[int, np.ndarray | None, tuple[int, int, int, int]]] = deque()
        self._chunks = self._read_chunks(self.cursor)

    def state(self) -> dict:
        """What a new `Stream` needs to give the rows from here on; JSON, a few bytes a buffered document."""
        epoch, shard, block, row = self.cursor
        counts = {**self.counts, "dropped_tokens": self.packer.dropped}
        place = {"epoch": epoch, "shard": shard, "block": block, "row": row}
        return {**place, "buffer": self.packer.buffer(), "counts": counts}

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

    def _read_chunks(self, cursor: tuple[int, int, int, int]) -> Iterator[tuple[list[int], list, list[tuple]]]:
        """(document numbers, the ids of each or None, the cursor after each) of this stream from `cursor` on."""
        epoch, first_shard, first_block, first_row = cursor
        barren = 0  # epochs on end in which this stream had no document
        while self.settings.epochs is None or epoch < self.settings.epochs:
            found, began = False, (first_shard, first_block)
            for i, shard in enumerate(self._shard_order(epoch).tolist()[first_shard:], first_shard):
                self.wait(shard)
                blocks, sizes = self._block_order(epoch, shard)
                for j in range(first_block, len(blocks)):
                    block, place = int(blocks[j]), (epoch, i, j)
                    mine = self._rows_of(epoch, i + j, block, int(sizes[j]))
                    for row in range(first_row, len(mine), CHUNK):
                        chosen = mine[row : row + CHUNK]
                        arrays = self.corpus.read_tokens(self.settings.split, block, chosen, self.encode)
                        found = found or any(ids is not None for ids in arrays)
                        cursors = [(*place, row + k + 1) for k in range(len(chosen))]
                        yield (chosen + self.layout.first_row(block)).tolist(), arrays, cursors
                    first_row = 0
                first_block = 0
            barren = 0 if found or any(began) else barren + 1
            # A stream's share moves on by one each epoch, so that in a small split each has its turn.
            if barren > self.settings.n_streams:
                raise ValueError(f"--data: the {self.settings.split} split of {self.corpus.path} has no text at all")
            epoch, first_shard = epoch + 1, 0

    def _shard_order(self, epoch: int) -> np.ndarray:
        """The shards in this epoch's order, whichever of them are there."""
        shards = self.layout.shards
        return shards[permutation(len(shards), self.settings.seed, epoch)] if self.settings.shuffle else shards

    def _block_order(self, epoch: int, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """The blocks of a shard in this epoch's order, and the rows in each."""
        blocks, sizes = self.layout.blocks(shard)
        if not self.settings.shuffle:
            return blocks, sizes
        order = permutation(len(blocks), self.settings.seed, epoch, shard)
        return blocks[order], sizes[order]

    def _rows_of(self, epoch: int, at: int, block: int, size: int) -> np.ndarray:
        """The rows of `block` that are this stream's in this epoch, in order; the others' are the other streams'."""
        n = self.settings.n_streams
        rows = permutation(size, self.settings.seed, epoch, block, 1) if self.settings.shuffle else np.arange(size)
        return rows[(self.index - at - epoch) % n :: n]

    def _restore(self, buffer: list[list[int]]) -> None:
        """Reads and encodes the buffered documents again, block by block."""
        wanted: dict[tuple[int, int], list[int]] = {}
        for document, _ in buffer:
            wanted.setdefault(self.layout.block_of(document), []).append(document)
        tokens: dict[int, np.ndarray] = {}
        for (block, shard), documents in wanted.items():
            self.wait(shard)
            rows = [document - self.layout.first_row(block) for document in documents]
            arrays = self.corpus.read_tokens(self.settings.split, block, rows, self.encode)
            tokens.update(zip(documents, arrays))
        for document, offset in buffer:
            self.packer.add(document, offset, tokens[document][offset:])
