"""Batches of packed conversations from a weighted mixture of sources."""

import hashlib
import math
from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch

from nanogka.common.distributed import Ranks
from nanogka.data.chat_tokens import LOSS_BIT, TokenizedConversations, TokenizedSource
from nanogka.data.conversation import ChatFormat
from nanogka.data.loader import BackgroundLoader, Batch
from nanogka.data.packing import PADDED, PADDING, Packer
from nanogka.data.permutation import permutation

BUFFER = 256  # conversations that wait in the packer
LONGEST_QUESTION = 80  # characters of a question that is shown to people


class DataMixture:
    """S sources with weights. The training conversations are numbered through all sources."""

    def __init__(self, sources: Sequence[TokenizedSource], weights: Sequence[float]) -> None:
        self.sources = list(sources)
        # (S,): share of the tokens that come from each source
        self.shares = np.array(weights, float) / sum(weights)
        # (S + 1,): number of the first conversation of each source; the last is the number of all
        self.starts = np.cumsum([0, *(len(source.train) for source in self.sources)])
        self.tokens = sum(source.train.n_tokens for source in self.sources)
        digest = hashlib.sha256(self.shares.tobytes())
        for source in self.sources:
            digest.update(source.train.fingerprint.encode())
        self.fingerprint = digest.hexdigest()  # of all training tokens and the shares

    def conversation(self, number: int) -> np.ndarray:
        """The tokens (n,) uint32 of a training conversation."""
        source = int(np.searchsorted(self.starts, number, "right")) - 1
        return self.sources[source].train[number - int(self.starts[source])]

    def describe(self) -> str:
        """A line for people."""
        return "; ".join(
            f"{source.name}: {len(source.train):,} conversations ({source.train.n_tokens:,} tokens, "
            f"{source.train.loss_tokens / source.train.n_tokens:.0%} learned), {len(source.val):,} for validation, "
            f"{share:.0%} of the mixture" + (f", {len(source.rejected):,} left out" if source.rejected else "")
            for source, share in zip(self.sources, self.shares)
        )


class ChatLoader(BackgroundLoader):
    """An endless iterator over `Batch`es of packed conversations.

    A row holds whole conversations. Where none fits, the rest is padding without targets. A step is `accumulation`
    batches on each rank. No conversation may be longer than a row, `sequence_len` + 1 tokens. `state` is a
    `Batch.state`. Conversations are short, so every rank can pack all rows and keep its own. Then the rows do not
    depend on the number of ranks, and no states must be merged.
    """

    def __init__(
        self,
        mixture: DataMixture,
        bos_id: int,
        *,
        batch_size: int,
        sequence_len: int,
        seed: int = 0,
        ranks: Ranks | None = None,
        accumulation: int = 1,
        state: dict | None = None,
    ) -> None:
        ranks = ranks or Ranks()
        rows = _MixedRows(mixture, bos_id, sequence_len, seed, state)
        super().__init__(_batches(rows, ranks, (accumulation, ranks.world_size, batch_size)), rows.state())

    @property
    def progress(self) -> dict:
        """`epoch` (of the source with the fewest), `padding_share` and `learned_tokens`, over all ranks."""
        assert self._state is not None, "the constructor gives the state of the rows"
        counts, row_len = self._state["counts"], self._state["sequence_len"] + 1
        share = counts["padding"] / max(1, counts["rows"] * row_len)
        epoch = min(epoch for _, epoch, _ in self._state["sources"])
        return {"epoch": epoch, "padding_share": share, "learned_tokens": counts["learned"]}


