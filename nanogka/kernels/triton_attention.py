"""The Triton kernels as `torch.library` custom operators: `torch.compile` keeps them in one graph, autograd knows them.

Importing this file needs Triton, which is optional.
"""

from typing import Optional

import torch
from torch import Tensor

from nanogka.kernels import triton_backward, triton_forward


def triton_attention(
    q: Tensor, k: Tensor, v: Tensor, bandwidth: Tensor, *, causal: bool, window: int | None, equal_key_norms: bool
) -> Tensor:
    """The operator by our kernels; arguments and result as `nanogka.attention.gaussian_attention`."""
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"the Triton kernels take bfloat16, float16 or float32, got {q.dtype}")
    return _attention(q, None if q is k else k, v, bandwidth, causal, window, not equal_key_norms)[0]


# torch infers the operators' schemas from these annotations, and on Python 3.10 does not know `X | None`.
@torch.library.custom_op("nanogka::gaussian_attention", mutates_args=())
def _attention(
    q: Tensor,
    k: Optional[Tensor],  # noqa: UP045
    v: Tensor,
    bandwidth: Tensor,
    causal: bool,
    window: Optional[int],  # noqa: UP045
    biased: bool,
) -> tuple[Tensor, Tensor]:
    """y and the rows' logarithms; k is None where the keys are the queries."""
    return triton_forward.attend(q, q if k is None else k, v, bandwidth.contiguous(), causal, window, biased)


@torch.library.custom_op("nanogka::gaussian_attention_backward", mutates_args=())
def _attention_backward(
    dy: Tensor,
    q: Tensor,
    k: Optional[Tensor],  # noqa: UP045
    v: Tensor,
    bandwidth: Tensor,
    y: Tensor,
    lse: Tensor,
    causal: bool,
    window: Optional[int],  # noqa: UP045
    biased: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k (empty where the keys are the queries), v and the bandwidth."""
    return triton_backward.attend_backward(
        dy, q, k, v, bandwidth.contiguous(), y.contiguous(), lse.contiguous(), causal, window, biased
    )


@_attention.register_fake
def _(q, k, v, bandwidth, causal, window, biased):
    B, T, H, _ = q.shape
    return v.new_empty(v.shape), q.new_empty((B * H, T), dtype=torch.float32)


@_attention_backward.register_fake
def _(dy, q, k, v, bandwidth, y, lse, causal, window, biased):
    dk = q.new_empty((0,) if k is None else q.shape)
    return q.new_empty(q.shape), dk, v.new_empty(v.shape), bandwidth.new_empty(bandwidth.shape)


def _setup(ctx, inputs, output):
    q, k, v, bandwidth, ctx.causal, ctx.window, ctx.biased = inputs
    y, lse = output
    ctx.save_for_backward(q, k, v, bandwidth, y, lse)
    ctx.mark_non_differentiable(lse)


def _backward(ctx, dy, _):
    q, k, v, bandwidth, y, lse = ctx.saved_tensors
    dq, dk, dv, dbandwidth = _attention_backward(dy, q, k, v, bandwidth, y, lse, ctx.causal, ctx.window, ctx.biased)
    return dq, None if k is None else dk, dv, dbandwidth, None, None, None


_attention.register_autograd(_backward, setup_context=_setup)
