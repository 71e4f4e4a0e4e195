"""Rotations that a decoding step of the one-tensor form needs; see `nanogka.attention.decode`.

Shapes: B streams, S slots, D features a head, N visits (blocks of slots), b = block.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class PhaseTables:
    """What is the same in all layers with one window.

    Attributes:
        block: b, slots that share a rotation of the query.
        frequencies: (D / 2,) float32, rotary angles a position.
        query: cos and sin (B, N, D / 2) float32 of i − k for each block of slots; in a windowed layer the last is for
            the older entries of the block in which the newest lies.
        back: cos and sin (b, D / 2) float32 of the phases; None for C++, which turns back phase by phase.
    """

    block: int
    frequencies: Tensor
    query: tuple[Tensor, Tensor]
    back: tuple[Tensor, Tensor] | None


def phase_tables(
    positions: Tensor, frequencies: Tensor, slots: int, window: int | None, block: int, *, backend: str
) -> PhaseTables:
    """The tables for new tokens at `positions` (B,) int64, remembered already, in `slots` slots; no value is read."""
    starts = torch.arange(0, slots, block, device=positions.device)
    positions = positions.clamp_min(0)[:, None]
    if window is None:
        distances = positions - starts
    else:
        newest = positions % (window + 1)
        distances = newest - starts
        distances = torch.where(distances < 0, distances + window + 1, distances)
        distances = torch.cat([distances, newest % block + window + 1], dim=1)
    angles = distances.float()[..., None] * frequencies
    back = None
    if backend != "cpp":
        phases = torch.arange(block, device=positions.device).float()[:, None] * frequencies
        back = phases.cos(), phases.sin()
    return PhaseTables(block, frequencies, (angles.cos(), angles.sin()), back)