class _MixedRows:
    """Packed rows of a mixture, one after the other."""

    def __init__(self, mixture: DataMixture, bos_id: int, sequence_len: int, seed: int, state: dict | None) -> None:
        self.mixture, self.bos_id = mixture, bos_id
        sizes = [len(source.train) for source in mixture.sources]
        self._order = lru_cache(len(sizes))(lambda source, epoch: permutation(sizes[source], seed, epoch, source))
        # At most a quarter of the smallest source waits, so that passes over it mix little.
        buffer = max(1, min(BUFFER, min(sizes) // 4))
        self.packer = Packer(sequence_len + 1, bos_id, PADDED, self._conversations(), buffer, math.inf)
        self._header = {"corpus": mixture.fingerprint, "seed": seed, "sequence_len": sequence_len}
        # per source: tokens drawn, passes finished, conversations drawn in this pass
        self._sources = [[0, 0, 0] for _ in sizes]
        self.counts = {"rows": 0, "padding": 0, "learned": 0}
        if state is not None:
            self._restore(state)

    def state(self) -> dict:
        """The state, as JSON, from which a new loader continues."""
        sources = [list(each) for each in self._sources]
        return {**self._header, "sources": sources, "buffer": self.packer.buffer(), "counts": dict(self.counts)}

    def take(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets (count, T) of the next rows."""
        # The conversations are endless, so there is always another row.
        rows = np.stack([row for _ in range(count) if (row := self.packer.next_row()) is not None])
        inputs, targets = inputs_and_targets(rows, self.bos_id)
        self.counts["rows"] += count
        self.counts["padding"] += int((rows == PADDING).sum())
        self.counts["learned"] += int((targets >= 0).sum())
        return inputs, targets

    def _conversations(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number, tokens) of conversations in a new order on each pass over a source."""
        while True:
            # The source furthest behind its share comes next. Unlike a random choice, this keeps the shares of the
            # tokens exact at every step, whatever the lengths of the conversations.
            source = int(np.argmin([drawn for drawn, _, _ in self._sources] / self.mixture.shares))
            drawn, epoch, at = self._sources[source]
            number = int(self._order(source, epoch)[at]) + int(self.mixture.starts[source])
            row = self.mixture.conversation(number)
            last = at + 1 == len(self.mixture.sources[source].train)
            self._sources[source] = [drawn + len(row), epoch + last, 0 if last else at + 1]
            yield number, row[1:]  # the packer puts the document token in front

    def _restore(self, state: dict) -> None:
        for name, now in self._header.items():
            if state.get(name) != now:
                what = "other conversations or weights" if name == "corpus" else f"{name} {state.get(name)!r}"
                raise ValueError(f"loader state: was made with {what}, not {now!r}")
        self._sources = [list(each) for each in state["sources"]]
        self.counts = dict(state["counts"])
        for number, _ in state["buffer"]:
            self.packer.add(number, 0, self.mixture.conversation(number)[1:])


def _batches(rows: _MixedRows, ranks: Ranks, shape: tuple[int, int, int]) -> Generator[Batch, None, None]:
    """This rank's batches; `shape` is (batches of a step, ranks, rows of a batch)."""
    while True:
        inputs, targets = (part.unflatten(0, shape) for part in rows.take(math.prod(shape)))
        state = rows.state()
        # Batches differ in their number of targets. Weighted by their share of the step's targets, the mean of
        # their mean losses is the mean over all targets of the step.
        loss_tokens = (targets >= 0).sum((2, 3)).double()
        weights = (loss_tokens / loss_tokens.mean())[:, ranks.rank].tolist()
        for i, weight in enumerate(weights):
            yield Batch(inputs[i, ranks.rank].contiguous(), targets[i, ranks.rank].contiguous(), state, weight)


def first_questions(mixture: DataMixture, template: ChatFormat, count: int) -> list[str]:
    """First messages of users in the validation conversations, of the sources in turn. Long ones are left out."""
    start, end = (template.tokenizer.special_tokens[name] for name in ("<|user_start|>", "<|user_end|>"))
    numbers = range(max(len(source.val) for source in mixture.sources))
    found: dict[str, None] = {}
    for source, number in ((source, number) for number in numbers for source in mixture.sources):
        if number < len(source.val):
            ids = (source.val[number] & ~LOSS_BIT).tolist()
            question = template.tokenizer.decode(ids[ids.index(start) + 1 : ids.index(end)])
            if len(question) <= LONGEST_QUESTION and question.isprintable():
                found[question] = None
        if len(found) == count:
            break
    return list(found)


def inputs_and_targets(rows: np.ndarray, bos_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, T) int64 each, of packed rows (N, T + 1). Targets are −1 where nothing is to be learned."""
    packed = torch.from_numpy(rows)
    ids = (packed & (int(LOSS_BIT) - 1)).masked_fill(packed == PADDING, bos_id)
    targets = ids.masked_fill(packed < int(LOSS_BIT), -1)
    return ids[:, :-1], targets[:, 1:]


def validation_rows(conversations: TokenizedConversations, bos_id: int, sequence_len: int, limit: int) -> np.ndarray:
    """The first rows, at most `limit`, of the packed `conversations`: (N, sequence_len + 1) int64.

    They are the same on every call. Only the conversations that these rows need are read.
    """
    documents = ((index, conversations[index][1:]) for index in range(len(conversations)))
    packer = Packer(sequence_len + 1, bos_id, PADDED, documents, BUFFER, math.inf)
    rows = []
    while len(rows) < limit and (row := packer.next_row()) is not None:
        rows.append(row)
    return np.stack(rows)
