"""The Triton kernels of causal Gaussian attention with equal key norms, as `torch.library` custom operators.

`torch.compile` keeps them in one graph, and autograd knows them. Importing this file needs Triton, which is optional.
"""

from typing import Optional

import torch
from torch import Tensor

from nanogka.kernels import triton_backward, triton_forward

MAX_HEAD_DIM = 128  # larger tiles need more shared memory than GPUs have


def triton_attention(q: Tensor, k: Tensor, v: Tensor, bandwidth: Tensor, *, window: int | None) -> Tensor:
    """The operator by our kernels; arguments and result as `nanogka.attention.gaussian_attention`."""
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"backend: 'triton' got {q.dtype}, expected bfloat16, float16 or float32")
    if (widest := max(q.shape[-1], v.shape[-1])) > MAX_HEAD_DIM:
        raise ValueError(f"backend: 'triton' got {widest} features per head, expected at most {MAX_HEAD_DIM}")
    return _attention(q, None if q is k else k, v, bandwidth, window)[0]


# torch infers the operators' schemas from these annotations, and on Python 3.10 does not know `X | None`.
@torch.library.custom_op("nanogka::gaussian_attention", mutates_args=())
def _attention(
    q: Tensor,
    k: Optional[Tensor],  # noqa: UP045
    v: Tensor,
    bandwidth: Tensor,
    window: Optional[int],  # noqa: UP045
) -> tuple[Tensor, Tensor]:
    """y and the rows' logarithms; k is None where the keys are the queries."""
    return triton_forward.attend(q, q if k is None else k, v, bandwidth.contiguous(), window)


@torch.library.custom_op("nanogka::gaussian_attention_backward", mutates_args=())
def _attention_backward(
    dy: Tensor,
    q: Tensor,
    k: Optional[Tensor],  # noqa: UP045
    v: Tensor,
    bandwidth: Tensor,
    y: Tensor,
    lse: Tensor,
    window: Optional[int],  # noqa: UP045
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k (empty where the keys are the queries), v and the bandwidth."""
    y, lse, bandwidth = y.contiguous(), lse.contiguous(), bandwidth.contiguous()
    return triton_backward.attend_backward(dy, q, k, v, bandwidth, y, lse, window)


@_attention.register_fake
def _(q, k, v, bandwidth, window):
    B, T, H, _ = q.shape
    return v.new_empty(v.shape), q.new_empty((B * H, T), dtype=torch.float32)


@_attention_backward.register_fake
def _(dy, q, k, v, bandwidth, y, lse, window):
    dk = q.new_empty((0,) if k is None else q.shape)
    return q.new_empty(q.shape), dk, v.new_empty(v.shape), bandwidth.new_empty(bandwidth.shape)


def _setup(ctx, inputs, output):
    q, k, v, bandwidth, ctx.window = inputs
    y, lse = output
    ctx.save_for_backward(q, k, v, bandwidth, y, lse)
    ctx.mark_non_differentiable(lse)


def _backward(ctx, dy, _):
    q, k, v, bandwidth, y, lse = ctx.saved_tensors
    dq, dk, dv, dbandwidth = _attention_backward(dy, q, k, v, bandwidth, y, lse, ctx.window)
    return dq, None if k is None else dk, dv, dbandwidth, None


_attention.register_autograd(_backward, setup_context=_setup)
