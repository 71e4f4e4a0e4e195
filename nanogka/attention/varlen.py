"""Softmax attention through torch's packed-sequence kernel, whose newer versions know windows."""

import inspect

import torch
from torch import Tensor


def varlen_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None) -> Tensor:
    """softmax(q kᵀ + mask) v.

    Args:
        q, k: (B, T, H, D) features.
        v: (B, T, H, D) values.
        causal, window: see `nanogka.attention.masks`.

    Returns:
        (B, T, H, D).

    Raises:
        ValueError: if this torch's kernel has no windows, or the head sizes differ.
    """
    from torch.nn.attention.varlen import varlen_attn

    if "window_size" not in inspect.signature(varlen_attn).parameters:
        raise ValueError(f"varlen_attn of torch {torch.__version__} has no windows")
    if q.shape[-1] != v.shape[-1]:
        raise ValueError(f"varlen_attn takes one head size, got {q.shape[-1]} and {v.shape[-1]}")
    B, T = q.shape[:2]
    ends = torch.arange(0, B * T + 1, T, dtype=torch.int32, device=q.device)
    reach = -1 if window is None else window
    y = varlen_attn(
        *(t.flatten(0, 1) for t in (q, k, v)), ends, ends, T, T, scale=1.0, window_size=(reach, 0 if causal else reach)
    )
    return y.unflatten(0, (B, T))
