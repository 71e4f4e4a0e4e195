"""Similarity features: rotary positions and RMS norm.

z = norm(rope(x_h)): a token's features, turned by angles proportional to its position and scaled to ‖z‖ = √D.

Shapes: B batch, T positions, H heads, D features per head.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NORM_EPS = torch.finfo(torch.float32).eps  # a vector of zeros stays zero instead of NaN

CosSin = tuple[Tensor, Tensor]  # float32, broadcastable to (B, T, H, D / 2)


def norm(x: Tensor) -> Tensor:
    """RMS norm over the last dimension, without learned parameters."""
    # A learned gain per channel would only scale rows of the matrix that follows, which can learn that itself.
    if _has_own_backward(x):
        return _Norm.apply(x)
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
    if _has_own_backward(x):
        return _RotaryNorm.apply(x, *cos_sin)
    return apply_rotary(norm(x.float()), cos_sin).to(x.dtype)


def scale_queries(q: Tensor, bandwidth: Tensor) -> Tensor:
    """q / σ² of queries (…, H, D): products with keys of one norm are then the Gaussian's exponents.

    Those lack −(‖q_i‖² + ‖k_j‖²) / 2σ², a constant per row. The division is in float32 at least.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    return (q.to(wide) / bandwidth.to(wide).square()[:, None]).to(q.dtype)


# ---- Norm and rotation in eager mode on a CPU ----
# torch has no fused RMS norm for CPUs: it is a chain of operations there, and autograd keeps a tensor for most of them.
# These functions pass about half as often over memory. On a GPU, torch.compile fuses the chain.


def _has_own_backward(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled() and x.device.type == "cpu" and not torch.compiler.is_compiling()


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _inverse_norms(x: Tensor) -> Tensor:
    """(…, 1): 1 / √(mean(x²) + ε)."""
    return x.square().mean(-1, keepdim=True).add_(NORM_EPS).rsqrt_()


def _norm_gradient(gradient: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    """∂x = scale · (∂y − y · mean(∂y · y)), at least float32, for y = scale · x.

    If y and its gradient are rotated alike, the mean stays, and the result is ∂x rotated.
    """
    gradient, y = _wide(gradient), _wide(y)
    return torch.addcmul(gradient, y, (gradient * y).mean(-1, keepdim=True), value=-1).mul_(scale)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, sign: int, dtype: torch.dtype) -> Tensor:
    """`apply_rotary` in one pass per half; `sign` −1 rotates back."""
    first, second = x.chunk(2, dim=-1)
    half = first.shape[-1]
    y = torch.empty(x.shape, dtype=dtype)
    y[..., :half] = (first * cos).addcmul_(second, sin, value=sign)
    y[..., half:] = (second * cos).addcmul_(first, sin, value=-sign)
    return y


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        wide = _wide(x)
        scale = _inverse_norms(wide)
        y = (wide * scale).to(x.dtype)
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        y, scale = ctx.saved_tensors
        return _norm_gradient(gradients[0], y, scale).to(y.dtype)


class _RotaryNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        wide = x.float()
        scale = _inverse_norms(wide)
        y = _rotate(wide * scale, cos, sin, 1, x.dtype)
        ctx.save_for_backward(y, scale, cos, sin)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        y, scale, cos, sin = ctx.saved_tensors
        return _rotate(_norm_gradient(gradients[0], y, scale), cos, sin, -1, y.dtype), None, None
