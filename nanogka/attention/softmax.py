"""Softmax attention on torch's fused kernels, dense or windowed, without a T×T matrix.

Dense layers are one `scaled_dot_product_attention` call. A causal window W runs in two parts: the first W + 1 queries
see every key before them, which is dense causal attention; the rest run in blocks, each against the keys it can
see, all blocks in one batched call that shares a single small mask. Memory and time grow with T · W.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogka.attention.masks import effective_window, visible


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = True, window: int | None = None
) -> Tensor:
    """softmax(scale · q kᵀ + mask) v.

    Args:
        q, k: (B, T, H, D) features of any float dtype and any strides.
        v: (B, T, H, D_v) values.
        scale: factor of the logits.
        causal: hide later positions.
        window: see `nanogka.attention.masks`; `None` for none.

    Returns:
        (B, T, H, D_v) in the dtype of `v`.
    """
    window = effective_window(window, q.shape[1])
    if window is None:
        return _sdpa(q, k, v, scale, causal=causal)
    return _causal_blocks(q, k, v, scale, window) if causal else _bidirectional_blocks(q, k, v, scale, window)


def softmax_attention_over(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, scale: float) -> Tensor:
    """Softmax attention of T queries over S keys with an explicit mask: what decoding with a cache needs.

    Args:
        q: (B, T, H, D); k, v: (B, S, H, D).
        mask: (B, T, S) bool, true where a query sees a key; each query must see one at least.
        scale: factor of the logits.

    Returns:
        (B, T, H, D).
    """
    return _sdpa(q, k, v, scale, mask=mask[:, None])


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """torch's attention on (B, T, H, D) layouts.

    Its fused kernels want one head size for all three and else fall back to a T×T matrix in silence; so pad with zeros.
    """
    width, values = max(q.shape[-1], v.shape[-1]), v.shape[-1]
    q, k, v = (F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t for t in (q, k, v))
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
    return y.transpose(1, 2)[..., :values]


def block_size(window: int) -> int:
    """Queries a block: a block reads window + block keys, so half a window wastes a third of the products at most."""
    return max(64, min(256, window // 2))


def _causal_blocks(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
    length, head = q.shape[1], window + 1  # i − j ≤ W holds by itself for the first W + 1 queries
    first = _sdpa(q[:, :head], k[:, :head], v[:, :head], scale, causal=True)

    block = block_size(window)
    blocks = -(-(length - head) // block)
    reach = -(-window // block)  # blocks of keys before a query's own
    # Block n holds queries head + n·block …; its keys start `window` earlier, at 1 + n·block.
    q = _split(q[:, head:], blocks, block)
    k, v = (_split(t[:, 1:], blocks + reach, block) for t in (k, v))
    k, v = (torch.cat([t[:, i : i + blocks] for i in range(reach + 1)], dim=2) for t in (k, v))

    rows = torch.arange(block, device=q.device) + window
    mask = visible(rows, torch.arange((reach + 1) * block, device=q.device), window)  # (block, keys), for every block
    folded = (t.flatten(0, 1) for t in (q, k, v))  # (B · blocks, block or keys, H, D)
    rest = _sdpa(*folded, scale, mask=mask).unflatten(0, (-1, blocks)).flatten(1, 2)[:, : length - head]
    return torch.cat([first, rest], dim=1)


def _split(x: Tensor, blocks: int, block: int) -> Tensor:
    """(B, T, H, D), zero-padded to blocks · block positions, as (B, blocks, block, H, D)."""
    missing = blocks * block - x.shape[1]
    if missing > 0:
        x = F.pad(x, (0, 0, 0, 0, 0, missing))
    return x[:, : blocks * block].unflatten(1, (blocks, block))


def _bidirectional_blocks(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
    length, block = q.shape[1], block_size(window)
    outputs = []
    for start in range(0, length, block):
        stop = min(start + block, length)
        keys = slice(max(0, start - window), min(length, stop + window))
        mask = visible(
            torch.arange(start, stop, device=q.device),
            torch.arange(keys.start, keys.stop, device=q.device),
            window,
            causal=False,
        )
        outputs.append(_sdpa(q[:, start:stop], k[:, keys], v[:, keys], scale, mask=mask))
    return torch.cat(outputs, dim=1)
