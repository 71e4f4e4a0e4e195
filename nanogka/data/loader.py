"""Batches of packed rows, made in the background.

    with PackingLoader(corpus, "train", tokenizer, batch_size=8, sequence_len=2048, seed=1) as loader:
        for batch in loader:
            loss = model(batch.inputs, batch.targets)

A thread reads, tokenises and packs ahead of the training loop (tiktoken releases the interpreter lock). Every batch
carries the state from which a new loader gives exactly the batches after it.

Legend: B rows in a batch, T positions.
"""

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np
import torch

from nanogka.data.corpus import Corpus, check_split
from nanogka.data.packing import PACKINGS
from nanogka.data.stream import COUNTS, Stopped, Stream, StreamSettings
from nanogka.tokenizer import Tokenizer

LEAST_STREAMS = 8  # so that a run begun on one rank can go on with any number up to this
BUFFER_DOCUMENTS = {"bestfit": 128, "bos-bestfit-crop": 1000}  # of a stream; nanochat's is 1000
PREFETCH = 4
POLL = 0.2  # seconds between two looks whether a shard has come


@dataclass(frozen=True)
class Batch:
    """`inputs` and `targets`, (B, T) int64, targets being the next tokens; `state` continues after this batch.

    `documents`: the numbers of those in each row, which `Corpus.locate` finds; empty where the loader has no documents.
    `weight` is by how much more than a step's average batch this one counts; 1 where all have as many targets.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    state: dict
    documents: tuple[tuple[int, ...], ...] = ()
    weight: float = 1.0


class PackingLoader:
    """An iterator over `Batch`es; close it, or use it as a context manager.

    Training goes on without end, in a new order each epoch; validation is one pass in fixed order, the last batch
    having fewer rows if they do not divide. What fills no row any more at the end of the last pass is left over.

    Attributes:
        data_wait: seconds that the consumer has waited for batches so far.
        on_wait: told once of each shard that the consumer has to wait for, in a line for people.
        interrupted: whether to give up waiting for a shard (`InterruptedError`).
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
        buffer_documents: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Starts to read at once.

        `epochs`: passes over the split; None is without end for training and 1 for validation. `streams`: into how many
        shares the documents are divided; ranks share them out. `state`: of a batch, or of `merge_states` where the
        number of ranks changed.

        Raises:
            ValueError: on settings out of range, on tokens of another tokenizer, and on a state of another corpus,
                tokenizer, seed or packing.
        """
        _check(batch_size, sequence_len, rank, world_size, packing, state)
        corpus.check_tokenizer(tokenizer)
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
        rows = corpus.layout(split).rows
        buffered = buffer_documents or BUFFER_DOCUMENTS[packing]
        settings = StreamSettings(
            split=split,
            sequence_len=sequence_len,
            packing=packing,
            seed=seed,
            shuffle=train,
            epochs=epochs if epochs is not None or train else 1,
            n_streams=streams,
            # A buffer of more than a part of the epoch would hold one document twice, and pack what it just packed.
            buffer_documents=buffered if rows is None else max(1, min(buffered, rows // (4 * streams))),
        )
        header = {"corpus": corpus.fingerprint, "tokenizer": tokenizer.fingerprint, "settings": asdict(settings)}
        if state is not None:
            _check_state(state, header)
        self.data_wait = 0.0
        self.on_wait: Callable[[str], None] = lambda line: None
        self.interrupted: Callable[[], bool] = lambda: False
        self._waiting = _Waiting()
        self._state = state
        self._queue: queue.Queue = queue.Queue(PREFETCH)
        self._stop = threading.Event()
        self._ended = False
        mine = range(rank, streams, world_size)
        work = _Work(corpus, tokenizer, settings, header, batch_size, mine, state, num_threads)
        # The thread holds no reference to the loader, so that one that is dropped without close() ends as well.
        arguments = (work, self._queue, self._stop, self._waiting)
        self._thread = threading.Thread(target=_produce, args=arguments, daemon=True)
        self._thread.start()
        # Also at the interpreter's exit: a thread still inside a library then can bring the process down.
        weakref.finalize(self, _finish, self._stop, self._thread)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._ended:
            raise StopIteration
        began, said = time.perf_counter(), None
        while True:
            try:
                item = self._queue.get(timeout=1.0)  # wakes up, so that an interrupt is never stuck here
                break
            except queue.Empty:
                if not self._thread.is_alive() and self._queue.empty():
                    item = RuntimeError("the loader's thread ended without a word")
                    break
                if (line := self._waiting.line) not in (None, said):
                    self.on_wait(line)
                    said = line
                if line is not None and self.interrupted():
                    raise InterruptedError(f"interrupted while {line}") from None
        self.data_wait += time.perf_counter() - began
        if isinstance(item, Batch):
            self._state = item.state
            return item
        self.close()
        if item is None:
            raise StopIteration
        raise item

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
        """What of `stats` is worth a line in a run's metrics."""
        stats = self.stats
        return {name: stats[name] for name in ("epoch", "dropped_share")}

    def close(self) -> None:
        """Stops the thread and waits for it; no batch comes after."""
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
        for i, batch in enumerate(loader):
            if max_batches is not None and i >= max_batches:
                return
            yield batch


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


