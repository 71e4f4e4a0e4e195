"""Conversations to learn from: their sources, their tokens with a loss mask, and batches of packed rows.

A source gives entries: (place, conversation), or (place, error) for one that cannot be used; a place is "talk.jsonl,
line 12".
"""

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch

from nanogka.common.distributed import Ranks
from nanogka.common.files import expand_path
from nanogka.common.formatting import one_line
from nanogka.data.conversation import ChatFormat, Conversation, ConversationError
from nanogka.data.hub import Hub
from nanogka.data.loader import Batch
from nanogka.data.order import hash_text, permutation
from nanogka.data.own_text import choose_validation, parse_json_line
from nanogka.data.packing import PADDING, WHOLE, Packer

VAL_SPLITS = ("test", "validation", "val")

LOSS_BIT = np.uint32(1 << 31)  # set in a token to be learned, so that mask and id share four bytes
CHUNK = 512  # conversations tokenized together
PLACES_SHOWN = 3
BUFFER = 256  # conversations that wait in the packer

Entry = tuple[str, Conversation | ConversationError]
Fault = tuple[str, ConversationError]  # the entry of a conversation that is left out


# ---- sources ----


@dataclass(frozen=True)
class ConversationSource:
    """Conversations of one origin; `train` and `val` give their entries from the beginning on each call."""

    name: str
    train: Callable[[], Iterator[Entry]]
    val: Callable[[], Iterator[Entry]] | None = None  # None: a share of `train`'s, chosen by their text


def memory_source(name: str, train: Sequence[Conversation], val: Sequence[Conversation]) -> ConversationSource:
    """Conversations that are already in memory."""

    def entries(conversations: Sequence[Conversation]) -> Iterator[Entry]:
        return ((f"{name}, number {number}", conversation) for number, conversation in enumerate(conversations, 1))

    return ConversationSource(name, lambda: entries(train), lambda: entries(val))


def jsonl_source(path: str | Path) -> ConversationSource:
    """A `.jsonl` file, or all `.jsonl` files of a folder by name; each line is an object with `messages`."""
    path = expand_path(path)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files or not all(file.is_file() and file.suffix == ".jsonl" for file in files):
        raise ValueError(f"--data: got {str(path)!r}, expected the name of a source, or .jsonl files")
    return ConversationSource(str(path), lambda: _read_jsonl(files))


def _read_jsonl(files: Iterable[Path]) -> Iterator[Entry]:
    for file in files:
        with file.open("rb") as opened:  # a binary file's lines end at \n only: JSON may hold other line separators
            for number, raw in enumerate(opened, 1):
                if raw.strip():
                    yield (
                        f"{file}, line {number}",
                        _attempt(lambda raw=raw: Conversation.from_json(parse_json_line(raw))),
                    )


def _attempt(read: Callable[[], Conversation]) -> Conversation | ConversationError:
    try:
        return read()
    except ConversationError as error:
        return error
    except ValueError as error:
        return ConversationError("wrong JSON", str(error))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        return ConversationError("unexpected row", f"{type(error).__name__} {error}")


def hub_source(
    dataset: str,
    config: str = "",
    *,
    convert: Callable[[dict], Conversation] | None = None,
    train: str = "train",
    val: str | None = "",
) -> ConversationSource:
    """A dataset of the Hugging Face hub, or a local folder that `datasets` reads.

    `convert` makes a conversation of a row; without it, the dataset must have a column `messages`. `val` names the
    split for validation. By default it is the first of `VAL_SPLITS` that exists; None: a share of `train`.
    """
    name = " ".join(filter(None, (dataset, config)))
    splits = Hub().load(dataset, config)
    if train not in splits:
        raise ValueError(f"--data: {name} has the splits {', '.join(splits)}, expected one called {train}")
    if convert is None and "messages" not in splits[train].column_names:
        has = ", ".join(splits[train].column_names)
        raise ValueError(f"--data: {name} has the columns {has}, expected a dataset with messages")
    read = convert or Conversation.from_json

    def entries(split: str) -> Iterator[Entry]:
        for number, row in enumerate(splits[split], 1):
            yield f"{name} {split}, row {number}", _attempt(partial(read, row))

    if val == "":
        val = next((split for split in VAL_SPLITS if split in splits), None)
    return ConversationSource(name, lambda: entries(train), None if val is None else lambda: entries(val))


