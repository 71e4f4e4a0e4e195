"""Norm and rotary norm with their own backward pass on CPUs, against float64 and against autograd's chain."""

import pytest
import torch
from torch.nn import functional as F

from nanogka.attention.rotary import norm, rotary_norm, scale_queries

NORM_EPS = 2**-23  # of float32

SHAPES = [(1, 1, 1, 2), (2, 7, 3, 8), (3, 5, 1, 66)]  # (B, T, H, D)


def exact(x, table, rotate):
    """The formulas in float64: x / √(mean(x²) + ε), then each pair (i, i + D/2) turned by −θ."""
    y = x / (x.square().mean(-1, keepdim=True) + NORM_EPS).sqrt()
    if not rotate:
        return y
    half = x.shape[-1] // 2
    pairs = torch.complex(y[..., :half], y[..., half:])
    cos, sin = (part.double() for part in table)
    turned = pairs * torch.complex(cos, -sin)
    return torch.cat([turned.real, turned.imag], -1)


def table_of(length, size):
    angles = torch.arange(length)[:, None] * 0.7 ** torch.arange(size // 2)
    return tuple(part[None, :, None, :].float() for part in (angles.cos(), angles.sin()))


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_float64(shape, dtype, rotate):
    """The error is at most that of autograd's chain of operations, plus one rounding."""
    random = torch.Generator().manual_seed(sum(shape))
    x = (3 * torch.randn(shape, generator=random)).to(dtype)
    x[0, 0, 0] = 0  # a zero vector stays zero, and its gradient is finite
    weight, table = torch.randn(shape, generator=random).to(dtype), table_of(shape[1], shape[-1])

    def run(function, x, weight):
        x = x.clone().requires_grad_()
        y = function(x)
        (gradient,) = torch.autograd.grad((y * weight).sum(), x)
        return y.detach(), gradient

    def chain(x):
        y = F.rms_norm(x.float() if rotate else x, x.shape[-1:], eps=NORM_EPS)
        if rotate:
            (cos, sin), (first, second) = table, y.chunk(2, -1)
            y = torch.cat([first * cos + second * sin, second * cos - first * sin], -1)
        return y.to(x.dtype)

    ours = run(lambda x: rotary_norm(x, table) if rotate else norm(x), x, weight)
    plain = run(chain, x, weight)
    true = run(lambda x: exact(x, table, rotate), x.double(), weight.double())
    for got, other, wanted in zip(ours, plain, true):
        assert got.dtype == dtype
        rounding = torch.finfo(dtype).eps * wanted[1:].norm() if len(wanted) > 1 else torch.finfo(dtype).eps
        error, allowed = ((one.double() - wanted)[1:].norm() for one in (got, other))
        assert error <= allowed + rounding
        assert torch.isfinite(got).all()
    assert torch.equal(ours[0][0, 0, 0], torch.zeros(shape[-1], dtype=dtype))


def test_without_gradients_and_with_them_the_values_agree():
    x, table = torch.randn(2, 9, 3, 8, generator=torch.Generator().manual_seed(0)), table_of(9, 8)
    for function in (norm, lambda x: rotary_norm(x, table)):
        torch.testing.assert_close(function(x.clone().requires_grad_()).detach(), function(x), atol=1e-6, rtol=0)


def test_a_bandwidth_keeps_its_32_bits_where_queries_have_16():
    """σ = 1 + 2⁻⁸ lies in the middle of two numbers of bfloat16: rounded first, σ² would be 0.8 % off."""
    generator = torch.Generator().manual_seed(0)
    q, gradient = (torch.randn(3, 50, 2, 8, generator=generator).bfloat16() for _ in range(2))
    sigma = torch.tensor([1 + 2**-8, 1.7], requires_grad=True)
    scaled = scale_queries(q, sigma)
    scaled.backward(gradient)
    wide, s = q.double(), sigma.detach().double()[:, None]
    expected = wide / s**2
    assert scaled.dtype == torch.bfloat16
    assert ((scaled - expected).abs() <= 2**-8 * expected.abs() * 1.001).all()  # one rounding
    slope = (gradient.double() * -2 * wide / s**3).sum((0, 1, 3))
    torch.testing.assert_close(sigma.grad.double(), slope, rtol=1e-4, atol=0)