def _check(
    batch_size: int, sequence_len: int, rank: int, world_size: int, packing: str, state: dict | None
) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size: got {batch_size}, takes at least 1")
    if sequence_len < 1:
        raise ValueError(f"sequence_len: got {sequence_len}, takes at least 1")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank: got {rank} of {world_size} ranks, takes 0 to {world_size - 1}")
    if packing not in PACKINGS:
        raise ValueError(f"packing: got {packing!r}, takes {' or '.join(PACKINGS)}")
    if state is not None and not {"corpus", "tokenizer", "settings", "streams"} <= set(state):
        raise ValueError(f"loader state: got a mapping with the keys {sorted(state)}, takes the state of a batch")
    if state is not None and any("shard" not in stream for stream in state["streams"].values()):
        raise ValueError("loader state: was made by an earlier version, whose order of documents was another")


def _check_state(state: dict, header: dict) -> None:
    for key, what in (("corpus", "another corpus (or its files changed)"), ("tokenizer", "another tokenizer")):
        if state[key] != header[key]:
            raise ValueError(
                f"loader state: was made with {what}: its fingerprint is {state[key][:12]}…, not {header[key][:12]}…"
            )
    for name, now in header["settings"].items():
        if state["settings"].get(name) != now:
            raise ValueError(f"loader state: was made with {name} {state['settings'].get(name)!r}, not {now!r}")


@dataclass
class _Waiting:
    """What the thread waits for, in words, None while it need not wait."""

    line: str | None = None


@dataclass(frozen=True)
class _Work:
    """What the thread needs."""

    corpus: Corpus
    tokenizer: Tokenizer
    settings: StreamSettings
    header: dict
    batch_size: int
    streams: range
    state: dict | None
    num_threads: int | None

    def batches(self, pool: ThreadPoolExecutor, wait: Callable[[int], None]) -> Iterator[Batch]:
        """The batches of this rank: its streams in turn, so that each gives as many rows as the others."""
        streams = [self._stream(index, pool, wait) for index in self.streams]
        going = list(streams)
        while going:
            rows, documents = [], []
            while len(rows) < self.batch_size and going:
                stream = min(going, key=lambda stream: (stream.counts["rows"], stream.index))
                row = stream.next_row()
                if row is None:
                    going.remove(stream)
                else:
                    rows.append(row)
                    documents.append(tuple(dict.fromkeys(stream.packer.placed)))
            if rows:
                packed = torch.from_numpy(np.stack(rows))
                state = {**self.header, "streams": {str(stream.index): stream.state() for stream in streams}}
                yield Batch(packed[:, :-1].contiguous(), packed[:, 1:].contiguous(), state, tuple(documents))
        if not any(stream.counts["rows"] for stream in streams):
            tokens = sum(stream.packer.tokens for stream in streams)
            raise ValueError(
                f"sequence_len: got {self.settings.sequence_len}, but the {self.settings.split} split of"
                f" {self.corpus.path} has {tokens} tokens for this rank, less than one row; takes a shorter one"
            )

    def _stream(self, index: int, pool: ThreadPoolExecutor, wait: Callable[[int], None]) -> Stream:
        state = None
        if self.state is not None:
            state = self.state["streams"].get(str(index))
            if state is None:
                raise ValueError(f"loader state: has no stream {index}, takes the states of all ranks (merge_states)")

        def encode(texts: list[str]) -> list[np.ndarray]:
            return self.tokenizer.encode_arrays(texts, pool)

        return Stream(self.corpus, encode, self.tokenizer.bos_id, index, self.settings, state, wait)

    def wait(self, shard: int, stop: threading.Event, waiting: _Waiting) -> None:
        """Returns once `shard` is there. Raises Stopped, and ValueError if it never will be."""
        layout = self.corpus.layout(self.settings.split)
        while not layout.ready(shard):
            waiting.line = f"waiting for {layout.name(shard)}"
            if stop.wait(POLL):
                raise Stopped
        waiting.line = None


def _finish(stop: threading.Event, thread: threading.Thread) -> None:
    stop.set()
    if thread is not threading.current_thread():  # the collector may run in any thread
        thread.join(timeout=5)


def _produce(work: _Work, out: queue.Queue, stop: threading.Event, waiting: _Waiting) -> None:
    """Puts batches into `out` until told to stop; then, or at the end, None; an error goes to the consumer."""

    def put(item: object) -> None:
        while not stop.is_set():
            try:
                out.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    threads = work.num_threads or min(4, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, thread_name_prefix="tokenizer") as pool:
        try:
            for batch in work.batches(pool, lambda shard: work.wait(shard, stop, waiting)):
                put(batch)
                if stop.is_set():
                    return
            put(None)
        except Stopped:
            return
        except BaseException as error:  # whatever it is, the consumer is the one to hear of it
            put(error)
