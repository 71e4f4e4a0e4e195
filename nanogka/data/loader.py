"""Batches of packed rows, made in the background.

    with PackingLoader(corpus, tokenizer, StreamSettings("train", 2048, seed=1), batch_size=8) as loader:
        for batch in loader:
            loss = model(batch.inputs, batch.targets)

Every batch carries the state from which a new loader gives exactly the batches after it. B rows, T positions.
"""

import math
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from nanogka.common.distributed import Ranks
from nanogka.common.errors import differences
from nanogka.data.corpus import Corpus
from nanogka.data.packing import Packer
from nanogka.data.permutation import permutation
from nanogka.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

MIN_STREAMS = 8  # a run that was started on one rank can resume on up to this many
# Documents that wait, per stream. Eight streams of one rank together have about as many as nanochat, whose packing has
# one stream per rank.
BUFFER_DOCUMENTS = {"bestfit": 128, "bos-bestfit-crop": 1000}
CHUNK = 64  # documents tokenized together
PREFETCH = 4  # batches to have ready
COUNTS = ("rows", "documents", "skipped", "document_tokens", "dropped_tokens")


# ---- streams ----


@dataclass(frozen=True)
class StreamSettings:
    """Everything that decides the rows of all streams: equal settings, equal rows. Part of a loader's state."""

    split: str
    sequence_len: int
    packing: str = "bestfit"
    seed: int = 0
    shuffle: bool = True  # training only, set by the loader
    epochs: int | None = None  # passes over the split; None: without end in training, else 1
    n_streams: int = 0  # shares of the documents, which the ranks divide among them; 0: what suits them
    buffer_documents: int = 0  # set by the loader


