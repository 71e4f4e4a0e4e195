"""The decode cache: tensors of the positions so far, and states, of every layer.

A mixer gives the tensors that later positions need (x_h alone for the Gaussian mixer, k and v for the baseline), each
(B, T, …); the cache stores them, whatever they are. A layer that sees everything keeps `capacity` slots; a layer with
window W keeps a ring of W + 1, and of the positions that its mixer looks back to behind those, so that its memory and
its cost per token do not depend on the length. Slot s of a ring of R slots holds the last position p with p mod R = s.
What is not per position (a short convolution's last inputs, a running sum) a mixer keeps as a named state (B, …).

    cache = KVCache(model, batch=1, capacity=300)
    hidden = model.hidden(prompt, cache)            # (1, T, C); T > 1: prefill, in one chunk or in several
    hidden = model.hidden(next_token, cache)        # T = 1: decode

Rows may have different lengths: padding (id −1, after a row's last token) is never cached.

Shapes: B rows, T new positions, S cached positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nanogka.attention import AttentionMetadata


@dataclass
class _Step:
    """The new tokens between `prepare` and `advance`."""

    counts: list[int]  # of each row
    width: int  # T, the widest row
    positions: Tensor  # (B, T), −1 for padding, or (1, T) where all rows agree
    even: bool  # all rows have the same length and none is padded
    metadata: dict[tuple[int | None, int], AttentionMetadata] = field(default_factory=dict)  # by window and lookback
    # By ring size, where rows differ: indices (row, column) of the new positions, and slot.
    targets: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)


class KVCache:
    """Cached tensors and states of `batch` rows, which may come to have `capacity` positions (default: the context).

    `lengths` are the cached tokens of each row. A step that is interrupted between `prepare` and `advance` leaves a
    cache that must not be used again.
    """

    def __init__(self, model: nn.Module, batch: int = 1, capacity: int | None = None) -> None:
        capacity = model.config.sequence_len if capacity is None else capacity
        if batch < 1 or capacity < 1:
            raise ValueError(f"batch, capacity: got {batch}, {capacity}, take integers of at least 1")
        self.lengths, self.capacity, self.frequencies = [0] * batch, capacity, model.frequencies
        mixers = [block.mixer for block in model.blocks]
        self.windows: dict[int | str, int | None] = {i: mixer.window for i, mixer in enumerate(mixers)}
        self.lookbacks: dict[int | str, int] = {i: mixer.lookback for i, mixer in enumerate(mixers)}
        self.tensors: dict[int | str, tuple[Tensor, ...]] = {}  # (B, slots, …) each
        self.states: dict[tuple[int | str, str], Tensor] = {}  # (B, …) each
        self.step: _Step | None = None

    @property
    def batch(self) -> int:
        """B, the number of rows."""
        return len(self.lengths)

    @property
    def whole(self) -> bool:
        """True if it can be used: not in the middle of a step, and never again after one that was interrupted."""
        return self.step is None

    def bytes(self) -> int:
        """Bytes of all tensors and states."""
        tensors = [*self.states.values(), *(tensor for layer in self.tensors.values() for tensor in layer)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def prepare(self, ids: Tensor) -> Tensor:
        """Begin a step with new tokens (B, T), −1 for padding; returns their positions, (B, T) or (1, T) int64."""
        rows, width = ids.shape
        assert rows == self.batch, f"{rows} rows of ids for a cache of {self.batch}"
        assert self.whole, "a step of this cache was interrupted"
        real = ids >= 0
        counts = real.sum(1).tolist()
        longest = max(length + count for length, count in zip(self.lengths, counts))
        if longest > self.capacity:
            raise ValueError(f"cache: got {longest} positions, expected at most its capacity of {self.capacity}")
        ahead = torch.arange(width, device=ids.device)
        even = min(counts) == width and self.lengths == [self.lengths[0]] * rows
        if even:
            positions = (ahead + self.lengths[0])[None]
        else:
            assert torch.equal(real, ahead < real.sum(1, keepdim=True)), "padding must follow a row's tokens"
            starts = torch.tensor(self.lengths, device=ids.device)[:, None]
            positions = torch.where(real, starts + ahead, -1)
        self.step = _Step(counts, width, positions, even)
        return positions

    def layer(self, key: int | str) -> LayerCache:
        """The part of one layer, or of the network itself under a name of its own."""
        return LayerCache(self, key)

    def advance(self) -> None:
        """End the step: the new tokens have passed every layer."""
        self.lengths = [length + count for length, count in zip(self.lengths, self.step.counts)]
        self.step = None

    def select(self, rows: Sequence[int]) -> KVCache:
        """A cache of these rows, in this order; this one stays usable."""
        rows = list(rows)
        return self._with(
            [self.lengths[row] for row in rows],
            {key: tuple(tensor[rows] for tensor in layer) for key, layer in self.tensors.items()},
            {key: state[rows] for key, state in self.states.items()},
        )

    def join(self, other: KVCache) -> KVCache:
        """A cache of the rows of this one and then those of `other`, of the same model and capacity, neither empty."""
        assert other.whole, "a cache cannot be copied in the middle of a step"
        assert self.capacity == other.capacity, "rings of different sizes cannot be joined"
        return self._with(
            self.lengths + other.lengths,
            {key: tuple(map(torch.cat, zip(layer, other.tensors[key]))) for key, layer in self.tensors.items()},
            {key: torch.cat([state, other.states[key]]) for key, state in self.states.items()},
        )

    def _with(self, lengths: list[int], tensors: dict, states: dict) -> KVCache:
        assert self.whole, "a cache cannot be copied in the middle of a step"
        other = copy(self)
        other.lengths, other.tensors, other.states = lengths, tensors, states
        return other


class LayerCache:
    """The part of a `KVCache` that one layer writes and reads during a step."""

    def __init__(self, cache: KVCache, key: int | str) -> None:
        self.cache, self.key = cache, key
        self.window, self.lookback = cache.windows.get(key), cache.lookbacks.get(key, 0)

    def state(self, name: str, initial: Tensor) -> Tensor:
        """The state (B, …) that `set_state` kept under `name`, or `initial`."""
        return self.cache.states.get((self.key, name), initial)

    def set_state(self, name: str, value: Tensor) -> None:
        """Keep a state (B, …) for the next step. Padding must not have changed it (`ForwardContext.valid`)."""
        self.cache.states[self.key, name] = value

    @property
    def ring(self) -> int:
        """Slots of the layer: a position sees itself and `window` before it, which look back further."""
        capacity = self.cache.capacity
        return capacity if self.window is None else min(capacity, self.window + 1 + self.lookback)

    @property
    def metadata(self) -> AttentionMetadata:
        """Attention metadata of this step for the tensors that `update` returns."""
        step, kind = self.cache.step, (self.window, self.lookback)
        if kind not in step.metadata:
            step.metadata[kind] = AttentionMetadata(
                self.window, step.positions, self._key_positions(), self.cache.frequencies, self.lookback
            )
        return step.metadata[kind]

    def update(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Cache tensors (B, T, …) of the new positions; returns, (B, S, …) each, those of all that `metadata` names."""
        cache, step = self.cache, self.cache.step
        if self.key not in cache.tensors:
            # Zero-filled: masked values are multiplied by 0, and 0 · NaN is NaN.
            cache.tensors[self.key] = tuple(t.new_zeros(cache.batch, self.ring, *t.shape[2:]) for t in new)
        held = cache.tensors[self.key]
        # Concatenated before writing: the copy keeps what the write replaces.
        filled = min(max(cache.lengths), self.ring)
        joined = None
        if filled and not self._in_place:
            joined = tuple(torch.cat([old[:, :filled], values], dim=1) for old, values in zip(held, new))
        for tensor, values in zip(held, new):
            self._write(tensor, values)
        if not filled:
            return new
        longest = max(length + count for length, count in zip(cache.lengths, step.counts))
        return joined or tuple(tensor[:, : min(longest, self.ring)] for tensor in held)

    @property
    def _in_place(self) -> bool:
        """True if the slots hold all that the new positions see after these are written."""
        longest = max(self.cache.lengths) + self.cache.step.width
        return self.cache.step.width == 1 or longest <= self.ring

    def _key_positions(self) -> Tensor | None:
        cache, step = self.cache, self.cache.step
        if not any(cache.lengths):
            return None
        before = cache.lengths[:1] if step.even else cache.lengths
        counts = step.counts[:1] if step.even else step.counts
        if self._in_place:
            after = [length + count for length, count in zip(before, counts)]
            return _slot_positions(after, self.ring, step.positions.device)
        # A ring that loses entries to the new ones which earlier ones among these still see: the old, then the new.
        return torch.cat([_slot_positions(before, self.ring, step.positions.device), step.positions], dim=1)

    def _write(self, tensor: Tensor, values: Tensor) -> None:
        step, ring = self.cache.step, self.ring
        if not step.even:
            rows, columns, slots = self._targets()
            tensor[rows, slots] = values[rows, columns]
            return
        values = values[:, -ring:]  # of a chunk longer than the ring, its end
        first = (self.cache.lengths[0] + step.width - values.shape[1]) % ring
        until_wrap = min(ring - first, values.shape[1])
        tensor[:, first : first + until_wrap] = values[:, :until_wrap]
        if until_wrap < values.shape[1]:
            tensor[:, : values.shape[1] - until_wrap] = values[:, until_wrap:]

    def _targets(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, columns and slots of the new tokens to keep: no padding, and of a row only its last `ring`."""
        step, ring = self.cache.step, self.ring
        if ring not in step.targets:
            last = step.positions.amax(1, keepdim=True)
            rows, columns = ((step.positions >= 0) & (step.positions > last - ring)).nonzero(as_tuple=True)
            step.targets[ring] = (rows, columns, step.positions[rows, columns] % ring)
        return step.targets[ring]


def _slot_positions(lengths: list[int], ring: int, device: torch.device) -> Tensor:
    """(rows, S) int64: the position in each slot of rows of these lengths, −1 where it is empty."""
    slots = torch.arange(min(max(lengths), ring), device=device)
    if len(lengths) == 1 and lengths[0] <= ring:
        return slots[None]
    last = torch.tensor(lengths, device=device)[:, None] - 1
    return (last - (last - slots) % ring).clamp_min(-1)
