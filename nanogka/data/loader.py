"""Batches of packed rows, made in the background.

    with PackingLoader(corpus, "train", tokenizer, batch_size=8, sequence_len=2048, seed=1) as loader:
        for batch in loader:
            loss = model(batch.inputs, batch.targets)

`Packer` fills rows with documents; `Stream` gives it a fixed share of the documents in an order that the seed decides;
`PackingLoader` runs one or more streams in a thread, ahead of the training loop (tiktoken releases the interpreter
lock). Every batch carries the state from which a new loader gives exactly the batches after it.

Legend: B rows in a batch, T positions.
"""

import os
import queue
import threading
import time
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch

from nanogka.data.corpus import Corpus, check_split
from nanogka.data.order import permutation
from nanogka.tokenizer import Tokenizer

PACKINGS = ("bestfit", "bos-bestfit-crop")
WHOLE = "whole"
PADDING = -1

LEAST_STREAMS = 8  # so that a run begun on one rank can go on with any number up to this
BUFFER_DOCUMENTS = {"bestfit": 128, "bos-bestfit-crop": 1000}  # per stream; nanochat's is 1000
BUFFER_TOKENS = 1 << 20  # no more are read ahead, however few documents they are
CHUNK = 64  # documents tokenised together
PREFETCH = 4  # batches
COUNTS = ("rows", "documents", "skipped", "document_tokens", "dropped_tokens")


# ---- rows ----


class Packer:
    """Fills rows of `row_len` tokens with pieces of documents, best fit first.

    A row begins with BOS, as every piece in it does. Where no waiting piece fits whole:

    * `bestfit`: the longest is cut, and its rest waits as a piece of its own. Every token is used once, and none is
      padding.
    * `bos-bestfit-crop` (nanochat's): the shortest is cropped to fill the row, and its rest dropped.
    * `WHOLE` (conversations): the rest of the row is padding. The piece that has waited longest begins each row, or one
      of an awkward length would never find a place. Only pieces of at most a row's length may be added.

    A piece is (length, −serial, document, offset, tokens): its length counts BOS, `offset` is where in
    the document it begins, `tokens` are the document's from there on. The pieces are sorted, so that the best fit is a
    bisection; among pieces of one length the oldest is taken.

    Attributes:
        tokens: number of waiting tokens, BOS included.
        dropped: number of tokens of documents, without BOS, dropped so far.
        placed: the documents in the row filled last, in order; one cut into pieces may appear more than once.
    """

    def __init__(self, row_len: int, bos_id: int, packing: str) -> None:
        self.row_len, self.bos_id, self.packing = row_len, bos_id, packing
        self.tokens = self.dropped = 0
        self.placed: list[int] = []
        self._pieces: list[tuple[int, int, int, int, np.ndarray]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, document: int, offset: int, tokens: np.ndarray) -> None:
        """Add the piece of `document` that begins at `offset`; `tokens` are those from there on."""
        self._serial += 1
        insort(self._pieces, (1 + len(tokens), -self._serial, document, offset, tokens))
        self.tokens += 1 + len(tokens)

    def buffer(self) -> list[list[int]]:
        """[document, offset] of every waiting piece, oldest first: adding them in this order restores the packer."""
        return [[piece[2], piece[3]] for piece in sorted(self._pieces, key=lambda piece: -piece[1])]

    def fill(self, refill: Callable[[int], bool]) -> np.ndarray | None:
        """One row, (row_len,) int64; None at the end of the text, with `WHOLE` only when no piece waits any more.

        `refill(needed)` is called before every placement; it adds pieces until at least `needed` tokens wait, and
        returns whether they do.
        """
        if not refill(self.row_len) and not (self.packing == WHOLE and self._pieces):
            return None
        row = np.empty(self.row_len, np.int64)
        self.placed = []
        at = 0
        while at < self.row_len:
            remaining = self.row_len - at
            refill(remaining)
            best = bisect_right(self._pieces, (remaining, 1)) - 1
            if self.packing == WHOLE and at == 0:
                best = max(range(len(self._pieces)), key=lambda i: self._pieces[i][1])
            if best >= 0:
                at = self._place(row, at, *self._take(best))
            elif self.packing == "bestfit":
                at = self._place_cut(row, at, remaining)
            elif self.packing == WHOLE:
                row[at:] = PADDING
                break
            else:
                shortest = bisect_right(self._pieces, (self._pieces[0][0], 1)) - 1
                document, tokens = self._take(shortest)
                self.dropped += len(tokens) - (remaining - 1)
                at = self._place(row, at, document, tokens[: remaining - 1])
        return row

    def _take(self, index: int) -> tuple[int, np.ndarray]:
        length, _, document, _, tokens = self._pieces.pop(index)
        self.tokens -= length
        return document, tokens

    def _place(self, row: np.ndarray, at: int, document: int, tokens: np.ndarray) -> int:
        row[at] = self.bos_id
        row[at + 1 : at + 1 + len(tokens)] = tokens
        if len(tokens):
            self.placed.append(document)
        return at + 1 + len(tokens)

    def _place_cut(self, row: np.ndarray, at: int, remaining: int) -> int:
        if remaining == 1:  # a document token ends the row: a piece would only be taken out and put back
            row[at] = self.bos_id
            return at + 1
        offset = self._pieces[-1][3]
        document, tokens = self._take(len(self._pieces) - 1)
        self.add(document, offset + remaining - 1, tokens[remaining - 1 :])
        return self._place(row, at, document, tokens[: remaining - 1])