class DocumentStream:
    """A fixed share of a split's documents, in an order that the seed decides, and the rows packed from it.

    In each epoch a document belongs to exactly one of `n_streams` streams. The streams are fixed for a run, and the
    ranks divide them among themselves. So a run can resume on another number of ranks: no document is repeated or lost.
    """

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, index: int, settings: StreamSettings, state: dict | None = None
    ) -> None:
        self.corpus, self.tokenizer, self.index, self.settings = corpus, tokenizer, index, settings
        self.blocks = corpus.blocks(settings.split)
        self.counts = dict.fromkeys(COUNTS, 0)
        # Position of the next document to be buffered: epoch, shard in this epoch's order, block in this epoch's order
        # of that shard, row among this stream's.
        self.cursor = (0, 0, 0, 0)
        if state is not None:
            self.cursor = (state["epoch"], state["shard"], state["block"], state["row"])
            self.counts.update(state["counts"])
        # One token more than a row has inputs, so that the last input has a target.
        row_len = settings.sequence_len + 1
        documents = self._documents()
        self.packer = Packer(row_len, tokenizer.bos_id, settings.packing, documents, settings.buffer_documents)
        if state is not None:
            self.packer.dropped = self.counts["dropped_tokens"]
            self._restore(state["buffer"])

    def state(self) -> dict:
        """The state from which a new stream gives the rows from here on; JSON, a few bytes per buffered document."""
        position = dict(zip(("epoch", "shard", "block", "row"), self.cursor))
        return {**position, "buffer": self.packer.buffer(), "counts": dict(self.counts)}

    def next_row(self) -> np.ndarray | None:
        """The next row, (sequence_len + 1,) int64; None when the last epoch has no more full row."""
        row = self.packer.next_row()
        self.counts["rows"] += row is not None
        self.counts["dropped_tokens"] = self.packer.dropped
        return row

    def _documents(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (document number, token ids), starting at `cursor` and advancing it."""
        epoch, first_shard, first_block, first_row = self.cursor
        epochs_without_text = 0
        while self.settings.epochs is None or epoch < self.settings.epochs:
            found = bool(first_shard or first_block)  # an epoch that was begun before had text
            shards = self._shuffled(np.unique(self.blocks.shards), epoch)
            for i, shard in enumerate(shards[first_shard:].tolist(), first_shard):
                blocks = self._shuffled(np.flatnonzero(self.blocks.shards == shard), epoch, shard)
                for j, block in enumerate(blocks[first_block:].tolist(), first_block):
                    rows = self._own_rows(epoch, i + j, block)
                    for at, (row, ids) in enumerate(self._encoded(block, rows[first_row:]), first_row + 1):
                        self.cursor = (epoch, i, j, at)
                        if ids is None:
                            self.counts["skipped"] += 1
                            continue
                        found = True
                        self.counts["documents"] += 1
                        self.counts["document_tokens"] += len(ids)
                        yield int(self.blocks.starts[block] + row), ids
                    first_row = 0
                first_block = 0
            epochs_without_text = 0 if found else epochs_without_text + 1
            # A stream's share shifts by one each epoch, so that even in a small split no row is left out.
            if epochs_without_text > self.settings.n_streams:
                raise ValueError(f"data: the {self.settings.split} split of {self.corpus.path} has no text at all")
            epoch, first_shard = epoch + 1, 0

    def _shuffled(self, numbers: np.ndarray, *key: int) -> np.ndarray:
        """`numbers` in the order of (seed, key), or unchanged in a split that is not shuffled.

        Shards, blocks and rows are permuted separately, each with its own key. So no order of the whole corpus is
        stored, a position is four numbers, and a stream reads each block once per epoch. A shuffle buffer would mix
        fewer documents, and its whole content would belong to the state.
        """
        if not self.settings.shuffle:
            return numbers
        return numbers[permutation(len(numbers), self.settings.seed, *key)]

    def _own_rows(self, epoch: int, at: int, block: int) -> np.ndarray:
        """The rows of a block that belong to this stream in this epoch, in order: every n-th of n streams."""
        n = self.settings.n_streams
        # The share shifts with the block: if n does not divide the block's size, some streams get one row more, and
        # these must not always be the same ones.
        rows = self._shuffled(np.arange(self.blocks.sizes[block]), epoch, block, 1)
        return rows[(self.index - at - epoch) % n :: n]

    def _encoded(self, block: int, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray | None]]:
        """Yield (row, ids) for some rows of a block; ids are None where a row holds no document."""
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            texts = self.corpus.read(self.settings.split, block, chunk)
            encoded = iter(self.tokenizer.encode_batch([text for text in texts if text is not None]))
            for row, text in zip(chunk.tolist(), texts):
                yield row, None if text is None else np.array(next(encoded), np.uint32)

    def _restore(self, buffer: list[list[int]]) -> None:
        # A state has the numbers of the waiting documents, not their tokens: these are read and tokenized again.
        by_block: dict[int, list[int]] = {}
        for document, _ in buffer:
            by_block.setdefault(self.blocks.of_row(document), []).append(document)
        tokens = {}
        for block, documents in by_block.items():
            start = int(self.blocks.starts[block])
            encoded = self._encoded(block, np.array(documents) - start)
            tokens.update((start + row, ids) for row, ids in encoded if ids is not None)
        for document, offset in buffer:
            self.packer.add(document, offset, tokens[document][offset:])


# ---- batches ----


@dataclass(frozen=True)
class Batch:
    """One micro-batch of a rank, with the loader's state after it."""

    inputs: torch.Tensor  # (B, T) int64
    targets: torch.Tensor  # (B, T) int64: the next tokens, −1 where nothing is to be learned
    state: dict
    weight: float = 1.0  # factor on the mean loss; differs from 1 where batches have different numbers of targets
    # Per row (document, first, count): targets `first` to `first + count` are tokens of this document of the split.
    pieces: Sequence[Sequence[tuple[int, int, int]]] = ()
    token_weights: torch.Tensor | None = None  # (B, T) float32, for losses that weigh each token
    tokens: int | None = None  # that pass through the model on all ranks; None: as many on each as `inputs` has


class BackgroundLoader:
    """An iterator over the `Batch`es of a generator, a few ahead; close it, or use it as a context manager.

    `data_wait` are the seconds that the consumer has waited.
    """

    # One thread runs the generator. It needs no process: tiktoken and parquet release the interpreter lock. The thread
    # has no reference to the loader, so it ends with a loader that is dropped without close().

    def __init__(self, batches: Generator[Batch, None, None], state: dict | None) -> None:
        self.data_wait = 0.0
        self._state, self._batches = state, batches
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._pending = deque(self._pool.submit(next, batches, None) for _ in range(PREFETCH))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        began = time.perf_counter()
        try:
            batch = self._pending.popleft().result() if self._pending else None
        except BaseException:
            self.close()
            raise
        self.data_wait += time.perf_counter() - began
        if batch is None:
            self.close()
            raise StopIteration
        self._pending.append(self._pool.submit(next, self._batches, None))
        self._state = batch.state
        return batch

    @staticmethod
    def merge(states: Sequence[dict]) -> dict:
        """Merge the states of all ranks into one from which any number of ranks can resume: here, all are equal."""
        return states[0]

    def close(self) -> None:
        """Stop the thread and wait for it. The iterator then has no further batch."""
        self._pending.clear()
        self._pool.shutdown(cancel_futures=True)
        self._batches.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class PackingLoader(BackgroundLoader):
    """Batches of packed documents.

    Training has a new order each epoch. The last batch of a pass may have fewer rows. `state` is `Batch.state` or the
    result of `merge`. `max_rows` limits the rows of all ranks together; each stream gives an equal part of them.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        settings: StreamSettings,
        batch_size: int,
        ranks: Ranks | None = None,
        state: dict | None = None,
        max_rows: int | None = None,
    ) -> None:
        ranks, train, streams = ranks or Ranks(), settings.split == "train", settings.n_streams
        if state is not None:
            streams = state["settings"]["n_streams"]
        elif streams == 0:
            # Equally many streams for each rank. With nanochat's packing a rank has one, with nanochat's large buffer.
            minimum = MIN_STREAMS if train and settings.packing == "bestfit" else 1
            streams = ranks.world_size * -(-minimum // ranks.world_size)
        if train and settings.epochs is None and ranks.world_size > streams:
            raise ValueError(
                f"world_size: got {ranks.world_size} ranks for {streams} document streams, expected at most {streams}"
                + (" (the number in the state to resume from)" if state is not None else "")
            )
        # A buffer of more than a part of the epoch would hold one document twice, in two epochs.
        documents = int(corpus.blocks(settings.split).sizes.sum())
        largest = max(1, documents // (4 * streams))
        settings = replace(
            settings,
            shuffle=train,
            epochs=settings.epochs if settings.epochs is not None or train else 1,
            n_streams=streams,
            buffer_documents=min(BUFFER_DOCUMENTS[settings.packing], largest),
        )
        header = {"corpus": corpus.fingerprint, "tokenizer": tokenizer.fingerprint, "settings": asdict(settings)}
        if state is not None:
            _check_state(state, header)
        own = range(ranks.rank, streams, ranks.world_size)
        super().__init__(_batches(corpus, tokenizer, header, batch_size, own, state, max_rows), state)

    @staticmethod
    def merge(states: Sequence[dict]) -> dict:
        """Merge the states of all ranks after one step into a state from which any number of ranks can resume."""
        return {**states[0], "streams": {key: stream for state in states for key, stream in state["streams"].items()}}

    @property
    def progress(self) -> dict:
        """`epoch` (from 0) and `dropped_share` of the tokens read, of this rank up to the last batch given."""
        streams = list(self._state["streams"].values()) if self._state else []
        read, dropped = (sum(s["counts"][name] for s in streams) for name in ("document_tokens", "dropped_tokens"))
        return {"epoch": min((s["epoch"] for s in streams), default=0), "dropped_share": dropped / max(1, read)}


def validation_batches(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    batch_size: int,
    sequence_len: int,
    max_tokens: int | None = None,
    packing: str = "bestfit",
    split: str = "val",
    ranks: Ranks | None = None,
) -> Iterator[Batch]:
    """This rank's share of one pass over a split, or over `max_tokens` of it: the same batches on every call.

    `packing` should be the run's: a token that has little context before it is harder to predict, and in one packing
    more tokens are close to the start of their piece than in another.
    """
    # All ranks together measure the same rows, whatever their number: the split always has 8 streams, which the ranks
    # divide among them. Otherwise the loss of one checkpoint would depend on the number of GPUs.
    rows = StreamSettings(split, sequence_len, packing, epochs=1)
    rows = replace(rows, n_streams=_validation_streams(corpus, tokenizer, rows))
    max_rows = None if max_tokens is None else max(1, max_tokens // sequence_len)
    with PackingLoader(corpus, tokenizer, rows, batch_size, ranks, max_rows=max_rows) as loader:
        yield from loader


def _validation_streams(corpus: Corpus, tokenizer: Tokenizer, settings: StreamSettings) -> int:
    """Return the number of streams: 8, or 1 if the split is so small that one of 8 streams would not fill a row."""
    settings = replace(settings, shuffle=False, packing="bestfit", n_streams=MIN_STREAMS, buffer_documents=1)
    streams = (DocumentStream(corpus, tokenizer, index, settings) for index in range(MIN_STREAMS))
    return MIN_STREAMS if all(stream.next_row() is not None for stream in streams) else 1


def _check_state(state: dict, header: dict) -> None:
    # A run compares its settings when it resumes, and lists the differences. This is the last defense.
    given, expected = ({**each, **each["settings"]} for each in (state, header))
    compared = {name: expected[name] for name in ("corpus", "tokenizer", *header["settings"])}
    for name, (here, there) in differences(compared, given).items():
        raise ValueError(f"loader state: {name}: got {there!r}, expected {here!r}")


# ---- in the background ----


def _batches(
    corpus: Corpus,
    tokenizer: Tokenizer,
    header: dict,
    batch_size: int,
    indices: range,
    state: dict | None,
    max_rows: int | None = None,
) -> Generator[Batch, None, None]:
    """The batches of one rank. Its streams take turns, so that all end an epoch at about the same time."""
    settings = StreamSettings(**header["settings"])
    states = {} if state is None else state["streams"]
    streams = [DocumentStream(corpus, tokenizer, index, settings, states.get(str(index))) for index in indices]
    limits = dict.fromkeys(indices, math.inf)
    if max_rows is not None:
        limits = {index: max_rows // settings.n_streams + (index < max_rows % settings.n_streams) for index in indices}
    going = asked = [stream for stream in streams if limits[stream.index]]
    while going:
        rows, pieces = [], []
        while len(rows) < batch_size and going:
            stream = min(going, key=lambda stream: (stream.counts["rows"], stream.index))
            row = stream.next_row()
            if row is None or stream.counts["rows"] == limits[stream.index]:
                going = [other for other in going if other is not stream]
            if row is not None:
                rows.append(row)
                # A piece begins with BOS at this position, so its first token is the target there.
                pieces.append(stream.packer.placed)
        if rows:
            packed = torch.from_numpy(np.stack(rows))
            after = {**header, "streams": {str(stream.index): stream.state() for stream in streams}}
            yield Batch(packed[:, :-1].contiguous(), packed[:, 1:].contiguous(), after, pieces=pieces)
    if asked and not any(stream.counts["rows"] for stream in asked):
        tokens = sum(stream.packer.tokens for stream in asked)
        raise ValueError(
            f"data: got {str(corpus.path)!r}, whose {settings.split} split has {tokens} tokens for this rank, expected"
            f" at least one row of {settings.sequence_len}: use more text, or a model with a shorter context"
        )
