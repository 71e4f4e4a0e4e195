"""The Triton kernels of attention against float64: on the GPU where there is one, else in Triton's interpreter.

By norm, an error may be twice that of the literal version in the same low precision plus a few rounding steps: a kernel
that keeps no T×T matrix rounds y, each exponent and each row's logarithm once more.
"""

import pytest
import torch
from operators import value_and_gradients

pytest.importorskip("triton")

from nanogka.attention import gaussian_attention
from nanogka.kernels import triton_attention, triton_backward, triton_forward

# In the interpreter an exponent that the mask hides afterwards may overflow, which numpy reports and a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TUNED = (triton_forward._tuned_forward, triton_backward._tuned_backward)


@pytest.fixture(autouse=True)
def poisoned_outputs_and_one_choice(monkeypatch):
    """New tensors hold NaN, which stays wherever a kernel forgets to write; the autotuner has one choice."""
    empty = torch.empty

    def poisoned(*args, **kwargs):
        tensor = empty(*args, **kwargs)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned)
    if DEVICE == "cuda":
        for tuned in TUNED:
            monkeypatch.setattr(tuned, "configs", tuned.configs[-1:])


def literal(q, k, v, bandwidth, *, window=None):
    """The paper's equations 3 to 7."""
    return torch.einsum("bhij,bjhd->bihd", literal_weights(q, k, bandwidth, window), v)


def literal_weights(q, k, bandwidth, window):
    distance = torch.arange(q.shape[1], device=q.device)[:, None] - torch.arange(q.shape[1], device=q.device)
    seen = (distance >= 0) & (distance <= (q.shape[1] if window is None else window))
    difference = q.transpose(1, 2)[:, :, :, None] - k.transpose(1, 2)[:, :, None]
    exponent = -difference.square().sum(-1) / (2 * bandwidth.to(q.dtype).square()[:, None, None])
    return exponent.masked_fill(~seen, -torch.inf).softmax(-1)


def leaves(T, D, *, DV=None, B=1, H=1, same=True, strided=False, dtype=torch.float32, sigma=None):
    """(q, k, v, σ) that need gradients; q is k when `same`; rows have unit RMS."""
    generator = torch.Generator().manual_seed(1000 * T + D)
    q, k = (torch.nn.functional.rms_norm(torch.randn(B, T, H, D, generator=generator), (D,)) for _ in range(2))
    v = torch.randn(B, T, H, DV or D, generator=generator)
    bandwidth = D**0.25 * (0.5 + torch.rand(H, generator=generator)) if sigma is None else torch.full((H,), sigma)
    features = [t.to(DEVICE, dtype) for t in (q, k, v)]
    if strided:  # features far apart, heads before positions
        features = [t.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0) for t in features]
    q, k, v, bandwidth = (t.requires_grad_() for t in (*features, bandwidth.to(DEVICE)))
    return q, q if same else k, v, bandwidth


def ours(inputs, window=None):
    return value_and_gradients(gaussian_attention, inputs, window=window, backend="triton", equal_key_norms=True)


def tangential(gradient, features):
    features, gradient = features.detach().double(), gradient.double()
    return gradient - features * ((gradient * features).sum(-1, keepdim=True) / features.square().sum(-1, keepdim=True))


COVERING = [
    # T, D, window, what else
    (1, 16, None, {}),
    (63, 128, 17, {"dtype": torch.bfloat16, "sigma": 8.0}),  # a small σ would leave no gradient
    (65, 16, None, {"same": False, "dtype": torch.float16}),
    (65, 48, 64, {"same": False, "strided": True}),
    (97, 64, 0, {"dtype": torch.bfloat16, "same": False}),
    (65, 24, 33, {"DV": 40, "same": False, "B": 2, "H": 2}),
    (64, 16, 17, {"sigma": 100.0, "dtype": torch.float16}),
]


@pytest.mark.parametrize("T, D, window, shape", COVERING)
def test_error_is_that_of_the_literal_version(T, D, window, shape):
    inputs = leaves(T, D, **shape)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    if inputs[0] is inputs[1]:
        wide[1] = wide[0]
    exact, plain = (value_and_gradients(literal, t, window=window) for t in (wide, inputs))
    names = ("y", "q", "v", "σ") if inputs[0] is inputs[1] else ("y", "q", "k", "v", "σ")
    for name, a, p, e in zip(names, ours(inputs, window), plain, exact, strict=True):
        assert a.dtype == p.dtype
        assert torch.isfinite(a).all(), name
        if name in "qk":  # the component of a gradient along its feature is left out, see `equal_key_norms`
            a, p, e = (tangential(g, inputs[0] if name == "q" else inputs[1]) for g in (a, p, e))
        error = (a.double() - e).norm()
        budget = 2 * (p.double() - e).norm() + 10 * torch.finfo(inputs[0].dtype).eps * e.norm() + 1e-5
        assert error <= budget, f"{name}: {error:.2e}, allowed {budget:.2e}"


def test_tiles_outside_the_window_are_never_visited():
    """NaN behind a window reaches no sum, though a masked tile that was visited would multiply it."""
    q, k, v, bandwidth = leaves(192, 16, same=False)
    for poisoned in (k, v):
        poisoned.data[:, :64] = torch.nan
    dy = torch.ones_like(v)
    y, lse = triton_attention._attention(q, k, v, bandwidth, 17)
    assert torch.isfinite(y[:, 128:]).all()
    gradients = triton_attention._attention_backward(
        dy[:, 128:], *(t[:, 128:] for t in (q, k, v)), bandwidth, y[:, 128:], lse[:, 128:], 17
    )
    assert all(torch.isfinite(g).all() for g in gradients)


def test_what_the_kernels_cannot_do_is_refused():
    z, _, v, bandwidth = leaves(4, 136)
    with pytest.raises(ValueError, match="backend: 'triton' got 136 features per head, expected at most 128"):
        ours([z, z, v, bandwidth])
    for options in ({"causal": False, "equal_key_norms": True}, {}):
        with pytest.raises(ValueError, match="backend: 'triton'"):
            gaussian_attention(z, z, v, bandwidth, backend="triton", **options)
