"""The decode cache: keys, values and states of the positions so far, for every layer.

A mixer passes keys that are rotated and normed, and values, each (B, T, H, D). The cache appends them and attends
over all of them. A layer that sees the whole context has `capacity` slots. A layer with window W is a ring of
W + 1 slots: position p is written to slot p mod (W + 1), so memory and time per token do not grow with the text.

Anything that is not stored per position is a named state (B, …), for example the last inputs of a short convolution.
States are small and new in every step. Tensors per position are allocated once: `append` writes new rows behind the
others and `keep` moves rows into gaps, so that a text that begins or ends costs its own row, not a copy of all rows.

    cache = model.new_cache(batch=1, capacity=300)
    hidden = model.hidden(prompt, cache)            # (1, T, C); prefill, in one chunk or in several
    hidden = model.hidden(next_token, cache)        # T = 1: decode

Rows may have different lengths. Padding (id −1, after a row's last token) is never cached.

Shapes: B rows, T new positions, S cached positions (the new ones included), H heads, D features per head.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nanogka.attention import attention_mask, softmax_attention
from nanogka.attention.softmax import sdpa


@dataclass
class _Step:
    """The new tokens between `prepare` and `commit`."""

    counts: list[int]  # of each row
    width: int  # T, the widest row
    positions: Tensor  # (B, T), −1 for padding, or (1, T) where all rows agree
    uniform: bool  # all rows have the same length and none is padded
    masks: dict[tuple[int | None, int], Tensor | None] = field(default_factory=dict)  # by window and slots
    # By number of slots: indices (row, column) of the new positions to keep, and the slot of each.
    targets: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    @property
    def padded(self) -> bool:
        """True if a row has fewer than T new tokens."""
        return min(self.counts) < self.width


class KVCache:
    """Keys, values and states of `batch` rows of at most `capacity` positions. `GPT.new_cache` makes one.

    `lengths` are the cached tokens of each row. A step that is interrupted between `prepare` and `commit` leaves a
    cache that must not be used again.
    """

    def __init__(self, windows: Sequence[int | None], batch: int, capacity: int) -> None:
        if batch < 1 or capacity < 1:
            raise ValueError(f"batch, capacity: got {batch}, {capacity}, expected integers of at least 1")
        self.lengths, self.capacity = [0] * batch, capacity
        self.windows: dict[int | str, int | None] = dict(enumerate(windows))
        self.tensors: dict[int | str, tuple[Tensor, ...]] = {}  # (B or more, slots, …) each; only B rows are in use
        self.states: dict[tuple[int | str, str], Tensor] = {}  # (B, …) each
        self.step: _Step | None = None

    @property
    def batch(self) -> int:
        """Number of rows B."""
        return len(self.lengths)

    @property
    def usable(self) -> bool:
        """False during a step, and permanently after an interrupted step."""
        return self.step is None

    @property
    def padded(self) -> bool:
        """True during a step in which a row has fewer new tokens than another."""
        return self.step is not None and self.step.padded

    def bytes(self) -> int:
        """Bytes of all tensors and states."""
        tensors = [*self.states.values(), *(tensor for layer in self.tensors.values() for tensor in layer)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def prepare(self, ids: Tensor) -> Tensor:
        """Begin a step with new tokens (B, T), −1 for padding; returns their positions, (B, T) or (1, T) int64."""
        rows, width = ids.shape
        assert rows == self.batch, f"{rows} rows of ids for a cache of {self.batch}"
        assert self.usable, "a step of this cache was interrupted"
        real = ids >= 0
        counts = real.sum(1).tolist()  # on the host, because slots and shapes depend on it
        longest = max(length + count for length, count in zip(self.lengths, counts))
        if longest > self.capacity:
            raise ValueError(f"cache: got {longest} positions, expected at most its capacity of {self.capacity}")
        assert all(map(max, self.lengths, counts)), "every row of an empty cache needs a token"
        ahead = torch.arange(width, device=ids.device)
        uniform = min(counts) == width and self.lengths == [self.lengths[0]] * rows
        # Rows of one length need no mask per row, which keeps the usual step on the fast path.
        if uniform:
            positions = (ahead + self.lengths[0])[None]
        else:
            positions = torch.tensor(self.lengths, device=ids.device)[:, None] + ahead
            if min(counts) < width:
                assert torch.equal(real, ahead < real.sum(1, keepdim=True)), "padding must follow a row's tokens"
                positions = torch.where(real, positions, -1)
        self.step = _Step(counts, width, positions, uniform)
        return positions

    def layer(self, key: int | str) -> LayerCache:
        """The part of layer number `key`, or of the network itself under a name, in this step."""
        assert self.step is not None, "a layer writes and reads between `prepare` and `commit`"
        return LayerCache(self, self.step, key)

    def commit(self) -> None:
        """End the step: the new tokens have passed every layer."""
        assert self.step is not None, "`prepare` begins a step"
        self.lengths = [length + count for length, count in zip(self.lengths, self.step.counts)]
        self.step = None

    def select(self, rows: Sequence[int]) -> KVCache:
        """A cache of these rows, in this order; this one stays usable."""
        assert self.usable, "a cache cannot be copied in the middle of a step"
        rows, other = list(rows), copy(self)
        other.lengths = [self.lengths[row] for row in rows]
        other.tensors = {key: tuple(tensor[rows] for tensor in layer) for key, layer in self.tensors.items()}
        other.states = {key: state[rows] for key, state in self.states.items()}
        return other

    def append(self, other: KVCache, rows: Sequence[int]) -> None:
        """Append copies of these rows of `other`, a cache of the same model that may have a smaller capacity.

        Neither may be empty. If memory for rows is missing, it grows by half, so that few joins have to copy the rest.
        """
        assert self.usable, "a cache cannot be changed in the middle of a step"
        assert other.usable, "a cache cannot be copied in the middle of a step"
        first, rows = self.batch, list(rows)
        after, longest = first + len(rows), max(other.lengths)
        assert longest <= self.capacity, f"rows of {longest} positions for a cache of {self.capacity}"
        for key, layer in self.tensors.items():
            if len(layer[0]) < after:
                # Layer by layer: only one layer's old memory exists next to the new one.
                allocated = max(after, first + first // 2)
                self.tensors[key] = layer = tuple(_with_rows(tensor, first, allocated) for tensor in layer)
            for tensor, new in zip(layer, other.tensors[key]):
                # Positions have the same slots in both: a ring that is shorter for lack of capacity is not yet full.
                filled = min(longest, new.shape[1])
                tensor[first:after, :filled] = new[rows, :filled]
        self.states = {key: torch.cat([state, other.states[key][rows]]) for key, state in self.states.items()}
        self.lengths += [other.lengths[row] for row in rows]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows alone, in this order. Those that are among the first `len(rows)` must keep their places."""
        assert self.usable, "a cache cannot be changed in the middle of a step"
        rows = list(rows)
        for place, row in enumerate(rows):
            assert row == place or row >= len(rows), f"row {row} would be overwritten or moved without need"
            if row != place:
                for tensor in (tensor for layer in self.tensors.values() for tensor in layer):
                    tensor[place, : self.lengths[row]] = tensor[row, : self.lengths[row]]
        self.states = {key: state[rows] for key, state in self.states.items()}
        self.lengths = [self.lengths[row] for row in rows]