def chain_sources(name: str, sources: Sequence[ConversationSource]) -> ConversationSource:
    """Several sources with validation data as one."""
    return ConversationSource(
        name,
        lambda: chain.from_iterable(source.train() for source in sources),
        lambda: chain.from_iterable(source.val() for source in sources),
    )


# ---- tokens ----


@dataclass(frozen=True)
class TokenizedConversations:
    """Conversations as token ids, each with the place that it comes from, for messages."""

    rows: list[np.ndarray]  # one (n,) uint32 per conversation, with `LOSS_BIT` set in the tokens to be learned
    places: list[str]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.rows))

    @property
    def learned(self) -> int:
        """Number of tokens to be learned."""
        return sum(int((row >= LOSS_BIT).sum()) for row in self.rows)

    def fingerprint(self) -> str:
        """sha256 (hex) of all tokens and where each conversation ends."""
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(row.tobytes())
        digest.update(np.cumsum([len(row) for row in self.rows], dtype=np.int64).tobytes())
        return digest.hexdigest()

    def select(self, mask: np.ndarray) -> "TokenizedConversations":
        """Those where `mask` (n,) bool is true."""
        chosen = np.flatnonzero(mask).tolist()
        return TokenizedConversations([self.rows[i] for i in chosen], [self.places[i] for i in chosen])


@dataclass(frozen=True)
class TokenizedSource:
    """A source as tokens, with the conversations that were left out."""

    name: str
    train: TokenizedConversations
    val: TokenizedConversations
    bad: list[Fault]


def tokenize_source(
    source: ConversationSource, form: ChatFormat, max_tokens: int, max_conversations: int | None = None
) -> TokenizedSource:
    """Read, check and tokenize a source; ValueError if a split has no usable conversation.

    Conversations of more than `max_tokens` are left out; of each split the first `max_conversations` are read.
    """
    bad: list[Fault] = []
    train, hashes = _tokenize(islice(source.train(), max_conversations), form, max_tokens, bad)
    if source.val is not None:
        val, _ = _tokenize(islice(source.val(), max_conversations), form, max_tokens, bad)
    else:
        several = len(np.unique(hashes)) >= 2
        is_val = choose_validation(hashes) if several else np.zeros(len(hashes), bool)
        train, val = train.select(~is_val), train.select(is_val)
    if not len(train) or not len(val):
        found = f"{len(train)} usable conversations" + (f" ({'; '.join(report(bad))})" if bad else "")
        takes = "at least two different ones, since one is validation"
        raise ValueError(f"--data: got {source.name!r} with {found}, expected {takes}")
    return TokenizedSource(source.name, train, val, bad)


def _tokenize(
    entries: Iterator[Entry], form: ChatFormat, max_tokens: int, bad: list[Fault]
) -> tuple[TokenizedConversations, np.ndarray]:
    """The usable conversations, and a hash (n,) uint64 of each one's text; the others are appended to `bad`."""
    rows, places, hashes = [], [], []
    while chunk := list(islice(entries, CHUNK)):
        rendered = iter(form.render_many(found for _, found in chunk if isinstance(found, Conversation)))
        for place, found in chunk:
            if isinstance(found, Conversation):
                ids, mask = next(rendered)
                if len(ids) > max_tokens:
                    got = f"got {len(ids):,} tokens, expected at most {max_tokens:,}"
                    found = ConversationError("longer than the context", got)
            if isinstance(found, ConversationError):
                bad.append((place, found))
                continue
            rows.append(np.array(ids, np.uint32) | np.where(mask, LOSS_BIT, np.uint32(0)))
            places.append(place)
            hashes.append(hash_text(repr(found.messages)))
    return TokenizedConversations(rows, places), np.array(hashes, np.uint64)


