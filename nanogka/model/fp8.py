"""Products of linear layers in 8-bit floating point, which Ada, Hopper and Blackwell GPUs multiply twice as fast.

    y = x Wᵀ,   ∂x = ∂y W,   ∂W = ∂yᵀ x

Each operand is divided by one number, so that its largest element becomes the largest of the format, and rounded. x and
W are in e4m3 (3 bits of mantissa, up to 448). Gradients are in e5m2 (2 bits, up to 57,344), which has a wider range.
Sums are in float32. nanochat's fp8.py and torchao's tensorwise recipe do the same.
"""

import torch
from torch import Tensor

from nanogka.common.errors import in_one_line

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # of the sides of all operands, for cuBLAS
SMALLEST = 128  # side of a matrix from which the faster product outweighs the casts


def fits(weight: Tensor) -> bool:
    """True if a matrix of this shape can and should be multiplied in 8 bits."""
    return min(weight.shape) >= SMALLEST and all(side % MULTIPLE == 0 for side in weight.shape)


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x / scale in `dtype`, and the scale. No element exceeds the format's largest number, so none needs a clamp."""
    scale = x.abs().amax().float().clamp_min(1e-12) / torch.finfo(dtype).max  # not 0 if all elements are 0
    return (x.float() / scale).to(dtype), scale


def multiply(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, dtype: torch.dtype, fast: bool = False) -> Tensor:
    """a b in `dtype`. Memory holds a row by row and b column by column, as Hopper's units read them."""
    return torch._scaled_mm(a, b, scale_a=a_scale, scale_b=b_scale, out_dtype=dtype, use_fast_accum=fast)


def gradients_of_product(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """∂x in the dtype of `gradient` and ∂W in float32, from the 8-bit x and W that a forward pass has saved."""
    x8, x_scale, w8, w_scale = ctx.saved_tensors
    g8, g_scale = quantize(gradient, E5M2)
    dx = multiply(g8, g_scale, w8.T.contiguous().T, w_scale, gradient.dtype)
    dw = multiply(g8.T.contiguous(), g_scale, x8.T.contiguous().T, x_scale, torch.float32)
    return dx, dw


class FP8Product(torch.autograd.Function):
    """x Wᵀ of x (N, C) and W (M, C)."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        x8, x_scale = quantize(x, E4M3)
        w8, w_scale = quantize(weight, E4M3)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        return multiply(x8, x_scale, w8.T, w_scale, x.dtype, fast=True)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients_of_product(ctx, gradients[0])


class FP8SquaredReLUProduct(torch.autograd.Function):
    """relu(x)² Wᵀ of x (N, C) and W (M, C). Only the 8-bit relu(x)² is kept, from which 2 relu(x) follows, too."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        y8, y_scale = quantize(x.relu().square(), E4M3)
        w8, w_scale = quantize(weight, E4M3)
        ctx.save_for_backward(y8, y_scale, w8, w_scale)
        return multiply(y8, y_scale, w8.T, w_scale, x.dtype, fast=True)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        y8, y_scale, *_ = ctx.saved_tensors
        dy, dw = gradients_of_product(ctx, gradients[0])
        return (2 * (y8.float() * y_scale).sqrt() * dy).to(dy.dtype), dw


def product_fault(device: torch.device) -> str | None:
    """The reason why training cannot multiply in 8 bits on the device, None if it can. A small problem is tried."""
    try:
        return _probe(device)
    except Exception as error:  # not for this GPU, or not in this build of torch
        return in_one_line(error)


def _probe(device: torch.device) -> str | None:
    """Compare a product and its gradients with float64."""
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(n, 32, generator=generator, dtype=torch.float64) for n in (16, 48)]
    results = []
    for product, dtypes, place in (
        (lambda x, w: x @ w.T, (torch.float64, torch.float64), torch.device("cpu")),
        (FP8Product.apply, (torch.bfloat16, torch.float32), device),
    ):
        x, w = (t.to(place, dtype).requires_grad_() for t, dtype in zip(leaves, dtypes))
        y = product(x, w)
        results.append([y, *torch.autograd.grad(y.float().square().sum(), (x, w))])
    for name, exact, ours in zip(("products", "gradients of x", "gradients of W"), *results):
        if not (ours.cpu().double() - exact).norm() <= 0.1 * exact.norm():
            return f"{name} disagree with float64"
    return None
