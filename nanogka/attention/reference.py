"""Literal Gaussian kernel attention (the paper's equations 3 to 7), the oracle of every other implementation.

It allocates several (B, H, T, T) tensors. Use it for tests and comparisons, not for training.
"""

import torch
from torch import Tensor

from nanogka.attention.softmax import attention_mask


def gaussian_reference(
    q: Tensor, k: Tensor, v: Tensor, bandwidth: Tensor, *, causal: bool = True, window: int | None = None
) -> Tensor:
    """y_i = Σ_j A_ij v_j with A the masked, row-renormalized Gaussian kernel of the distances ‖q_i − k_j‖.

    Args and result as `nanogka.attention.gaussian_attention`. Computes in the dtype of its inputs.
    """
    positions = torch.arange(q.shape[1], device=q.device)
    mask = attention_mask(positions, positions, window)  # (T, T), equation 6
    mask = mask if causal else torch.ones_like(mask)
    difference = q.transpose(1, 2)[:, :, :, None] - k.transpose(1, 2)[:, :, None, :]  # (B, H, T, T, D)
    squared_distance = difference.square().sum(-1)  # equation 3
    sigma = bandwidth.to(q.dtype)[None, :, None, None]
    exponent = -squared_distance / (2 * sigma.square())
    # A factor common to a row cancels when the row is renormalized; taking out the largest keeps small σ from 0 / 0.
    largest = exponent.masked_fill(~mask, -torch.inf).amax(-1, keepdim=True).detach()
    kernel = torch.where(mask, torch.exp(torch.where(mask, exponent - largest, 0)), 0)  # equations 4 and 6
    weights = kernel / kernel.sum(-1, keepdim=True)  # equation 5, after the mask
    return torch.einsum("bhij,bjhd->bihd", weights, v)  # equation 7
