"""Batches of packed conversations from a weighted mixture of sources.

    mixture = Mixture([tokenized_a, tokenized_b], weights=[1, 2])
    loader = ChatLoader(mixture, bos_id, batch_size=8, sequence_len=512, seed=1)

A row holds whole conversations; where none fits any more, the rest is padding without targets. Weights are shares of
the tokens: the next conversation always comes from the source that is furthest behind its share. Each source is gone
through in a new order every time.

The rows do not depend on the number of ranks: every rank packs all of them and takes its own, since packing alone, of
tokens that are there, costs next to nothing. So a run goes on with the same losses on another number of ranks.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from nanogka.data.chat_tokens import LEARNED, TokenizedConversations, TokenizedSource
from nanogka.data.loader import Batch
from nanogka.data.order import permutation
from nanogka.data.packing import PADDING, WHOLE, Packer

BUFFER = 256  # conversations among which the best fit is looked for


class Mixture:
    """Sources with weights.

    Attributes:
        shares: (S,) of the tokens that come from each, summing to 1.
        fingerprint: sha256 (hex) of all training tokens and the shares.
    """

    def __init__(self, sources: Sequence[TokenizedSource], weights: Sequence[float]) -> None:
        self.sources = list(sources)
        self.shares = np.array(weights, float) / sum(weights)
        # where the conversations of each source begin, when all are counted through
        self.starts = np.cumsum([0, *(len(source.train) for source in self.sources)])
        digest = hashlib.sha256(self.shares.tobytes())
        for source in self.sources:
            digest.update(source.train.fingerprint.encode())
        self.fingerprint = digest.hexdigest()

    @property
    def tokens(self) -> int:
        """Of one pass over everything."""
        return sum(len(source.train.tokens) for source in self.sources)

    def row(self, number: int) -> np.ndarray:
        """The tokens of a conversation, counted through all sources."""
        conversations, index = self._find(number)
        return conversations.row(index)

    def locate(self, number: int) -> str:
        """Where a conversation, counted through all sources, stands."""
        conversations, index = self._find(number)
        return conversations.places[index]

    def _find(self, number: int) -> tuple[TokenizedConversations, int]:
        source = int(np.searchsorted(self.starts, number, "right")) - 1
        return self.sources[source].train, number - int(self.starts[source])

    def close(self) -> None:
        """Nothing is held open; corpora may."""

    def describe(self) -> str:
        """A few words on each source, for people."""
        return "; ".join(
            f"{source.name}: {len(source.train):,} conversations ({len(source.train.tokens):,} tokens, "
            f"{source.train.learned / len(source.train.tokens):.0%} learned), {len(source.val):,} for validation, "
            f"{share:.0%} of the mixture" + (f", {len(source.bad):,} left out" if source.bad else "")
            for source, share in zip(self.sources, self.shares)
        )


class ChatLoader:
    """An endless iterator over `Batch`es, as `nanogka.data.PackingLoader` is one.

    A step is `steps_batches` batches on each of `world_size` ranks. The weight of a batch is its share of the step's
    targets, so that the mean of the weighted losses is the mean over all targets of the step.

    Args:
        mixture: what to draw from; no conversation longer than a row, `sequence_len` + 1 tokens.
        bos_id: pads inputs, where nothing is learned.
        batch_size, sequence_len: B and T.
        steps_batches: batches of a step on one rank.
        state: of a batch, to go on after its step.

    Raises:
        ValueError: on a state of another mixture, seed or row length.
    """

    def __init__(
        self,
        mixture: Mixture,
        bos_id: int,
        *,
        batch_size: int,
        sequence_len: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        steps_batches: int = 1,
        state: dict | None = None,
    ) -> None:
        self.mixture, self.bos_id, self.batch_size, self.seed = mixture, bos_id, batch_size, seed
        self.rank, self.world_size, self.steps_batches = rank, world_size, steps_batches
        self.packer = Packer(sequence_len + 1, bos_id, WHOLE)
        self.data_wait = 0.0
        smallest = min(len(source.train) for source in mixture.sources)
        self._buffer = max(1, min(BUFFER, smallest // 4))
        self._header = {"corpus": mixture.fingerprint, "seed": seed, "sequence_len": sequence_len}
        # of each source: tokens drawn, passes finished, conversations drawn in this pass
        self._drawn = [0] * len(mixture.sources)
        self._epoch = [0] * len(mixture.sources)
        self._at = [0] * len(mixture.sources)
        self._counts = {"rows": 0, "padding": 0, "learned": 0}
        self._orders: dict[int, tuple[int, np.ndarray]] = {}
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
        """Nothing is held that would have to be let go."""

    @property
    def progress(self) -> dict:
        """`epoch` (of the source gone through least), `padding_share`, `learned_tokens` so far, over all ranks."""
        positions = self._counts["rows"] * self.packer.row_len
        share = self._counts["padding"] / max(1, positions)
        return {"epoch": min(self._epoch), "padding_share": share, "learned_tokens": self._counts["learned"]}

    def state(self) -> dict:
        """What a new loader needs to go on after the last step that was begun; JSON."""
        sources = [list(each) for each in zip(self._drawn, self._epoch, self._at)]
        return {**self._header, "sources": sources, "buffer": self.packer.buffer(), "counts": dict(self._counts)}

    def _endless(self) -> Iterator[Batch]:
        shape = (self.steps_batches, self.world_size, self.batch_size)
        while True:
            rows, placed = [], []
            for _ in range(int(np.prod(shape))):
                rows.append(self.packer.fill(self._refill))
                placed.append(tuple(self.packer.placed))
            rows = np.stack(rows)
            inputs, targets = inputs_and_targets(rows, self.bos_id)
            self._counts["rows"] += len(rows)
            self._counts["padding"] += int((rows == PADDING).sum())
            self._counts["learned"] += int((targets >= 0).sum())
            state = self.state()
            inputs, targets = (t.unflatten(0, shape) for t in (inputs, targets))
            learned = (targets >= 0).sum((2, 3)).double()
            weights = (learned / learned.mean())[:, self.rank].tolist()
            for i, weight in enumerate(weights):
                first = (i * self.world_size + self.rank) * self.batch_size
                documents = tuple(placed[first : first + self.batch_size])
                own = inputs[i, self.rank].contiguous(), targets[i, self.rank].contiguous()
                yield Batch(*own, state, documents, weight)

    def _refill(self, needed: int) -> bool:
        while self.packer.tokens < needed or len(self.packer) < self._buffer:
            source = int(np.argmin(np.array(self._drawn) / self.mixture.shares))
            number = int(self._order(source)[self._at[source]]) + int(self.mixture.starts[source])
            self._at[source] += 1
            if self._at[source] == len(self.mixture.sources[source].train):
                self._epoch[source], self._at[source] = self._epoch[source] + 1, 0
            row = self.mixture.row(number)
            self._drawn[source] += len(row)
            self.packer.add(number, 0, row[1:])  # the packer puts the document token in front
        return True

    def _order(self, source: int) -> np.ndarray:
        """The order in which this pass goes through a source."""
        epoch = self._epoch[source]
        if source not in self._orders or self._orders[source][0] != epoch:
            order = permutation(len(self.mixture.sources[source].train), self.seed, epoch, source)
            self._orders[source] = epoch, order
        return self._orders[source][1]

    def _restore(self, state: dict) -> None:
        for name, now in self._header.items():
            if state.get(name) != now:
                what = "other conversations or weights" if name == "corpus" else f"{name} {state.get(name)!r}"
                raise ValueError(f"loader state: was made with {what}, not {now!r}")
        self._drawn, self._epoch, self._at = (list(each) for each in zip(*state["sources"]))
        self._counts = dict(state["counts"])
        for number, _ in state["buffer"]:
            self.packer.add(number, 0, self.mixture.row(number)[1:])


def inputs_and_targets(rows: np.ndarray, bos_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, T) int64 each, of packed rows (N, T + 1): targets are −1 where nothing is to be learned."""
    packed = torch.from_numpy(rows)
    ids = (packed & (int(LEARNED) - 1)).masked_fill(packed == PADDING, bos_id)
    targets = ids.masked_fill(packed < int(LEARNED), -1)
    return ids[:, :-1], targets[:, 1:]


def validation_rows(conversations: TokenizedConversations, bos_id: int, sequence_len: int) -> np.ndarray:
    """All of `conversations` in packed rows, (N, sequence_len + 1) int64, the same on every call."""
    packer = Packer(sequence_len + 1, bos_id, WHOLE)
    for index in range(len(conversations)):
        packer.add(index, 0, conversations.row(index)[1:])
    rows = []
    while (row := packer.fill(lambda needed: False)) is not None:
        rows.append(row)
    return np.stack(rows)
