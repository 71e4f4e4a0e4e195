"""Which keys a query sees: the one place that defines causality and the window.

A causal layer with window W lets position i see itself and the W positions before it, 0 ≤ i − j ≤ W (FlashAttention's
and nanochat's `(W, 0)`); a bidirectional one sees |i − j| ≤ W. `None` is no limit.
"""

import torch
from torch import Tensor


def visible(query_positions: Tensor, key_positions: Tensor, window: int | None, causal: bool = True) -> Tensor:
    """Whether each query sees each key.

    Args:
        query_positions: (..., T) integer positions.
        key_positions: (..., S) integer positions.
        window: how far a key may lie from its query, in positions; `None` for no limit.
        causal: whether keys after the query are hidden.

    Returns:
        (..., T, S) bool.
    """
    distance = query_positions[..., :, None] - key_positions[..., None, :]
    if causal:
        seen = distance >= 0
        return seen if window is None else seen & (distance <= window)
    if window is None:
        return torch.ones_like(distance, dtype=torch.bool)
    return distance.abs() <= window


def effective_window(window: int | None, length: int) -> int | None:
    """`window`, or `None` when it hides nothing in a sequence of `length` positions."""
    return None if window is None or window >= length - 1 else window
