"""The small parts that every layer shares: norm, linear map, rotary positions."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogka.model import few_rows

NORM_EPS = torch.finfo(torch.float32).eps

Rotary = tuple[Tensor, Tensor]  # cos and sin, float32, broadcastable to (B, T, H, D / 2)


def norm(x: Tensor) -> Tensor:
    """RMS norm over the last dimension, without learned parameters."""
    return F.rms_norm(x, x.shape[-1:], eps=NORM_EPS)


class Linear(nn.Linear):
    """A matrix without bias, kept in its own precision (float32 masters) and applied in that of its input."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Nothing: `GPT.init_weights` gives every parameter its value."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        return few_rows.linear(x, weight) if few_rows.taken(x, weight) else F.linear(x, weight)


class Embedding(nn.Embedding):
    """A table of vectors whose values `GPT.init_weights` gives."""

    def reset_parameters(self) -> None:
        """Nothing: `GPT.init_weights` gives every parameter its value."""


def rotary_frequencies(head_dim: int, base: float, device: torch.device | None = None) -> Tensor:
    """(D / 2,) float32: angle a position of each rotated pair."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    return torch.exp(exponents * -math.log(base))


def rotary_at(positions: Tensor, frequencies: Tensor) -> Rotary:
    """cos and sin at integer positions (…, T), as (…, T, 1, D / 2) float32."""
    angles = positions.to(torch.float32)[..., None, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotary position embedding with half-split pairs, in float32.

    Args:
        x: (B, T, H, D) features.
        rotary: cos and sin, broadcastable to (B, T, H, D / 2).

    Returns:
        (B, T, H, D) float32; the caller rounds, after whatever follows.
    """
    cos, sin = rotary
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)
