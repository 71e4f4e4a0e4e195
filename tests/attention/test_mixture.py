"""Gaussian mixture attention: the literal version against numpy, the linear form against the literal one."""

import itertools

import numpy as np
import pytest
import torch
from operators import literal_mixture, peak_bytes, value_and_gradients

from nanogka.attention.mixture import FLOOR, Components, chunk_size, mixture_attention


def inputs_of(T, K, *, D=5, d=3, H=2, B=2, same=False, dtype=torch.float64):
    """Leaves (q, k, v, μ, log λ, log π); q is k when `same`."""
    generator = torch.Generator().manual_seed(T + K)
    q, k, means = (torch.randn(*n, d, generator=generator, dtype=dtype) for n in ((B, T, H), (B, T, H), (H, K)))
    v = torch.randn(B, T, H, D, generator=generator, dtype=dtype)
    log_precisions = 0.3 * torch.randn(H, K, d, generator=generator, dtype=dtype)
    log_weights = torch.randn(H, K, generator=generator, dtype=dtype)
    leaves = [t.requires_grad_() for t in (q, k, v, means, log_precisions, log_weights)]
    return [leaves[0], leaves[0], *leaves[2:]] if same else leaves


def literal(q, k, v, *components):
    return literal_mixture(q, k, v, Components(*components))


def linear(q, k, v, *components, chunk=None):
    return mixture_attention(q, k, v, Components(*components), chunk=chunk)[0]


def test_the_literal_version_agrees_with_numpy():
    """Posteriors from densities, then a weighted mean for each position, one by one."""
    leaves = [t.detach() for t in inputs_of(11, 4)]
    q, k, v, means, log_precisions, log_weights = (t.numpy() for t in leaves)
    variances = np.exp(-log_precisions)

    def posterior(s, h):  # (d,) of one head
        density = np.exp(-((s - means[h]) ** 2) / (2 * variances[h])) / np.sqrt(2 * np.pi * variances[h])
        joint = np.exp(log_weights[h]) * density.prod(-1)
        return joint / joint.sum()

    expected = np.zeros_like(v)
    for b, h, i in itertools.product(range(2), range(2), range(11)):
        affinity = np.array([posterior(q[b, i, h], h) @ (posterior(k[b, j, h], h) + FLOOR) for j in range(i + 1)])
        expected[b, i, h] = affinity @ v[b, : i + 1, h] / affinity.sum()
    np.testing.assert_allclose(literal(*leaves).numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("T, chunks", [(1, [1]), (63, [1, 16, 64]), (113, [7, None]), (300, [64, 256])])
@pytest.mark.parametrize("K", [1, 64])
def test_the_linear_form_is_the_literal_one_in_float64(T, K, chunks):
    for same in (True, False) if T == 63 else (False,):
        leaves = inputs_of(T, K, same=same)
        expected = value_and_gradients(literal, leaves)
        for chunk in chunks:
            for a, e in zip(value_and_gradients(linear, leaves, chunk=chunk), expected, strict=True):
                assert (a - e).abs().max() <= 1e-10, (T, K, same, chunk)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_is_near_the_exact_values(dtype):
    """Products are float32 whatever the inputs: the error is a rounding of the output."""
    leaves = [t.detach().to(dtype).requires_grad_() for t in inputs_of(300, 16, D=32, d=8)]
    exact = value_and_gradients(literal, [t.detach().double().requires_grad_() for t in leaves])
    for a, e in zip(value_and_gradients(linear, leaves), exact, strict=True):
        assert (a.double() - e).norm() <= 2 * max(torch.finfo(dtype).eps, 1e-5) * e.norm()


@pytest.mark.parametrize("sharpness", [-9.0, 9.0])
def test_extreme_precisions_stay_finite(sharpness):
    leaves = inputs_of(65, 8, dtype=torch.float32)
    leaves[4].data.fill_(sharpness)
    found = value_and_gradients(linear, leaves)
    assert all(torch.isfinite(t).all() for t in found)
    torch.testing.assert_close(found[0][:, 0], leaves[2][:, 0])  # the first position sees only itself


def test_memory_grows_linearly_with_the_length():
    inputs = (inputs_of(T, 16, B=1, H=1, D=16, d=8, dtype=torch.float32) for T in (2048, 4096))
    short, long = (peak_bytes(lambda leaves=leaves: value_and_gradients(linear, leaves))[0] for leaves in inputs)
    assert long < 2.2 * short


@pytest.mark.parametrize("components, positions", [(1, 64), (64, 64), (100, 100), (256, 256), (4096, 256)])
def test_a_chunk_has_a_position_per_component_within_bounds(components, positions):
    assert chunk_size(components) == positions
