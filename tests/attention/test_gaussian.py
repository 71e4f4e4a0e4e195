"""The operator: reference against numpy, the fused reduction against the reference."""

import itertools

import numpy as np
import pytest
import torch
from operators import peak_bytes, value_and_gradients

from nanogka.attention import gaussian_attention
from nanogka.attention.gaussian import softmax_features


def features(T, D, *, H=2, B=2, same=True, normalized=True, seed=0, dtype=torch.float64):
    """Leaves (q, k, v, σ); q is k when `same`, and of unit RMS when `normalized`."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, T, H, D, generator=generator, dtype=torch.float64) for _ in range(3))
    if normalized:
        q, k = (torch.nn.functional.rms_norm(t, (D,)) for t in (q, k))
    q = q.to(dtype).requires_grad_()
    k = q if same else k.to(dtype).requires_grad_()
    sigma = (torch.rand(H, generator=generator, dtype=torch.float64) * D**0.25 + 0.5 * D**0.25).to(dtype)
    return q, k, v.to(dtype).requires_grad_(), sigma.requires_grad_()


def attention(*leaves, norm=False, **options):
    """The operator, behind an RMS norm of q and k if `norm`."""
    q, k, v, sigma = leaves
    z = torch.nn.functional.rms_norm(q, q.shape[-1:]) if norm else q
    other = z if q is k else torch.nn.functional.rms_norm(k, k.shape[-1:]) if norm else k
    return gaussian_attention(z, other, v, sigma, **options)


def numpy_attention(q, k, v, sigma, mask):
    distance = ((q[:, :, None] - k[:, None]) ** 2).sum(-1)  # (B, T, T, H)
    kernel = np.exp(-distance / (2 * sigma**2)) * mask[None, :, :, None]
    return np.einsum("bijh,bjhd->bihd", kernel / kernel.sum(2, keepdims=True), v)


@pytest.mark.parametrize("causal,window", [(True, None), (True, 0), (True, 3), (True, 15), (False, None)])
def test_reference_agrees_with_numpy(causal, window):
    q, k, v, sigma = (t.detach() for t in features(17, 8, same=False, normalized=False))
    i, j = np.indices((17, 17))
    mask = (j <= i if causal else j < 17) & (np.abs(i - j) <= (17 if window is None else window))
    expected = numpy_attention(q.numpy(), k.numpy(), v.numpy(), sigma.numpy(), mask)
    actual = gaussian_attention(q, k, v, sigma, causal=causal, window=window, backend="reference")
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-12)


# Up to 256 positions a window is a mask, beyond that it is blocks.
CAUSAL = [(1, 0), (2, 1), (63, 5), (63, None), (256, 64), (257, 0), (273, 64), (257, 100), (257, 255)]


@pytest.mark.parametrize(
    "T,window,causal",
    [*((*case, True) for case in CAUSAL), (73, None, False), (273, None, False)],
)
def test_fused_agrees_with_reference_in_float64(T, window, causal):
    cases = itertools.product((True, False), (True, False), (8,) if T > 63 else (8, 128))
    for same, normalized, D in cases:
        inputs = features(T, D, same=same, normalized=normalized, seed=T + D)
        for norm in {False, normalized}:  # a caller that normalizes may say so, and saves the key bias
            options = {"norm": norm, "window": window, "causal": causal}
            expected = value_and_gradients(attention, inputs, backend="reference", **options)
            actual = value_and_gradients(attention, inputs, equal_key_norms=norm, **options)
            for a, e in zip(actual, expected, strict=True):
                assert (a - e).abs().max() <= 1e-10, (same, normalized, norm, D)


@pytest.mark.parametrize("width, padded", [(1, 8), (6, 8), (8, 16), (64, 72), (70, 72)])
def test_features_have_a_width_that_fused_kernels_of_gpus_accept(width, padded):
    q, k, _, sigma = features(3, width, same=False)
    assert [part.shape[-1] for part in softmax_features(q, k, sigma)] == [padded, padded]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("normalized,window", [(True, None), (False, 17)])
def test_low_precision_error_is_that_of_the_plain_version(dtype, normalized, window):
    inputs = features(113, 64, dtype=dtype, normalized=normalized, same=False)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    exact = value_and_gradients(attention, wide, window=window, backend="reference")
    plain = value_and_gradients(attention, inputs, window=window, backend="reference")
    fused = value_and_gradients(attention, inputs, window=window)
    # σ's gradient is a small difference of large sums: in float32 its error is a few hundred roundings, not two.
    steps = [1, 1, 1, 1, 500 if dtype == torch.float32 else 1]
    for f, p, e, step in zip(fused, plain, exact, steps, strict=True):
        budget = 2 * (p.double() - e).norm() + step * torch.finfo(dtype).eps * e.norm()
        assert torch.isfinite(f).all()
        assert (f.double() - e).norm() <= budget


@pytest.mark.parametrize("sigma", [0.1, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_bandwidths_stay_finite(sigma, dtype):
    z, _, v, _ = features(65, 64, dtype=dtype)
    bandwidth = torch.full((2,), sigma, requires_grad=True)
    for options in ({}, {"window": 7}, {"equal_key_norms": True}):
        y = gaussian_attention(z, z, v, bandwidth, **options)
        gradients = torch.autograd.grad(y.float().square().sum(), [z, v, bandwidth])
        assert all(torch.isfinite(t).all() for t in (y, *gradients))
    assert torch.equal(y[:, 0], v[:, 0])  # the first position sees only itself


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 64])
def test_memory_grows_linearly_with_the_length(window, dtype):
    def peak(T, **options):
        leaves = features(T, 16, B=1, H=1, dtype=dtype)
        return peak_bytes(lambda: attention(*leaves, window=window, **options).sum().backward())[0]

    assert peak(2048) < 2.3 * peak(1024)
    assert peak(512, backend="reference") > 3.5 * peak(256, backend="reference")  # the measure sees a square


@pytest.mark.parametrize(
    "name, value",
    [
        ("backend", "fast"),
        ("window", -1),
        ("k", torch.zeros(2, 4, 2, 9)),
        ("v", torch.zeros(2, 4, 2, 8, dtype=torch.float16)),
        ("bandwidth", torch.ones(3)),
    ],
)
def test_bad_inputs_are_named(name, value):
    good = {name: torch.zeros(2, 4, 2, 8) for name in "qkv"} | {"bandwidth": torch.ones(2)}
    with pytest.raises(ValueError, match=f"{name}.*: got "):
        gaussian_attention(**good | {name: value})
    with pytest.raises(ValueError, match="window: got 2, expected None or attention that is causal"):
        gaussian_attention(**good, window=2, causal=False)
