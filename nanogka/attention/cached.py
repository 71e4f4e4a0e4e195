"""Attention of new positions over a decode cache.

The Gaussian kernel's query, key and value are all functions of one tensor, the features x_h: the cache keeps those
alone, and keys are made of them when they are needed. Attention of the baseline keeps keys and values.

Shapes: B rows, T new positions, S cached positions (the new ones among them), H heads, D features per head.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nanogka import dispatch
from nanogka.attention.gaussian import softmax_features
from nanogka.attention.rotary import NORM_EPS, CosSin, rotary_cos_sin
from nanogka.attention.softmax import sdpa, softmax_attention, visible


@dataclass
class AttentionMetadata:
    """Per-step attention metadata, shared by the layers with the same window and lookback.

    Position p of a windowed layer lies in slot p mod (W + 1 + lookback) once T = 1, of any other in slot p.
    """

    window: int | None  # W
    positions: Tensor  # (B, T), or (1, T) where all rows agree: of the new tokens, −1 for padding
    # (B, S) or (1, S): of the cached ones, −1 where a slot is empty; None if the new tokens are all there is (S = T)
    key_positions: Tensor | None
    frequencies: Tensor  # (D / 2,) rotary angles per position
    lookback: int = 0  # positions before the window that are cached as well

    @property
    def ring(self) -> int:
        """Slots of a windowed layer, 0 for any other."""
        return 0 if self.window is None else self.window + 1 + self.lookback

    @cached_property
    def mask(self) -> Tensor | None:
        """(B, T, S) bool, true where a new position sees a cached one; `None` where one new position sees them all."""
        if self.positions.shape[1] == 1 and self.key_positions.shape[0] == 1 and not (self.window and self.lookback):
            return None
        seen = visible(self.positions, self.key_positions, self.window) & (self.key_positions >= 0)[:, None]
        # Unmask padding rows: a softmax over nothing is NaN, which would spread from there, as 0 · NaN is NaN.
        return seen | (self.positions < 0)[..., None]

    @cached_property
    def key_cos_sin(self) -> CosSin:
        """Rotary tables of the cached positions."""
        return rotary_cos_sin(self.key_positions.clamp_min(0), self.frequencies)

    @cached_property
    def _earlier(self) -> tuple[Tensor, Tensor]:
        """(B or 1, S): the slot of the position before each cached one, and whether it is there."""
        # Slots hold positions in any order: a ring wraps around, a chunk stands behind the ring it is written to. In
        # the order of positions the predecessor is the one to the left; scatter brings it back to the order of slots.
        order = self.key_positions.argsort(dim=-1)
        slots = torch.empty_like(order).scatter_(-1, order, order.roll(1, -1))
        held = self.key_positions.gather(-1, slots)
        # The oldest position has no predecessor: what rolled in beside it is the newest, or an empty slot (−1).
        return slots, (held >= 0) & (held == self.key_positions - 1)

    def earlier(self, cached: Tensor) -> Tensor:
        """The value one position before each of `cached` (B, S, …), zeros where that is not cached."""
        slots, known = self._earlier
        shape = (*known.shape, *[1] * (cached.ndim - 2))
        if len(slots) == 1:
            return cached[:, slots[0]] * known.view(shape)
        rows = torch.arange(len(cached), device=cached.device)[:, None]
        return cached[rows, slots] * known.view(shape)


def gaussian_attention_cached(
    q: Tensor, k: Tensor, v: Tensor, bandwidth: Tensor, metadata: AttentionMetadata
) -> Tensor:
    """Gaussian kernel attention (B, T, H, D) of new queries over cached keys (B, S, H, D), all of one norm."""
    q, k = softmax_features(q, k, bandwidth, equal_key_norms=True)
    return _masked(q, k, v, 1.0, metadata.mask)


def gaussian_decode(
    x: Tensor,
    cached: Tensor,
    bandwidth: Tensor,
    metadata: AttentionMetadata,
    successor: bool = False,
    key_affine: tuple[Tensor, Tensor] | None = None,
    embedded: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor | None:
    """Gaussian Kernel Attention (B, 1, H, D) of one new token per row, by a kernel; None where there is none.

    Σ_j A_ij u_j over the cached features u = x_h (B, S, H, D), neither rotated nor normed, which are key and value at
    once; queries are made of x (B, 1, H, D).

    Args:
        successor: the key of a position is made of the position before it.
        key_affine: scale and shift, (H, D) each, of the features that keys are made of.
        embedded: value embeddings to be added to the values: a table (V, C), ids (B, S) int32, gates (B, S, H).
    """
    same = embedded is None or embedded[0].dtype == x.dtype
    if x.shape[1] > 1 or not same or not (kernels := dispatch.decode_kernels(x)):
        return None
    positions = metadata.positions[:, 0].expand(len(x))
    options = {"successor": successor, "key_affine": key_affine, "embedded": embedded}
    options |= {"ring": metadata.ring, "eps": NORM_EPS}
    return kernels.decode_features(x[:, 0], cached, bandwidth, positions, metadata.frequencies, **options)[:, None]


def softmax_attention_cached(q: Tensor, k: Tensor, v: Tensor, metadata: AttentionMetadata, *, scale: float) -> Tensor:
    """Softmax attention (B, T, H, D_v) of new queries over cached keys (B, S, H, D) and values (B, S, H, D_v)."""
    if metadata.key_positions is None:
        return softmax_attention(q, k, v, scale=scale, window=metadata.window)
    if q.shape[1] == 1 and (kernels := dispatch.decode_kernels(q)):
        positions = metadata.positions[:, 0].expand(len(q))
        return kernels.decode_softmax(q[:, 0], k, v, positions, scale)[:, None]
    return _masked(q, k, v, scale, metadata.mask)


def _masked(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    return sdpa(q, k, v, scale, mask=None if mask is None else mask[:, None])