def _with_rows(tensor: Tensor, rows: int, allocated: int) -> Tensor:
    """The first `rows` of a tensor, followed by zeros: `allocated` rows."""
    grown = tensor.new_zeros(allocated, *tensor.shape[1:])
    grown[:rows] = tensor[:rows]
    return grown


class LayerCache:
    """The part of a `KVCache` that one layer writes and reads during a step."""

    def __init__(self, cache: KVCache, step: _Step, key: int | str) -> None:
        self.cache, self.step, self.key, self.window = cache, step, key, cache.windows.get(key)

    def state(self, name: str, initial: Tensor) -> Tensor:
        """The state (B, …) that `set_state` kept under `name`, or `initial`."""
        return self.cache.states.get((self.key, name), initial)

    def set_state(self, name: str, value: Tensor) -> None:
        """Keep a state (B, …) for the next step. Padding must not have changed it (`TokenContext.valid`)."""
        self.cache.states[self.key, name] = value

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        """Append k (B, T, H, D) and v (B, T, H, D_v) of the new positions; softmax(scale · q kᵀ) v over all cached."""
        # Keys are cached as attention uses them, rotated and normed: to compute all keys again in every step costs more
        # than the attention itself.
        first = not any(self.cache.lengths)
        keys, values = self.update(k, v)
        if first:  # nothing was cached before: the new positions are whole sequences
            return softmax_attention(q, keys, values, scale=scale, window=self.window)
        return sdpa(q, keys, values, scale, mask=self.mask)

    @property
    def mask(self) -> Tensor | None:
        """(B, 1, T, S) bool, or B = 1 where all rows agree: which new position sees which of the cached ones.

        The cached positions are those that `update` returns. None if all of them are seen.
        """
        step, key = self.step, (self.window, self.num_slots)
        if key not in step.masks:  # layers with the same window and slots share it
            # One new position per row sees all that its row has cached, since a ring holds its window and nothing else.
            step.masks[key] = None if step.uniform and step.width == 1 else self._mask()
        return step.masks[key]

    def update(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Append tensors (B, T, …) of the new positions; returns (B, S, …) each, those of all cached positions."""
        cache = self.cache
        if self.key not in cache.tensors:
            # Zero-filled: masked values are multiplied by 0, and 0 · NaN is NaN.
            cache.tensors[self.key] = tuple(t.new_zeros(cache.batch, self.num_slots, *t.shape[2:]) for t in new)
        held = tuple(tensor[: cache.batch] for tensor in cache.tensors[self.key])
        filled = min(max(cache.lengths), self.num_slots)
        joined = None
        if filled and not self._fits:
            # The new chunk overwrites slots that its own first queries still see, so attend over the old contents
            # followed by the chunk. Concatenate before writing: the copy keeps what the write replaces.
            joined = tuple(torch.cat([old[:, :filled], values], dim=1) for old, values in zip(held, new))
        for tensor, values in zip(held, new):
            self._write(tensor, values)
        if not filled:
            return new
        longest = max(length + count for length, count in zip(cache.lengths, self.step.counts))
        return joined or tuple(tensor[:, : min(longest, self.num_slots)] for tensor in held)

    @property
    def num_slots(self) -> int:
        """Number of slots of this layer: a position sees itself and `window` positions before it."""
        if self.window is None:
            return self.cache.capacity
        return min(self.cache.capacity, self.window + 1)

    @property
    def _fits(self) -> bool:
        """True if, after the new positions are written, the slots hold all that these see."""
        step = self.step
        return step.width == 1 or max(self.cache.lengths) + step.width <= self.num_slots

    def _mask(self) -> Tensor:
        queries, keys = self.step.positions, self._key_positions()
        seen = attention_mask(queries, keys, self.window) & (keys >= 0)[:, None]
        # Padding sees everything: a softmax over nothing is NaN, which would spread from there, as 0 · NaN is NaN.
        return (seen | (queries < 0)[..., None])[:, None]

    def _key_positions(self) -> Tensor:
        """(B, S), or (1, S) where all rows agree: the positions in the slots, −1 where one is empty."""
        cache, step = self.cache, self.step
        before = cache.lengths[:1] if step.uniform else cache.lengths
        counts = step.counts[:1] if step.uniform else step.counts
        if self._fits:
            after = [length + count for length, count in zip(before, counts)]
            return _slot_positions(after, self.num_slots, step.positions.device)
        return torch.cat([_slot_positions(before, self.num_slots, step.positions.device), step.positions], dim=1)

    def _write(self, tensor: Tensor, values: Tensor) -> None:
        step = self.step
        if step.uniform and step.width == 1:  # one slot of all rows
            tensor[:, self.cache.lengths[0] % self.num_slots] = values[:, 0]
            return
        rows, columns, slots = self._targets()
        # In the usual step of decoding, one token per row: its values as they are, not a gathered copy.
        tensor[rows, slots] = values[:, 0] if step.width == 1 and not step.padded else values[rows, columns]

    def _targets(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, columns and slots of the new tokens to keep: no padding, and of a row only the last `num_slots`."""
        step, num_slots = self.step, self.num_slots
        if num_slots not in step.targets:
            positions = step.positions.expand(self.cache.batch, -1)
            last = positions.amax(1, keepdim=True)
            rows, columns = ((positions >= 0) & (positions > last - num_slots)).nonzero(as_tuple=True)
            step.targets[num_slots] = (rows, columns, positions[rows, columns] % num_slots)
        return step.targets[num_slots]


def _slot_positions(lengths: list[int], num_slots: int, device: torch.device) -> Tensor:
    """(rows, S) int64: the position in each slot of rows of these lengths, −1 where it is empty."""
    slots = torch.arange(min(max(lengths), num_slots), device=device)
    if len(lengths) == 1 and lengths[0] <= num_slots:
        return slots[None]
    last = torch.tensor(lengths, device=device)[:, None] - 1
    return (last - (last - slots) % num_slots).clamp_min(-1)
