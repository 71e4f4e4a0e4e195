"""The layers for images against the paper's equations written out in float64 numpy, and what they refuse."""

import numpy as np
import pytest
import torch

timm = pytest.importorskip("timm")

from nanogka.attention import gaussian_attention  # noqa: E402
from nanogka.vision.attention import (  # noqa: E402
    AffineGaussianAttention,
    GaussianAttention,
    ValuelessAttention,
    attention_weights,
)

B, C, H, D = 1, 8, 2, 4


def layer_and_input(kind, T):
    torch.manual_seed(T)
    layer = kind(C, num_heads=H, qkv_bias=True).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)
    return layer, torch.randn(B, T, C, dtype=torch.float64, requires_grad=True)


def literal(layer, x):
    """(B, T, C) of the layer: distances one by one, exponentials, rows divided by their sums."""
    output = torch.zeros_like(x)
    for h in range(H):
        own = x[..., h * D : (h + 1) * D]
        if isinstance(layer, GaussianAttention):
            q, k = own, own
            if isinstance(layer, AffineGaussianAttention):
                at = slice(h * D, (h + 1) * D)
                q, k = own * layer.q_scale[at] + layer.q_shift[at], own * layer.k_scale[at] + layer.k_shift[at]
            squares = ((q[:, :, None] - k[:, None]) ** 2).sum(-1)
            kernel = torch.exp(-squares / (2 * torch.exp(layer.log_bandwidth[h]) ** 2))
            value = own
        else:
            q, k = (own_of(layer.qk.weight, layer.qk.bias, x, part * C + h * D) for part in (0, 1))
            kernel = torch.exp((q[:, :, None] * k[:, None]).sum(-1) / np.sqrt(D))
            value = own + layer.value_bias[h * D : (h + 1) * D]
        taken = (kernel / kernel.sum(-1, keepdim=True)) @ value
        output = output + taken @ layer.proj.weight[:, h * D : (h + 1) * D].T
    return output + layer.proj.bias


def own_of(weight, bias, x, first):
    return x @ weight[first : first + D].T + bias[first : first + D]


@pytest.mark.parametrize("kind", [GaussianAttention, AffineGaussianAttention, ValuelessAttention])
@pytest.mark.parametrize("T", [2, 65, 197])
def test_forward_and_gradients_are_the_papers(kind, T):
    layer, x = layer_and_input(kind, T)
    leaves = [x, *layer.parameters()]
    weight = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x).cos()
    results = []
    for y in (layer(x), literal(layer, x)):
        results.append([y.detach(), *torch.autograd.grad((y * weight).sum(), leaves)])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [AffineGaussianAttention, ValuelessAttention, timm.layers.Attention])
def test_the_weights_that_are_drawn_are_those_that_act(kind):
    layer, x = layer_and_input(kind, 17)
    A = attention_weights(layer, x.detach())
    torch.testing.assert_close(A.sum(-1), torch.ones(B, H, 17, dtype=A.dtype))
    if kind is AffineGaussianAttention:
        v = x
    elif kind is ValuelessAttention:
        v = x + layer.value_bias
    else:
        v = layer.qkv(x)[..., 2 * C :]
    y = torch.einsum("bhij,bjhd->bihd", A, v.unflatten(-1, (H, D))).flatten(2)
    torch.testing.assert_close(layer.proj(y), layer(x))


def test_under_autocast_the_error_is_that_of_rounding_the_result():
    """The norms are large compared to the distances, so the key bias must not be rounded."""
    layer = GaussianAttention(C, num_heads=H)
    torch.nn.init.zeros_(layer.log_bandwidth)
    x = (60 + torch.randn(2, 65, C, generator=torch.Generator().manual_seed(0))).bfloat16().float()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        y = layer.attend(x)
    z = layer.heads(x.double())
    exact = gaussian_attention(z, z, z, layer.bandwidth.double(), causal=False, backend="reference")
    assert y.dtype == torch.bfloat16
    assert (y - exact).norm() <= 1.15 * (exact.bfloat16() - exact).norm()


def test_what_the_layer_does_not_have_is_refused():
    for options in ({"num_heads": 3}, {"num_heads": H, "qk_norm": True}, {"num_heads": H, "attn_drop": 0.1}):
        with pytest.raises(ValueError, match=": got "):
            GaussianAttention(C, **options)
    with pytest.raises(ValueError, match="attn_mask"):
        GaussianAttention(C, num_heads=H)(torch.zeros(1, 2, C), is_causal=True)