# ---- streams ----


@dataclass(frozen=True)
class StreamSettings:
    """Everything that decides the rows of all streams: equal settings, equal rows. Part of a loader's state."""

    split: str
    sequence_len: int
    packing: str
    seed: int
    shuffle: bool
    epochs: int | None  # None: without end
    n_streams: int
    buffer_documents: int


class Stream:
    """Rows packed from a fixed share of a split's documents, in an order that the seed decides.

    In each epoch a document belongs to exactly one of `settings.n_streams` streams, whatever the number of ranks: ranks
    share out the streams, so their number can change between two runs without repeating or losing a document.

    Args:
        encode: from texts to the ids of each, without a document token.
        index: which of the streams.
        state: of an earlier stream, to go on after its last row.
    """

    def __init__(
        self,
        corpus: Corpus,
        encode: Callable[[list[str]], list[np.ndarray]],
        bos_id: int,
        index: int,
        settings: StreamSettings,
        state: dict | None = None,
    ) -> None:
        self.corpus, self.encode, self.index, self.settings = corpus, encode, index, settings
        self.blocks = corpus.blocks(settings.split)
        # One token more than a row has inputs, so that the last input has a target.
        self.packer = Packer(settings.sequence_len + 1, bos_id, settings.packing)
        self.counts = dict.fromkeys(COUNTS, 0)
        # Position of the next document to be buffered: epoch, shard in this epoch's order, block in this epoch's order
        # of that shard, row among this stream's.
        self.cursor = (0, 0, 0, 0)
        if state is not None:
            self.cursor = (state["epoch"], state["shard"], state["block"], state["row"])
            self.counts.update(state["counts"])
            self.packer.dropped = self.counts["dropped_tokens"]
            self._restore(state["buffer"])
        self._pending: deque[tuple[int, np.ndarray | None, tuple[int, int, int, int]]] = deque()
        self._chunks = self._read_chunks(self.cursor)

    def state(self) -> dict:
        """The state from which a new `Stream` gives the rows from here on; JSON, a few bytes per buffered document."""
        position = dict(zip(("epoch", "shard", "block", "row"), self.cursor))
        counts = {**self.counts, "dropped_tokens": self.packer.dropped}
        return {**position, "buffer": self.packer.buffer(), "counts": counts}

    def next_row(self) -> np.ndarray | None:
        """The next row, (sequence_len + 1,) int64; None when the last epoch has no more full row."""
        row = self.packer.fill(self._refill)
        if row is not None:
            self.counts["rows"] += 1
        return row

    def _refill(self, needed: int) -> bool:
        packer, most = self.packer, self.settings.buffer_documents
        while packer.tokens < needed or (len(packer) < most and packer.tokens < BUFFER_TOKENS):
            if not self._buffer_next():
                break
        return packer.tokens >= needed

    def _buffer_next(self) -> bool:
        """Move the next document into the packer; False at the end."""
        if not self._pending:
            self._pending.extend(next(self._chunks, ()))
            if not self._pending:
                return False
        document, tokens, self.cursor = self._pending.popleft()
        if tokens is None:
            self.counts["skipped"] += 1
        else:
            self.counts["documents"] += 1
            self.counts["document_tokens"] += len(tokens)
            self.packer.add(document, 0, tokens)
        return True

    def _read_chunks(self, cursor: tuple[int, int, int, int]) -> Iterator[Iterable[tuple]]:
        """This stream's rows from `cursor` on, some at a time: (number, ids or None, cursor after it) of each."""
        epoch, first_shard, first_block, first_row = cursor
        without_text = 0  # epochs in a row
        while self.settings.epochs is None or epoch < self.settings.epochs:
            found = bool(first_shard or first_block)  # what came before the cursor had some
            shards = self._shuffled(np.unique(self.blocks.shards), epoch)
            for i, shard in enumerate(shards[first_shard:].tolist(), first_shard):
                blocks = self._shuffled(np.flatnonzero(self.blocks.shards == shard), epoch, shard)
                for j, block in enumerate(blocks[first_block:].tolist(), first_block):
                    mine = self._own_rows(epoch, i + j, block)
                    for start in range(first_row, len(mine), CHUNK):
                        rows = mine[start : start + CHUNK]
                        arrays = self._encoded(block, rows)
                        found = found or any(ids is not None for ids in arrays)
                        cursors = ((epoch, i, j, start + k + 1) for k in range(len(rows)))
                        yield zip((rows + self.blocks.starts[block]).tolist(), arrays, cursors)
                    first_row = 0
                first_block = 0
            without_text = 0 if found else without_text + 1
            # A stream's share moves on by one each epoch, so that in a small split each row has its turn.
            if without_text > self.settings.n_streams:
                raise ValueError(f"--data: the {self.settings.split} split of {self.corpus.path} has no text at all")
            epoch, first_shard = epoch + 1, 0

    def _shuffled(self, numbers: np.ndarray, *key: int) -> np.ndarray:
        """`numbers` in the order of (seed, key), or as they are in a split that is not shuffled."""
        if not self.settings.shuffle:
            return numbers
        return numbers[permutation(len(numbers), self.settings.seed, *key)]

    def _own_rows(self, epoch: int, at: int, block: int) -> np.ndarray:
        """The rows of a block that are this stream's in this epoch, in order; the others' are the other streams'."""
        n = self.settings.n_streams
        rows = self._shuffled(np.arange(self.blocks.sizes[block]), epoch, block, 1)
        return rows[(self.index - at - epoch) % n :: n]

    def _encoded(self, block: int, rows: np.ndarray) -> list[np.ndarray | None]:
        """The ids of some rows of a block, None where a row holds no document."""
        texts = self.corpus.read(self.settings.split, block, rows)
        encoded = iter(self.encode([text for text in texts if text is not None]))
        return [None if text is None else next(encoded) for text in texts]

    def _restore(self, buffer: list[list[int]]) -> None:
        """Read and encode the buffered documents again, block by block."""
        by_block: dict[int, list[int]] = {}
        for document, _ in buffer:
            by_block.setdefault(self.blocks.of_row(document), []).append(document)
        tokens: dict[int, np.ndarray] = {}
        for block, documents in by_block.items():
            tokens.update(zip(documents, self._encoded(block, np.array(documents) - self.blocks.starts[block])))
        for document, offset in buffer:
            self.packer.add(document, offset, tokens[document][offset:])


