"""Attention of new positions over a decode cache.

The Gaussian kernel's query, key and value are all functions of one tensor, the features x_h: the cache keeps those
alone, and keys are made of them when they are needed. Attention of the baseline keeps keys and values.

Shapes: B rows, T new positions, S cached positions (the new ones among them), H heads, D features per head.
"""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from nanogka import dispatch
from nanogka.attention.gaussian import gaussian_attention, softmax_features
from nanogka.attention.rotary import NORM_EPS, CosSin, rotary_cos_sin, rotary_norm
from nanogka.attention.softmax import sdpa, softmax_attention, visible


@dataclass
class AttentionMetadata:
    """Per-step attention metadata, shared by the layers with the same window.

    Attributes:
        window: W; position p of a windowed layer lies in slot p mod (W + 1) once T = 1, of any other in slot p.
        positions: (B, T), or (1, T) where all rows agree: of the new tokens, −1 for padding.
        key_positions: (B, S) or (1, S): of the cached ones, −1 where a slot is empty; `None` if the new tokens are all
            there is, each seeing itself and those before it in the window (S = T).
        frequencies: (D / 2,) rotary angles per position.
    """

    window: int | None
    positions: Tensor
    key_positions: Tensor | None
    frequencies: Tensor

    @cached_property
    def mask(self) -> Tensor | None:
        """(B, T, S) bool, true where a new position sees a cached one; `None` where one new position sees them all."""
        if self.positions.shape[1] == 1 and self.key_positions.shape[0] == 1:
            return None
        seen = visible(self.positions, self.key_positions, self.window) & (self.key_positions >= 0)[:, None]
        # A softmax over nothing is NaN, and NaN would spread from padding to what multiplies it by 0: let it see all.
        return seen | (self.positions < 0)[..., None]

    @cached_property
    def cos_sin(self) -> CosSin:
        """Rotary tables of the new positions."""
        return rotary_cos_sin(self.positions.clamp_min(0), self.frequencies)

    @cached_property
    def key_cos_sin(self) -> CosSin:
        """Rotary tables of the cached positions."""
        return rotary_cos_sin(self.key_positions.clamp_min(0), self.frequencies)


def gaussian_attention_cached(x: Tensor, cached: Tensor, bandwidth: Tensor, metadata: AttentionMetadata) -> Tensor:
    """Gaussian kernel attention of new positions, where query, key and value are the features themselves.

    Args:
        x: (B, T, H, D) features x_h of the new positions, neither rotated nor normed.
        cached: (B, S, H, D) those of all cached positions.
        bandwidth: (H,) σ.
        metadata: of the step.

    Returns:
        (B, T, H, D): Σ_j A_ij x_j with A the kernel of z = norm(rope(x)).
    """
    if metadata.key_positions is None:
        z = rotary_norm(x, metadata.cos_sin)
        return gaussian_attention(z, z, x, bandwidth, window=metadata.window, equal_key_norms=True)
    if x.shape[1] == 1 and (kernels := dispatch.decode_kernels(x)):
        positions = metadata.positions[:, 0].expand(len(x))
        ring = 0 if metadata.window is None else metadata.window + 1
        y = kernels.decode_features(x[:, 0], cached, bandwidth, positions, metadata.frequencies, ring, NORM_EPS)
        return y[:, None]
    q, k = rotary_norm(x, metadata.cos_sin), rotary_norm(cached, metadata.key_cos_sin)
    q, k = softmax_features(q, k, bandwidth, equal_key_norms=True)
    return _masked(q, k, cached, 1.0, metadata.mask)


def softmax_attention_cached(q: Tensor, k: Tensor, v: Tensor, metadata: AttentionMetadata, *, scale: float) -> Tensor:
    """Softmax attention of new queries over cached keys and values.

    Args:
        q: (B, T, H, D) queries of the new positions.
        k, v: (B, S, H, D) and (B, S, H, D_v) of all cached positions.
        metadata: of the step.
        scale: factor of the logits.

    Returns:
        (B, T, H, D_v).
    """
    if metadata.key_positions is None:
        return softmax_attention(q, k, v, scale=scale, window=metadata.window)
    if q.shape[1] == 1 and (kernels := dispatch.decode_kernels(q)):
        positions = metadata.positions[:, 0].expand(len(q))
        return kernels.decode_softmax(q[:, 0], k, v, positions, scale)[:, None]
    return _masked(q, k, v, scale, metadata.mask)


def _masked(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    return sdpa(q, k, v, scale, mask=None if mask is None else mask[:, None])