def report(bad: Sequence[Fault]) -> list[str]:
    """One line per kind of fault, with the first few places."""
    lines = []
    for kind, count in Counter(error.kind for _, error in bad).most_common():
        shown = [f"{place}: {error}" for place, error in bad if error.kind == kind][:PLACES_SHOWN]
        more = f"; and {count - PLACES_SHOWN:,} more" if count > PLACES_SHOWN else ""
        lines.append(one_line(f"{count:,} × {kind}: {'; '.join(shown)}{more}"))  # places are names of files
    return lines


# ---- batches ----


class Mixture:
    """S sources with weights; the training conversations are numbered through all sources."""

    def __init__(self, sources: Sequence[TokenizedSource], weights: Sequence[float]) -> None:
        self.sources = list(sources)
        # (S,): share of the tokens that come from each source
        self.shares = np.array(weights, float) / sum(weights)
        self.rows = [row for source in self.sources for row in source.train.rows]
        # (S + 1,): number of the first conversation of each source; the last is the number of all
        self.starts = np.cumsum([0, *(len(source.train) for source in self.sources)])
        self.tokens = sum(source.train.n_tokens for source in self.sources)
        digest = hashlib.sha256(self.shares.tobytes())
        for source in self.sources:
            digest.update(source.train.fingerprint().encode())
        self.fingerprint = digest.hexdigest()  # of all training tokens and the shares

    def describe(self) -> str:
        return "; ".join(
            f"{source.name}: {len(source.train):,} conversations ({source.train.n_tokens:,} tokens, "
            f"{source.train.learned / source.train.n_tokens:.0%} learned), {len(source.val):,} for validation, "
            f"{share:.0%} of the mixture" + (f", {len(source.bad):,} left out" if source.bad else "")
            for source, share in zip(self.sources, self.shares)
        )


