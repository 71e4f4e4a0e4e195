"""Softmax attention through torch's FlexAttention, which skips the blocks that a window hides."""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex


def flex_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None) -> Tensor:
    """softmax(q kᵀ + mask) v.

    Args:
        q, k: (B, T, H, D) features.
        v: (B, T, H, D_v) values.
        causal, window: see `nanogka.attention.masks`.

    Returns:
        (B, T, H, D_v).
    """
    width, values = max(q.shape[-1], v.shape[-1]), v.shape[-1]
    q, k, v = (F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t for t in (q, k, v))
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    mask = block_mask(q.shape[2], causal, window, q.device) if causal or window is not None else None
    return _compiled()(q, k, v, block_mask=mask, scale=1.0).transpose(1, 2)[..., :values]


@functools.cache
def _compiled() -> object:
    """Uncompiled, FlexAttention materialises T×T scores."""
    return torch.compile(torch_flex.flex_attention, dynamic=False)


@functools.lru_cache(maxsize=32)
def block_mask(length: int, causal: bool, window: int | None, device: torch.device) -> torch_flex.BlockMask:
    """Which blocks of keys each block of queries needs; made once for a length and window."""

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query - key
        near = distance >= 0 if causal else distance == distance
        if window is None:
            return near
        return near & (distance <= window) & (distance >= -window)

    return torch_flex.create_block_mask(seen, None, None, length, length, device=device)
