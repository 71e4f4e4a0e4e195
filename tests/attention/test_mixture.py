"""Gaussian mixture attention: the literal version against numpy, the linear form against the literal one."""

import itertools

import numpy as np
import pytest
import torch

from nanogka.attention.mixture import (
    FLOOR,
    Components,
    mixture_attention,
    mixture_attention_cached,
    mixture_reference,
    responsibilities,
)


def inputs_of(T, K, *, D=5, d=3, H=2, B=2, same=False, dtype=torch.float64):
    """Leaves (q, k, v, μ, log λ, log π); q is k when `same`."""
    generator = torch.Generator().manual_seed(T + K)
    q, k, means = (torch.randn(*n, d, generator=generator, dtype=dtype) for n in ((B, T, H), (B, T, H), (H, K)))
    v = torch.randn(B, T, H, D, generator=generator, dtype=dtype)
    log_precisions = 0.3 * torch.randn(H, K, d, generator=generator, dtype=dtype)
    log_weights = torch.randn(H, K, generator=generator, dtype=dtype)
    leaves = [t.requires_grad_() for t in (q, k, v, means, log_precisions, log_weights)]
    return [leaves[0], leaves[0], *leaves[2:]] if same else leaves


def value_and_gradients(function, leaves, **options):
    q, k, v, *components = leaves
    y = function(q, k, v, Components(*components), **options)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y).cos()
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), leaves[1:] if q is k else leaves)]


def detached(leaves):
    q, k, v, *components = (t.detach() for t in leaves)
    return q, k, v, Components(*components)


def numpy_attention(q, k, v, components, causal):
    """Posteriors from densities, then a weighted mean for each position, one by one."""
    q, k, v, means, log_precisions, log_weights = (t.numpy() for t in (q, k, v, *components))
    variances = np.exp(-log_precisions)

    def posterior(s):  # (d,) of one head
        density = np.exp(-((s - means[h]) ** 2) / (2 * variances[h])) / np.sqrt(2 * np.pi * variances[h])
        joint = np.exp(log_weights[h]) * density.prod(-1)
        return joint / joint.sum()

    y = np.zeros_like(v)
    for b, h in itertools.product(range(v.shape[0]), range(v.shape[2])):
        read, written = ([posterior(s) for s in x[b, :, h]] for x in (q, k))
        for i in range(v.shape[1]):
            seen = range(i + 1) if causal else range(v.shape[1])
            affinity = np.array([read[i] @ (written[j] + FLOOR) for j in seen])
            y[b, i, h] = affinity @ v[b, list(seen), h] / affinity.sum()
    return y


@pytest.mark.parametrize("causal", [True, False])
def test_the_literal_version_agrees_with_numpy(causal):
    inputs = detached(inputs_of(11, 4))
    expected = numpy_attention(*inputs, causal)
    np.testing.assert_allclose(mixture_reference(*inputs, causal=causal).numpy(), expected, rtol=0, atol=1e-12)
    assert torch.allclose(responsibilities(inputs[0], inputs[3]).sum(-1), torch.ones(2, 11, 2, dtype=torch.float64))


@pytest.mark.parametrize("T, chunks", [(1, [1]), (63, [1, 16, 64]), (113, [7, None]), (1000, [64, 256])])
@pytest.mark.parametrize("K", [1, 2, 64])
def test_the_linear_form_is_the_literal_one_in_float64(T, K, chunks):
    size = {"B": 1, "H": 1} if T == 1000 else {}
    for same in (True, False) if T == 63 else (False,):
        leaves = inputs_of(T, K, same=same, **size)
        for causal in (True, False):
            expected = value_and_gradients(mixture_reference, leaves, causal=causal)
            for chunk in chunks if causal else chunks[:1]:
                actual = value_and_gradients(mixture_attention, leaves, causal=causal, chunk=chunk)
                for a, e in zip(actual, expected, strict=True):
                    assert (a - e).abs().max() <= 1e-10, (T, K, same, causal, chunk)


def test_one_component_is_the_running_mean():
    q, k, v, components = detached(inputs_of(50, 1))
    mean = v.cumsum(1) / torch.arange(1, 51)[:, None, None]
    torch.testing.assert_close(mixture_attention(q, k, v, components), mean, rtol=0, atol=1e-12)


def test_positions_one_by_one_give_what_they_give_together():
    q, k, v, components = detached(inputs_of(40, 8))
    memory, parts = None, []
    for i in range(40):
        y, memory = mixture_attention_cached(*(t[:, i : i + 1] for t in (q, k, v)), components, memory)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), mixture_reference(q, k, v, components), rtol=0, atol=1e-12)
    collected = responsibilities(k, components).sum(1)
    torch.testing.assert_close(memory[..., -1], collected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_is_near_the_exact_values(dtype):
    """Products are float32 whatever the inputs: the error is a rounding of the output."""
    leaves = [t.detach().to(dtype).requires_grad_() for t in inputs_of(300, 16, D=32, d=8)]
    exact = value_and_gradients(mixture_reference, [t.detach().double().requires_grad_() for t in leaves])
    for a, e in zip(value_and_gradients(mixture_attention, leaves), exact, strict=True):
        assert (a.double() - e).norm() <= 2 * max(torch.finfo(dtype).eps, 1e-5) * e.norm()


@pytest.mark.parametrize("sharpness", [-9.0, 9.0])
def test_extreme_precisions_stay_finite(sharpness):
    leaves = inputs_of(65, 8, dtype=torch.float32)
    with torch.no_grad():
        leaves[4].fill_(sharpness)
    found = value_and_gradients(mixture_attention, leaves)
    assert all(torch.isfinite(t).all() for t in found)
    torch.testing.assert_close(found[0][:, 0], leaves[2][:, 0])  # the first position sees only itself


def peak_bytes(T):
    leaves = inputs_of(T, 16, B=1, H=1, D=16, d=8, dtype=torch.float32)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        value_and_gradients(mixture_attention, leaves)
    events = profiler.profiler.kineto_results.events()
    return np.cumsum([event.nbytes() for event in events if event.name() == "[memory]"]).max()


def test_memory_grows_linearly_with_the_length():
    assert peak_bytes(4096) < 2.2 * peak_bytes(2048)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"k": torch.zeros(2, 4, 2, 9)}, "q, k, v: got shapes"),
        ({"v": torch.zeros(2, 4, 2, 5, dtype=torch.int64)}, "q, k, v: got dtypes"),
        ({"components": Components(torch.zeros(2, 0, 3), torch.zeros(2, 0, 3), torch.zeros(2, 0))}, "K of at least 1"),
        ({"components": Components(*(torch.zeros(2, 6, 3),) * 3)}, "components: got shapes"),
        ({"chunk": 0}, "chunk: got 0, takes None or an integer of at least 1"),
    ],
)
def test_bad_inputs_are_named(change, message):
    components = Components(torch.zeros(2, 6, 3), torch.zeros(2, 6, 3), torch.zeros(2, 6))
    good = {"q": torch.zeros(2, 4, 2, 3), "k": torch.zeros(2, 4, 2, 3), "v": torch.zeros(2, 4, 2, 5)}
    with pytest.raises(ValueError, match=message):
        mixture_attention(**good | {"components": components} | change)
