"""Decoding the Gaussian mixer from one tensor a position, without making keys of it.

Query, key and value are functions of x_h, but key and value differ by a rotation: with R_p the rotary map at
position p,

    logit_j = q · R_j x_j / (σ² rms(x_j)),   y = Σ_j a_j x_j.

Rotating all S remembered features at every token costs several passes over them. Instead the cache holds u_j = R_r x_j
with r the *phase* of slot j, its place in a block of b slots; in a block, j − r is one number k. So

    logit_j = (R_k⁻¹ q) · u_j / (σ² rms(u_j))      one rotated query a block, S / b in all;
    y = Σ_r R_r⁻¹ ( Σ_blocks a u )                  one rotation back a phase, b in all.

That is exact, takes the memory of x_h alone and reads it three times: products, norms, weighted sum. A ring of W + 1
slots is cut into blocks by slot, not by position; the block in which its newest entry lies has two numbers k.

Shapes: S slots, H heads, D features a head, b = BLOCK.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nanogka.attention import PhaseTables, phase_tables
from nanogka.model.layers import NORM_EPS, Rotary, norm, rotary_at, rotate

BLOCK = 64


def phases(positions: Tensor, window: int | None) -> Tensor:
    """The phase of each position, any shape, int64; position p of a windowed layer is in slot p mod (W + 1)."""
    slots = positions if window is None else positions % (window + 1)
    return slots % BLOCK


def kernel_tables(positions: Tensor, window: int | None, slots: int, frequencies: Tensor, backend: str) -> PhaseTables:
    """What our decode kernels need for new tokens at positions (B,), whose cache has `slots` slots a row."""
    return phase_tables(positions, frequencies, slots, window, BLOCK, backend=backend)


@dataclass
class PhasePlan:
    """What decoding a token at one position needs, the same in every layer with the same window.

    Attributes:
        slots: S, how many are filled, the token's own among them.
        queries: rotary tables (1, N, 1, D/2) that take the query to the blocks, R_{p − k}, in N − 1 blocks; the last
            is for the older entries of the newest block.
        older: the slots to which the last one applies, empty until a ring is full.
        back: rotary tables (b, 1, D/2) of the phases.
    """

    slots: int
    queries: Rotary
    older: slice
    back: Rotary

    @classmethod
    def at(cls, position: int, window: int | None, frequencies: Tensor) -> "PhasePlan":
        """The plan for a new token at `position`, remembered already."""
        ring = position + 1 if window is None else window + 1
        slots, newest = min(position + 1, ring), position % ring
        first = position - newest  # the position in slot 0
        starts = torch.arange(0, slots, BLOCK)
        k = torch.where(starts <= newest, first + starts, first - ring + starts)
        block = newest // BLOCK * BLOCK
        k = torch.cat([k, torch.tensor([first - ring + block])]).to(frequencies.device)
        end = min(block + BLOCK, slots)
        older = slice(newest + 1, end if position >= ring else newest + 1)
        cos, sin = rotary_at(position - k, frequencies)
        return cls(slots, (cos[None], sin[None]), older, rotary_at(torch.arange(BLOCK).to(k.device), frequencies))


def unrotate(x: Tensor, rotary: Rotary) -> Tensor:
    """The inverse of `layers.rotate`."""
    cos, sin = rotary
    return rotate(x, (cos, -sin))


def attend_phased(heads: Tensor, remembered: Tensor, bandwidth: Tensor, plan: PhasePlan) -> Tensor:
    """Gaussian kernel attention of one new position in each of B rows.

    Args:
        heads: (B, H, D) its own features x_h, not rotated.
        remembered: (B, S, H, D) features u of the filled slots, in order.
        bandwidth: (H,) σ.
        plan: of the position, the same in all rows.

    Returns:
        (B, H, D) float32.
    """
    query = norm(heads.float()) / bandwidth.float().square()[:, None]
    queries = rotate(query[:, None], plan.queries)  # (B, N, H, D)
    by_phase = remembered.new_zeros(len(heads), BLOCK, *heads.shape[1:])
    # Row by row, so that what is read of a row is still in the CPU's caches when it is read again.
    for row in range(len(heads)):
        weights = _weights(remembered[row], queries[row], plan)
        _sum_by_phase(remembered[row], weights.to(remembered.dtype), by_phase[row])
    return unrotate(by_phase, plan.back).sum(1)


def _weights(remembered: Tensor, queries: Tensor, plan: PhasePlan) -> Tensor:
    """Attention (S, H), in float32 at least, to remembered features (S, H, D); queries (N, H, D)."""
    edge = len(remembered) // BLOCK * BLOCK
    wide = torch.promote_types(remembered.dtype, torch.float32)
    norms = torch.linalg.vector_norm(remembered, dim=-1, dtype=wide)
    scale = norms.square_().div_(remembered.shape[-1]).add_(NORM_EPS).rsqrt_()
    logits = torch.empty_like(scale)
    whole = remembered[:edge].unflatten(0, (-1, BLOCK))
    if edge:
        torch.sum(whole * queries[: edge // BLOCK, None], -1, out=logits[:edge].view(whole.shape[:-1]))
    if edge < len(remembered):
        torch.sum(remembered[edge:] * queries[edge // BLOCK], -1, out=logits[edge:])
    if plan.older.stop > plan.older.start:
        torch.sum(remembered[plan.older] * queries[-1], -1, out=logits[plan.older])
    return torch.softmax(logits.mul_(scale), dim=0)


def _sum_by_phase(remembered: Tensor, weights: Tensor, total: Tensor) -> None:
    """Add Σ_blocks weights (S, H) · remembered (S, H, D) to `total` (b, H, D), which is 0."""
    slots, H, D = remembered.shape
    blocks, edge = slots // BLOCK, slots // BLOCK * BLOCK
    if blocks:
        # For each phase and head one product of a row of weights with a matrix of features.
        factors = weights[:edge].view(blocks, BLOCK * H).t()[:, None].contiguous()
        features = remembered[:edge].view(blocks, BLOCK * H, D).transpose(0, 1)
        torch.bmm(factors, features, out=total.view(BLOCK * H, 1, D))
    if edge < slots:
        total[: slots - edge] += weights[edge:, :, None] * remembered[edge:]
