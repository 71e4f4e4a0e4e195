"""The decode cache: what each layer remembers of the tokens so far.

A mixer says what it remembers of a position (`Mixer.remember`: x_h alone for the Gaussian mixer, k and v for the
baseline); the cache stores those tensors, whatever they are. A layer that sees everything keeps a row of slots that
grows; a layer with window W keeps a ring of W + 1, so that its memory and its cost a token do not depend on the length.
Slot s of a ring of R holds the last position p with p mod R = s, hence nothing but the tokens' number need be kept.

    cache = DecodeCache(model, batch=1, capacity=300)
    hidden = model.hidden(prompt, cache)            # (1, T, C); T > 1: prefill, in one chunk or in several
    hidden = model.hidden(next_token, cache)        # T = 1: decode

Rows may have different lengths: padding (id −1, after a row's last token) is never remembered.

Shapes: B rows, T new positions, S slots, H heads, D features a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nanogka.model import GPT

NO_RING = 1 << 40  # ring size of a layer that forgets nothing


@dataclass
class _Step:
    """The new tokens between `begin` and `end`.

    Attributes:
        length: tokens a row before these, where all rows have the same number and none is padded; else None.
        counts: new tokens of each row.
        width: T, the widest row.
        positions: (B, T), or (1, T) where `length` is set.
        targets: by ring size, where ragged rows are written: indices (row, column) of the new, and slot.
    """

    length: int | None
    counts: list[int]
    width: int
    positions: Tensor
    targets: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)


class DecodeCache:
    """What a model remembers of `batch` rows of tokens.

    Args:
        model: whose layers these are.
        batch: B.
        capacity: positions to make room for at once. Beyond it, or without it, memory grows by doubling.

    Attributes:
        lengths: tokens remembered of each row.

    A step that is interrupted between `begin` and `end` leaves a cache that must not be used again.
    """

    partly_filled = False

    def __init__(self, model: GPT, batch: int = 1, capacity: int | None = None) -> None:
        if batch < 1 or (capacity is not None and capacity < 1):
            raise ValueError(f"batch, capacity: got {batch}, {capacity}, take integers of at least 1")
        self.lengths = [0] * batch
        self.capacity = capacity
        self._windows = [block.mixer.window for block in model.blocks]
        self._layers: list[tuple[Tensor, ...]] = [() for _ in self._windows]  # (B, slots, H, D) each
        self._shared = [False] * len(self._windows)  # whether other caches read the same memory
        self._step: _Step | None = None

    @property
    def batch(self) -> int:
        """B, the number of rows."""
        return len(self.lengths)

    @property
    def whole(self) -> bool:
        """Whether it can be used: false in the middle of a step, and for good after one that was interrupted."""
        return self._step is None

    @property
    def layers(self) -> list[tuple[Tensor, ...]]:
        """Of each layer what it remembers, (B, slots, H, D) each; to be read only."""
        return self._layers

    def replace(self, layers: list[tuple[Tensor, ...]], lengths: list[int]) -> None:
        """Remember these tensors (B, slots, H, D) instead, which belong to this cache from now on."""
        assert self.whole, "a cache cannot be replaced in the middle of a step"
        self._layers, self.lengths = layers, list(lengths)
        self._shared = [False] * len(layers)

    def bytes(self) -> int:
        """Bytes of all tensors of this cache; memory that forks still share is counted once, in each of them."""
        tensors = [tensor for layer in self._layers for tensor in layer]
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    # ---- a step, as the network takes it (`nanogka.model.Cache`) ----

    def begin(self, ids: Tensor) -> Tensor:
        """See `nanogka.model.Cache`; ids (B, T) int64, −1 for padding. Returns positions (B, T) or (1, T)."""
        rows, width = ids.shape
        assert rows == self.batch, f"{rows} rows of ids for a cache of {self.batch}"
        real = ids >= 0
        counts = real.sum(1).tolist()
        start = self.lengths[0]
        ahead = torch.arange(width, device=ids.device)
        if min(counts) == width and self.lengths == [start] * rows:
            self._step = _Step(start, counts, width, (ahead + start)[None])
        else:
            assert torch.equal(real, ahead < real.sum(1, keepdim=True)), "padding must follow a row's tokens"
            starts = torch.tensor(self.lengths, device=ids.device)[:, None]
            self._step = _Step(None, counts, width, torch.where(real, starts + ahead, -1))
        return self._step.positions

    def positions(self, window: int | None) -> Tensor | None:
        """See `nanogka.model.Cache`; (B, S) or (1, S) int64, or None."""
        step, ring = self._step, _ring(window)
        if not any(self.lengths):
            return None
        device = step.positions.device
        after = [length + count for length, count in zip(self.lengths, step.counts)]
        if self._in_place(ring):
            return _slot_positions(after[:1] if step.length is not None else after, ring, device)
        # A ring that loses entries to the new ones which earlier ones among these still see: the old, then the new.
        before = _slot_positions(self.lengths[:1] if step.length is not None else self.lengths, ring, device)
        return torch.cat([before, step.positions], dim=1)

    def extend(self, layer: int, new: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """See `nanogka.model.Cache`; tensors (B, T, H, D) in, (B, S, H, D) out, views of the cache where possible."""
        step, ring = self._step, _ring(self._windows[layer])
        longest = max(length + count for length, count in zip(self.lengths, step.counts))
        fresh = not any(self.lengths)
        kept = min(max(self.lengths), ring)
        # Concatenated before writing: the copy keeps what the write replaces.
        joined = None if fresh or self._in_place(ring) else self._joined(layer, new, kept)
        self._reserve(layer, new, min(longest, ring))
        for tensor, values in zip(self._layers[layer], new):
            self._write(tensor, values, ring)
        if fresh:
            return new
        if joined is not None:
            return joined
        return tuple(tensor[:, : min(longest, ring)] for tensor in self._layers[layer])

    def end(self) -> None:
        """See `nanogka.model.Cache`."""
        self.lengths = [length + count for length, count in zip(self.lengths, self._step.counts)]
        self._step = None

    def _in_place(self, ring: int) -> bool:
        """Whether what the new tokens see is in the slots after they are written."""
        return ring == NO_RING or self._step.width == 1

    def _joined(self, layer: int, new: tuple[Tensor, ...], kept: int) -> tuple[Tensor, ...]:
        return tuple(torch.cat([old[:, :kept], values], dim=1) for old, values in zip(self._layers[layer], new))

    def _write(self, tensor: Tensor, values: Tensor, ring: int) -> None:
        step = self._step
        if step.length is None:
            rows, columns, slots = self._targets(ring)
            tensor[rows, slots] = values[rows, columns]
            return
        values = values[:, -ring:]  # of a chunk longer than the ring, its end
        first = (step.length + step.width - values.shape[1]) % ring
        until_wrap = min(ring - first, values.shape[1])
        tensor[:, first : first + until_wrap] = values[:, :until_wrap]
        if until_wrap < values.shape[1]:
            tensor[:, : values.shape[1] - until_wrap] = values[:, until_wrap:]

    def _targets(self, ring: int) -> tuple[Tensor, Tensor, Tensor]:
        """Which (row, column) of the new tokens go to which slot: no padding, and of a row only its last `ring`."""
        step = self._step
        if ring not in step.targets:
            last = step.positions.amax(1, keepdim=True)
            rows, columns = ((step.positions >= 0) & (step.positions > last - ring)).nonzero(as_tuple=True)
            step.targets[ring] = (rows, columns, step.positions[rows, columns] % ring)
        return step.targets[ring]

    # ---- memory ----

    def _reserve(self, layer: int, new: tuple[Tensor, ...], slots: int) -> None:
        """Give `layer` at least `slots` slots of its own, written ones kept; new ones are 0, as attention multiplies
        what it does not see by 0."""
        ring = _ring(self._windows[layer])
        held = self._layers[layer][0].shape[1] if self._layers[layer] else 0
        if held >= slots:
            if self._shared[layer]:
                self._layers[layer] = tuple(tensor.clone() for tensor in self._layers[layer])
                self._shared[layer] = False
            return
        if self.capacity is not None and self.capacity >= slots:
            wanted = self.capacity
        else:
            wanted = max(slots, 2 * held)
        grown = []
        for i, values in enumerate(new):
            tensor = values.new_zeros(self.batch, min(wanted, ring), *values.shape[2:])
            if held:
                tensor[:, :held] = self._layers[layer][i]
            grown.append(tensor)
        self._layers[layer] = tuple(grown)
        self._shared[layer] = False

    def fork(self, copies: int) -> "DecodeCache":
        """A cache with `copies` rows for each row of this one, in order; this one stays usable.

        Of a cache of one row nothing is copied until either is written to, then layer by layer.
        """
        assert self._step is None, "a cache cannot fork in the middle of a step"
        fork = self._like([length for length in self.lengths for _ in range(copies)])
        if self.batch == 1:
            fork._layers = [tuple(t.expand(copies, -1, -1, -1) for t in tensors) for tensors in self._layers]
            fork._shared = [True] * len(fork._layers)
            self._shared = [True] * len(self._layers)
        else:
            fork._layers = [tuple(t.repeat_interleave(copies, 0) for t in tensors) for tensors in self._layers]
        return fork

    def select(self, rows: Sequence[int]) -> "DecodeCache":
        """A cache of these rows only, in this order; this one stays usable."""
        assert self._step is None, "a cache cannot be cut in the middle of a step"
        chosen = self._like([self.lengths[row] for row in rows])
        chosen._layers = [tuple(t[list(rows)] for t in tensors) for tensors in self._layers]
        return chosen

    def _like(self, lengths: list[int]) -> "DecodeCache":
        other = object.__new__(DecodeCache)
        other.lengths, other.capacity, other._windows, other._step = lengths, self.capacity, self._windows, None
        other._layers, other._shared = [], [False] * len(self._windows)
        return other


def _ring(window: int | None) -> int:
    """Slots that a layer needs at most: a position sees itself and `window` before it."""
    return NO_RING if window is None else window + 1


def _slot_positions(lengths: list[int], ring: int, device: torch.device) -> Tensor:
    """(rows, S) int64: the position in each slot of rows of these lengths, −1 where it is empty."""
    slots = torch.arange(min(max(lengths), ring), device=device)
    if len(lengths) == 1 and lengths[0] <= ring:
        return slots[None]
    last = torch.tensor(lengths, device=device)[:, None] - 1
    return (last - (last - slots) % ring).clamp_min(-1)