class ChatLoader:
    """An endless iterator over `Batch`es of packed conversations, with the interface of `PackingLoader`.

    A row holds whole conversations; where none fits, the rest is padding without targets. The next conversation comes
    from the source furthest behind its share of the tokens, and each pass over a source has a new order. A step is
    `steps_batches` batches on each rank. The rows do not depend on the number of ranks: every rank packs all of them
    and takes its own. No conversation may be longer than a row, `sequence_len` + 1 tokens.
    """

    def __init__(
        self,
        mixture: Mixture,
        bos_id: int,
        *,
        batch_size: int,
        sequence_len: int,
        seed: int = 0,
        ranks: Ranks | None = None,
        steps_batches: int = 1,
        state: dict | None = None,
    ) -> None:
        self.mixture, self.bos_id, self.ranks = mixture, bos_id, ranks or Ranks()
        self.shape = (steps_batches, self.ranks.world_size, batch_size)
        self.data_wait = 0.0
        sizes = [len(source.train) for source in mixture.sources]
        self._order = lru_cache(len(sizes))(lambda source, epoch: permutation(sizes[source], seed, epoch, source))
        buffer = max(1, min(BUFFER, min(sizes) // 4))
        self.packer = Packer(sequence_len + 1, bos_id, WHOLE, self._conversations(), buffer, math.inf)
        self._header = {"corpus": mixture.fingerprint, "seed": seed, "sequence_len": sequence_len}
        # per source: tokens drawn, passes finished, conversations drawn in this pass
        self._sources = [[0, 0, 0] for _ in sizes]
        self._counts = {"rows": 0, "padding": 0, "learned": 0}
        if state is not None:
            self._restore(state)
        self._batches = self._endless()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        began = time.perf_counter()
        batch = next(self._batches)
        self.data_wait += time.perf_counter() - began
        return batch

    def __enter__(self) -> "ChatLoader":
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is held open."""

    @property
    def progress(self) -> dict:
        """`epoch` (of the source with the fewest), `padding_share` and `learned_tokens`, over all ranks."""
        rows, padding, learned = (self._counts[name] for name in ("rows", "padding", "learned"))
        share = padding / max(1, rows * self.packer.row_len)
        return {"epoch": min(epoch for _, epoch, _ in self._sources), "padding_share": share, "learned_tokens": learned}

    def state(self) -> dict:
        """The state, as JSON, from which a new loader goes on after the last step that was begun."""
        sources = [list(each) for each in self._sources]
        return {**self._header, "sources": sources, "buffer": self.packer.buffer(), "counts": dict(self._counts)}

    def _endless(self) -> Iterator[Batch]:
        rank = self.ranks.rank
        while True:
            rows = np.stack([self.packer.next_row() for _ in range(int(np.prod(self.shape)))])
            inputs, targets = inputs_and_targets(rows, self.bos_id)
            self._counts["rows"] += len(rows)
            self._counts["padding"] += int((rows == PADDING).sum())
            self._counts["learned"] += int((targets >= 0).sum())
            state = self.state()
            inputs, targets = (t.unflatten(0, self.shape) for t in (inputs, targets))
            # Batches differ in their number of targets. Weighted by their share of the step's targets, the mean of
            # their mean losses is the mean over all targets of the step.
            learned = (targets >= 0).sum((2, 3)).double()
            weights = (learned / learned.mean())[:, rank].tolist()
            for i, weight in enumerate(weights):
                yield Batch(inputs[i, rank].contiguous(), targets[i, rank].contiguous(), state, weight)

    def _conversations(self) -> Iterator[tuple[int, np.ndarray]]:
        """(number, tokens) of conversations, always from the source furthest behind its share."""
        while True:
            source = int(np.argmin([drawn for drawn, _, _ in self._sources] / self.mixture.shares))
            drawn, epoch, at = self._sources[source]
            number = int(self._order(source, epoch)[at]) + int(self.mixture.starts[source])
            row = self.mixture.rows[number]
            last = at + 1 == len(self.mixture.sources[source].train)
            self._sources[source] = [drawn + len(row), epoch + last, 0 if last else at + 1]
            yield number, row[1:]  # the packer puts the document token in front

    def _restore(self, state: dict) -> None:
        for name, now in self._header.items():
            if state.get(name) != now:
                what = "other conversations or weights" if name == "corpus" else f"{name} {state.get(name)!r}"
                raise ValueError(f"loader state: was made with {what}, not {now!r}")
        self._sources = [list(each) for each in state["sources"]]
        self._counts = dict(state["counts"])
        for number, _ in state["buffer"]:
            self.packer.add(number, 0, self.mixture.rows[number][1:])


def inputs_and_targets(rows: np.ndarray, bos_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, T) int64 each, of packed rows (N, T + 1): targets are −1 where nothing is to be learned."""
    packed = torch.from_numpy(rows)
    ids = (packed & (int(LOSS_BIT) - 1)).masked_fill(packed == PADDING, bos_id)
    targets = ids.masked_fill(packed < int(LOSS_BIT), -1)
    return ids[:, :-1], targets[:, 1:]


def validation_rows(conversations: TokenizedConversations, bos_id: int, sequence_len: int) -> np.ndarray:
    """All of `conversations` in packed rows, (N, sequence_len + 1) int64, the same on every call."""
    documents = ((index, row[1:]) for index, row in enumerate(conversations.rows))
    packer = Packer(sequence_len + 1, bos_id, WHOLE, documents, buffer_documents=math.inf, buffer_tokens=math.inf)
    rows = []
    while (row := packer.next_row()) is not None:
        rows.append(row)
    return np.stack(rows)
