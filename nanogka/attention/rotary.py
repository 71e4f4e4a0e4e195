"""Similarity features: rotary positions and RMS norm.

z = norm(rope(x_h)): a token's features, turned by angles proportional to its position and scaled to ‖z‖ = √D.

Shapes: B batch, T positions, H heads, D features per head.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

NORM_EPS = torch.finfo(torch.float32).eps  # a vector of zeros stays zero instead of NaN

CosSin = tuple[Tensor, Tensor]  # float32, broadcastable to (B, T, H, D / 2)


def norm(x: Tensor) -> Tensor:
    """RMS norm over the last dimension, without learned parameters."""
    # A learned gain per channel would only scale rows of the matrix that follows, which can learn that itself.
    return F.rms_norm(x, x.shape[-1:], eps=NORM_EPS)


def rotary_frequencies(head_dim: int, base: float, device: torch.device | None = None) -> Tensor:
    """(D / 2,) float32: angle per position of each rotated pair, base^(−2i / D)."""
    # From 1 radian per position down to 1 / base: the fast pairs tell neighbors apart, the slow ones distant positions.
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    return torch.exp(exponents * -math.log(base))


def rotary_cos_sin(positions: Tensor, frequencies: Tensor) -> CosSin:
    """cos and sin at integer positions (…, T), as (…, T, 1, D / 2) float32."""
    angles = positions.to(torch.float32)[..., None, None] * frequencies
    return angles.cos(), angles.sin()


def apply_rotary(x: Tensor, cos_sin: CosSin) -> Tensor:
    """Rotary position embedding of x (B, T, H, D) with half-split pairs, in float32, which the caller rounds."""
    # Channels i and i + D/2 are a pair (so each half is one slice), rotated by −θ as in nanochat. The sign does not
    # matter: q and k turn alike, so their product depends on the difference of positions only. But a model trained with
    # one sign needs that sign. In float32, because the angles of late positions are large.
    cos, sin = cos_sin
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)


def rotary_norm(x: Tensor, cos_sin: CosSin) -> Tensor:
    """z (B, T, H, D) in the dtype of x: features rotated and RMS-normed, so that every ‖z‖ = √D.

    A rotation changes no norm. So the norm comes first, and the backward pass keeps only x.
    """
    return apply_rotary(norm(x.float()), cos_sin).to(x.dtype)


def scale_queries(q: Tensor, bandwidth: Tensor) -> Tensor:
    """q / σ² of queries (…, H, D): products with keys of one norm are then the Gaussian's exponents.

    Those lack −(‖q_i‖² + ‖k_j‖²) / 2σ², a constant per row. The division is in float32 at least.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    return (q.to(wide) / bandwidth.to(wide).square()[:, None]).to(q.dtype)
