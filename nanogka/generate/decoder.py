"""What gives the streams of one call their next token: a cache that grows, or a step of fixed shapes where it pays.

On CUDA the step of fixed shapes is recorded and replayed. It is kept for the next call of the same size, as is its
memory; elsewhere nothing is gained by it.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from nanogka.generate.static import MODES, StaticStep
from nanogka.model import GPT
from nanogka.model.kv_cache import DecodeCache

STEPS = ("auto", "growing", *MODES)
LEAST_CAPACITY = 256  # smaller ones share a step
MOST_IDLE = 4  # steps that are kept for later calls


class Decoder(Protocol):
    """The streams that are not finished, in order."""

    def step(self, tokens: Tensor) -> Tensor:
        """Remember their last tokens (B,); returns logits (B, V) of the next, valid until the next call."""

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these streams only."""

    def close(self) -> None:
        """No more steps."""


class Decoders:
    """Decoders for one model.

    Args:
        model: whose next tokens these are.
        kind: `auto` (recorded on CUDA, growing elsewhere), `growing`, or a mode of `StaticStep`.

    Raises:
        ValueError: if the kind is unknown.
    """

    def __init__(self, model: GPT, kind: str = "auto") -> None:
        if kind not in STEPS:
            raise ValueError(f"step: got {kind!r}, takes {', '.join(STEPS)}")
        if kind == "auto":
            kind = "graph" if model.device.type == "cuda" else "growing"
        self.model, self.kind = model, kind
        with torch.no_grad():  # kernels are compiled and tried now, not after the first token of a reply
            for block in model.blocks:
                block.mixer.decode_kernels(model.embedding.weight.new_zeros(1, 1, 1, dtype=model.compute_dtype))
        self._idle: dict[tuple[int, int], StaticStep] = {}

    def begin(self, cache: DecodeCache, capacity: int) -> Decoder:
        """A decoder of the streams in `cache`, none of which will be longer than `capacity`. When it is closed, a cache
        of one stream has read what was generated."""
        if self.kind == "growing":
            return _Growing(self.model, cache)
        return _Static(self, cache, max(LEAST_CAPACITY, _power_of_two(capacity)))

    def take(self, streams: int, capacity: int) -> StaticStep:
        """A step that nobody uses, for at least so many streams: batches of like size share one."""
        batch = _power_of_two(streams)
        idle = self._idle.pop((batch, capacity), None)
        return idle or StaticStep(self.model, batch, capacity, self.kind)

    def give(self, step: StaticStep) -> None:
        """It is no longer used."""
        self._idle[step.batch, step.cache.capacity] = step
        while len(self._idle) > MOST_IDLE:
            del self._idle[next(iter(self._idle))]  # the one that has been idle longest


def _power_of_two(number: int) -> int:
    """The next one from `number` on."""
    return 1 << (number - 1).bit_length()


class _Growing:
    def __init__(self, model: GPT, cache: DecodeCache) -> None:
        self._model, self._cache = model, cache

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        return self._model.unembed(self._model.hidden(tokens[:, None], self._cache)[:, -1])

    def select(self, rows: Sequence[int]) -> None:
        self._cache = self._cache.select(rows)

    def close(self) -> None:
        pass


class _Static:
    """Streams that end leave their row empty, until half of the rows are."""

    def __init__(self, decoders: Decoders, cache: DecodeCache, capacity: int) -> None:
        self._decoders, self._cache, self._capacity = decoders, cache, capacity
        self._given = list(cache.lengths)
        self._lengths = list(cache.lengths)  # of the streams that go on
        self._rows = list(range(cache.batch))  # theirs, of the cache or, once there is one, of the step
        self._index: Tensor | None = None  # the same on the device, where they are not all of the step's
        self._step: StaticStep | None = None

    def step(self, tokens: Tensor) -> Tensor:
        if self._step is None:
            self._move(self._cache.layers, self._cache.batch)
        if self._index is None:
            logits = self._step(tokens)
        else:
            padded = tokens.new_full((self._step.batch,), -1)
            padded[self._index] = tokens
            logits = self._step(padded)[self._index]
        self._lengths = [length + 1 for length in self._lengths]
        return logits

    def select(self, rows: Sequence[int]) -> None:
        self._lengths = [self._lengths[row] for row in rows]
        self._rows = [self._rows[row] for row in rows]
        if self._step is None:
            return
        if 2 * len(self._rows) <= self._step.batch:
            old, self._step = self._step, None
            self._move(old.cache.layers, old.batch)
            self._decoders.give(old)
        else:
            self._index = torch.tensor(self._rows, device=self._decoders.model.device)

    def _move(self, layers: list[tuple[Tensor, ...]], batch: int) -> None:
        """Go on in a step that is as large as need be, from what is in the chosen rows of these `batch`."""
        if len(self._rows) < batch:
            layers = [tuple(t[self._rows] for t in tensors) for tensors in layers]
        step = self._decoders.take(len(self._rows), self._capacity)
        step.load(layers, self._lengths)
        self._rows = list(range(len(self._rows)))
        full = len(self._rows) == step.batch
        self._index = None if full else torch.tensor(self._rows, device=self._decoders.model.device)
        self._step = step

    def close(self) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        cache = self._cache
        if cache.batch == 1 and cache.whole and cache.lengths == self._given:  # nobody has gone on with it meanwhile
            cache.replace([tuple(t.clone() for t in tensors) for tensors in step.cache.layers], self._lengths)
        self._decoders.give(step)
