"""Summary numbers of attention weights A (…, T, T), row-stochastic. They need no model, so they also serve images.

Shapes: L layers, H heads, T positions; A_ij is the share of position j in the output of i.
"""

import torch
from torch import Tensor


def effective_context(weights: Tensor) -> Tensor:
    """(…, T): perplexity exp(−Σ_j A_ij ln A_ij) of each row of A (…, T, T): n for a uniform row over n positions."""
    # A row is a distribution over positions; exp of its entropy is how many equally likely ones would be as uncertain.
    # entr(0) is 0, so masked positions add nothing.
    return torch.special.entr(weights).sum(-1).exp()


def attended_distance(weights: Tensor) -> Tensor:
    """(…, T): Σ_j A_ij |i − j| of each row of A (…, T, T), in positions."""
    positions = torch.arange(weights.shape[-1], device=weights.device)
    return (weights * (positions[:, None] - positions).abs()).sum(-1)


def without_diagonal(weights: Tensor) -> Tensor:
    """A (…, T, T) with NaN on its diagonal, which otherwise sets the color scale."""
    return weights.masked_fill(torch.eye(weights.shape[-1], dtype=torch.bool, device=weights.device), torch.nan)


def rollout(weights: Tensor, discard: float = 0.0) -> Tensor:
    """Attention rollout (Abnar and Zuidema, arXiv 2005.00928): (T, T), the product over layers of (A + I) / 2.

    `weights` (L, T, T): each layer's A averaged over its heads; `discard`: the share of each row's nonzero weights, the
    smallest, that is set to 0 first; the row is rescaled.
    """
    # Treat a block as a linear map between positions: its residual stream is half what it was (I), half attention (A).
    # The path from an input to an output position may change position in any layer, hence the product of the maps.
    identity = reached = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    for layer in weights:
        ranks = layer.argsort(-1).argsort(-1)  # 0 for the smallest of a row
        # Masked positions are zeros and rank first: the discarded share is counted among the others.
        zeros = (layer == 0).sum(-1, keepdim=True)
        dropped = zeros + (discard * (layer.shape[-1] - zeros)).floor()
        kept = layer.masked_fill(ranks < dropped, 0)
        kept = kept / kept.sum(-1, keepdim=True)
        reached = (kept + identity) / 2 @ reached
    return reached


def induction_shares(weights: Tensor, period: int) -> tuple[Tensor, Tensor]:
    """Mean weight (…) of the second copy on the token after the earlier occurrence, and on that occurrence itself.

    `weights` (…, T, T): A on a sequence whose last `2 · period` tokens are one sequence twice. The last token has no
    successor and is left out.
    """
    # The second copy of a token is `period` positions after the first, so these weights are two diagonals of A. The
    # tokens are random: only copying predicts the second copy, so only an induction head puts weight there.
    rows = weights[..., -period:-1, :]
    after, itself = (rows.diagonal(weights.shape[-1] - period - back, -2, -1).mean(-1) for back in (period - 1, period))
    return after, itself