# ---- batches ----


@dataclass(frozen=True)
class Batch:
    """Rows to train on.

    Attributes:
        inputs, targets: (B, T) int64; targets are the next tokens, −1 where nothing is to be learned.
        state: from which a new loader continues after this batch.
        documents: numbers of the documents in each row, for `Corpus.locate`.
        weight: factor on this batch's mean loss; differs from 1 only where batches have different numbers of targets.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    state: dict
    documents: tuple[tuple[int, ...], ...] = ()
    weight: float = 1.0


class PackingLoader:
    """An iterator over `Batch`es; close it, or use it as a context manager.

    Training goes on without end, in a new order each epoch; validation is one pass in fixed order, the last batch
    having fewer rows if they do not divide. Tokens that fill no whole row at the end of the last pass are left over.

    Attributes:
        data_wait: seconds that the consumer has waited for batches so far.
    """

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        tokenizer: Tokenizer,
        *,
        batch_size: int,
        sequence_len: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        state: dict | None = None,
        packing: str = "bestfit",
        epochs: int | None = None,
        streams: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Start to read at once.

        Args:
            epochs: passes over the split; None is without end for training and 1 for validation.
            streams: number of shares into which the documents are divided, for the ranks to share out.
            state: of a batch, or of `merge_states` where there were several ranks.

        Raises:
            ValueError: on settings out of range, and on a state of another corpus, tokenizer, seed or packing.
        """
        _check_settings(batch_size, sequence_len, rank, world_size, packing, state)
        train = check_split(split) == "train"
        if state is not None:
            streams = state["settings"]["n_streams"]
        elif streams is None:
            least = LEAST_STREAMS if train and packing == "bestfit" else 1
            streams = world_size * -(-least // world_size)
        if world_size > streams:
            raise ValueError(
                f"world_size: got {world_size} ranks for {streams} streams of documents, takes at most {streams}"
                + (" (the state that is resumed was made with so many)" if state is not None else "")
            )
        # A buffer of more than a part of the epoch would hold one document twice, and pack what it just packed.
        most = max(1, int(corpus.blocks(split).sizes.sum()) // (4 * streams))
        settings = StreamSettings(
            split=split,
            sequence_len=sequence_len,
            packing=packing,
            seed=seed,
            shuffle=train,
            epochs=epochs if epochs is not None or train else 1,
            n_streams=streams,
            buffer_documents=min(BUFFER_DOCUMENTS[packing], most),
        )
        header = {"corpus": corpus.fingerprint, "tokenizer": tokenizer.fingerprint, "settings": asdict(settings)}
        if state is not None:
            _check_state(state, header)
        self.data_wait = 0.0
        self._state = state
        self._queue: queue.Queue = queue.Queue(PREFETCH)
        self._stop = threading.Event()
        self._ended = False
        mine = range(rank, streams, world_size)
        batches = partial(_batches, corpus, tokenizer, settings, header, batch_size, mine, state)
        # The thread holds no reference to the loader, so that one that is dropped without close() ends as well.
        arguments = (batches, num_threads or min(4, os.cpu_count() or 1), self._queue, self._stop)
        self._thread = threading.Thread(target=_produce, args=arguments, daemon=True)
        self._thread.start()
        # Also at the interpreter's exit: a thread still inside a library then can bring the process down.
        weakref.finalize(self, _finish, self._stop, self._thread)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._ended:
            raise StopIteration
        began = time.perf_counter()
        while True:
            try:
                item = self._queue.get(timeout=1.0)  # wakes up, so that an interrupt is never stuck here
                break
            except queue.Empty:
                if not self._thread.is_alive() and self._queue.empty():
                    item = RuntimeError("the loader's thread ended without a word")
                    break
        self.data_wait += time.perf_counter() - began
        if isinstance(item, Batch):
            self._state = item.state
            return item
        self.close()
        raise StopIteration if item is None else item

    @property
    def stats(self) -> dict:
        """Up to the last batch given, for this rank: `epoch` (from 0), `rows`, `documents`, `skipped` (without text),
        `document_tokens` (read so far), `dropped_tokens` and `dropped_share` (of what was read)."""
        streams = list(self._state["streams"].values()) if self._state else []
        total = {name: sum(stream["counts"][name] for stream in streams) for name in COUNTS}
        total["epoch"] = min((stream["epoch"] for stream in streams), default=0)
        total["dropped_share"] = total["dropped_tokens"] / max(1, total["document_tokens"])
        return total

    @property
    def progress(self) -> dict:
        """The part of `stats` that belongs in every line of a run's metrics."""
        stats = self.stats
        return {name: stats[name] for name in ("epoch", "dropped_share")}

    def close(self) -> None:
        """Stop the thread and wait for it; no batch comes after."""
        self._ended = True
        _finish(self._stop, self._thread)

    def __enter__(self) -> "PackingLoader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def validation_batches(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    batch_size: int,
    sequence_len: int,
    max_batches: int | None = None,
    split: str = "val",
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[Batch]:
    """One pass over a split (or its first `max_batches`): the same batches on every call."""
    options = {"batch_size": batch_size, "sequence_len": sequence_len, "rank": rank, "world_size": world_size}
    with PackingLoader(corpus, split, tokenizer, epochs=1, streams=world_size, **options) as loader:
        yield from islice(loader, max_batches)


def merge_states(states: Iterable[dict]) -> dict:
    """The states of all ranks after the same step as one, from which loaders of any number of ranks go on.

    Raises:
        ValueError: if they are not of one run.
    """
    states = list(states)
    merged = {**states[0], "streams": {}}
    for state in states:
        if any(state[key] != merged[key] for key in ("corpus", "tokenizer", "settings")):
            raise ValueError("loader state: got states of different runs, takes those of all ranks of one run")
        merged["streams"].update(state["streams"])
    return merged


def _check_settings(
    batch_size: int, sequence_len: int, rank: int, world_size: int, packing: str, state: dict | None
) -> None:
    for name, value in (("batch_size", batch_size), ("sequence_len", sequence_len)):
        if value < 1:
            raise ValueError(f"{name}: got {value}, takes at least 1")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank: got {rank} of {world_size} ranks, takes 0 to {world_size - 1}")
    if packing not in PACKINGS:
        raise ValueError(f"packing: got {packing!r}, takes {' or '.join(PACKINGS)}")
    if state is not None and not {"corpus", "tokenizer", "settings", "streams"} <= set(state):
        raise ValueError(f"loader state: got a mapping with the keys {sorted(state)}, takes the state of a batch")


def _check_state(state: dict, header: dict) -> None:
    for key, what in (("corpus", "another corpus (or its files changed)"), ("tokenizer", "another tokenizer")):
        if state[key] != header[key]:
            raise ValueError(
                f"loader state: was made with {what}: its fingerprint is {state[key][:12]}…, not {header[key][:12]}…"
            )
    for name, now in header["settings"].items():
        if state["settings"].get(name) != now:
            raise ValueError(f"loader state: was made with {name} {state['settings'].get(name)!r}, not {now!r}")


# ---- in the background ----


def _batches(
    corpus: Corpus,
    tokenizer: Tokenizer,
    settings: StreamSettings,
    header: dict,
    batch_size: int,
    indices: range,
    state: dict | None,
    pool: ThreadPoolExecutor,
) -> Iterator[Batch]:
    """The batches of one rank: its streams in turn, so that each gives as many rows as the others."""
    states = {index: None if state is None else state["streams"].get(str(index)) for index in indices}
    if state is not None and None in states.values():
        missing = next(index for index in indices if states[index] is None)
        raise ValueError(f"loader state: has no stream {missing}, takes the states of all ranks (merge_states)")
    encode = partial(tokenizer.encode_arrays, pool=pool)
    streams = [Stream(corpus, encode, tokenizer.bos_id, index, settings, states[index]) for index in indices]
    going = list(streams)
    while going:
        rows, documents = [], []
        while len(rows) < batch_size and going:
            stream = min(going, key=lambda stream: (stream.counts["rows"], stream.index))
            row = stream.next_row()
            if row is None:
                going.remove(stream)
            else:
                rows.append(row)
                documents.append(tuple(dict.fromkeys(stream.packer.placed)))
        if rows:
            packed = torch.from_numpy(np.stack(rows))
            after = {**header, "streams": {str(stream.index): stream.state() for stream in streams}}
            yield Batch(packed[:, :-1].contiguous(), packed[:, 1:].contiguous(), after, tuple(documents))
    if not any(stream.counts["rows"] for stream in streams):
        tokens = sum(stream.packer.tokens for stream in streams)
        raise ValueError(
            f"sequence_len: got {settings.sequence_len}, but the {settings.split} split of {corpus.path} has {tokens}"
            " tokens for this rank, less than one row; takes a shorter one"
        )


def _produce(
    batches: Callable[[ThreadPoolExecutor], Iterator[Batch]], threads: int, out: queue.Queue, stop: threading.Event
) -> None:
    """Put batches into `out` until told to stop, and None at the end; an error goes to the consumer."""

    def put(item: object) -> None:
        while not stop.is_set():
            try:
                out.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    with ThreadPoolExecutor(threads, thread_name_prefix="tokenizer") as pool:
        try:
            for batch in batches(pool):
                put(batch)
                if stop.is_set():
                    return
            put(None)
        except BaseException as error:  # whatever it is, the consumer is the one to hear of it
            put(error)


def _finish(stop: threading.Event, thread: threading.Thread) -> None:
    stop.set()
    if thread is not threading.current_thread():  # the collector may run in any thread
        thread.join(timeout=5)
