"""Masks, and softmax attention on torch's fused kernels, dense or windowed, without a T×T matrix.

`attention_mask` is the one place that defines causality and the window. With a window W position i sees itself and the
W positions before it, 0 ≤ i − j ≤ W (FlashAttention's and nanochat's `(W, 0)`). `None` is no limit. Attention that is
not causal, as images need it, has no window.

On CUDA causal attention is torch's FlashAttention (`varlen_attn`), which knows windows and their backward pass. It is a
custom operator, so torch.compile keeps it in the graph.

Elsewhere a dense layer is one `scaled_dot_product_attention` call, and so is a short windowed one, with a mask
(`MASKED`). A longer causal window W runs in two parts. The first W + 1 queries see every key before them, which is
dense causal attention. The rest run in blocks, each against the keys it can see, all blocks in one batched call that
shares a single small mask. Memory and time grow with T · W.

Short causal sequences in 16 bits on a CPU are an exception: torch's fused CPU kernel takes about twice as long as two
plain products around a softmax. The T×T matrices are small there (`SHORT`, `SHORT_ELEMENTS`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogka import backends

# Up to here a window is a mask of one call: float32 on a CPU, forward and backward, took 0.64 of the time of blocks at
# 128 positions, 0.92 at 256, and 1.33 at 512.
MASKED = 256
SHORT = 512  # maximum positions for plain products in 16 bits on a CPU
SHORT_ELEMENTS = 2**23  # maximum elements B · H · T² of the weights that they keep for the backward pass: 16 MiB


def attention_mask(query_positions: Tensor, key_positions: Tensor, window: int | None) -> Tensor:
    """The mask (…, T, S): which query, at integer positions (…, T), sees which key, at positions (…, S)."""
    distance = query_positions[..., :, None] - key_positions[..., None, :]
    seen = distance >= 0
    return seen if window is None else seen & (distance <= window)


def clip_window(window: int | None, length: int) -> int | None:
    """`window`, or `None` when it hides nothing in a sequence of `length` positions."""
    return None if window is None or window >= length - 1 else window


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = True, window: int | None = None
) -> Tensor:
    """softmax(scale · q kᵀ + mask) v, of q and k (B, T, H, D) and v (B, T, H, D_v) of any strides."""
    assert causal or window is None, "a window is causal"
    window = clip_window(window, q.shape[1])
    if causal and backends.use_flash_attention(q, v):
        return backends.flash_attention(q, k, v, scale, window)
    B, T, H, _ = q.shape
    short = T <= SHORT and B * H * T * T <= SHORT_ELEMENTS
    if causal and short and q.device.type == "cpu" and q.element_size() == 2:
        return _plain_attention(q, k, v, scale, window)
    if window is None:
        return sdpa(q, k, v, scale, causal=causal)
    if T <= MASKED:
        positions = torch.arange(T, device=q.device)
        return sdpa(q, k, v, scale, mask=attention_mask(positions, positions, window))
    return _causal_blocks(q, k, v, scale, window)


def _plain_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
    """Causal attention by two batched products, with the T×T matrix. The softmax computes in float32."""
    B, T, H, _ = q.shape
    positions = torch.arange(T)
    hidden = torch.zeros(T, T, dtype=q.dtype).masked_fill(~attention_mask(positions, positions, window), -torch.inf)
    q, k, v = (t.transpose(1, 2).reshape(B * H, T, -1) for t in (q, k, v))
    weights = torch.baddbmm(hidden, q, k.mT, alpha=scale).softmax(-1)
    return (weights @ v).unflatten(0, (B, H)).transpose(1, 2)


def sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """`scaled_dot_product_attention` on (B, T, H, D) layouts; mask broadcastable to (B, H, T, S).

    Its fused kernels take one head size for q, k and v, and otherwise silently fall back to a T×T matrix: so the
    smaller ones are padded with zeros.
    """
    width, values = max(q.shape[-1], v.shape[-1]), v.shape[-1]
    q, k, v = (F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t for t in (q, k, v))
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
    return y.transpose(1, 2)[..., :values]


def _block_size(window: int) -> int:
    """The number of queries per block."""
    # A block reads window + block keys, and its queries see window + 1 of them each. Large blocks mask much of what
    # they compute, small ones read most keys many times. Half a window masks a third. At least 64, so that a narrow
    # window does not become many tiny products; at most 256, so that a wide one masks less than a third.
    return max(64, min(256, window // 2))


def _causal_blocks(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
    # The window hides nothing from the first W + 1 queries (i − j ≤ W for all j ≥ 0): dense causal attention.
    length, head = q.shape[1], window + 1
    first = sdpa(q[:, :head], k[:, :head], v[:, :head], scale, causal=True)

    # The rest in blocks of queries, each against the keys from W before its first query up to its last: `reach` blocks
    # of keys and its own. Distances inside are those of every block, so one (block, keys) mask serves all.
    block = _block_size(window)
    # All blocks in one batched call: a loop would start one small kernel per block.
    blocks = -(-(length - head) // block)
    reach = -(-window // block)
    # Block n holds queries head + n·block …; its keys start `window` earlier, at 1 + n·block.
    q = _split(q[:, head:], blocks, block)
    k, v = (_split(t[:, 1:], blocks + reach, block) for t in (k, v))
    k, v = (torch.cat([t[:, i : i + blocks] for i in range(reach + 1)], dim=2) for t in (k, v))

    rows = torch.arange(block, device=q.device) + window
    mask = attention_mask(
        rows, torch.arange((reach + 1) * block, device=q.device), window
    )  # (block, keys), for every block
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))  # (B · blocks, block or keys, H, D)
    rest = sdpa(q, k, v, scale, mask=mask).unflatten(0, (-1, blocks)).flatten(1, 2)[:, : length - head]
    return torch.cat([first, rest], dim=1)


def _split(x: Tensor, blocks: int, block: int) -> Tensor:
    """(B, T, H, D), zero-padded to blocks · block positions, as (B, blocks, block, H, D)."""
    missing = blocks * block - x.shape[1]
    if missing > 0:
        x = F.pad(x, (0, 0, 0, 0, 0, missing))
    return x[:, : blocks * block].unflatten(1, (blocks, block))
