"""The Triton kernels of attention against float64: on the GPU where there is one, else in Triton's interpreter.

By norm, an error may be twice that of the literal version in the same low precision plus a few rounding steps: a kernel
that keeps no T×T matrix rounds y, each exponent and each row's logarithm once more. A step is relative to the
result, or in float32 to the terms that a gradient is a small difference of (`terms`): a kernel rounds each its own way.
"""

import pytest
import torch
from operators import value_and_gradients

pytest.importorskip("triton")

from nanogka import dispatch
from nanogka.attention import dot_product_attention
from nanogka.kernels import triton_attention, triton_backward, triton_forward

# In the interpreter an exponent that the mask hides afterwards may overflow, which numpy reports and a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TUNED = (triton_forward._tuned_forward, triton_backward._tuned_backward)
ROUNDINGS = 3


@pytest.fixture(autouse=True)
def one_choice(poisoned_outputs, monkeypatch):
    """The autotuner has one choice."""
    if DEVICE == "cuda":
        for tuned in TUNED:
            monkeypatch.setattr(tuned, "configs", tuned.configs[-1:])


def literal(q, k, v, bandwidth, *, causal=True, window=None):
    """The paper's equations 3 to 7."""
    return torch.einsum("bhij,bjhd->bihd", literal_weights(q, k, bandwidth, causal, window), v)


def literal_weights(q, k, bandwidth, causal, window):
    distance = torch.arange(q.shape[1], device=q.device)[:, None] - torch.arange(q.shape[1], device=q.device)
    seen = distance >= 0 if causal else distance == distance
    if window is not None:
        seen = seen & (distance.abs() <= window)
    difference = q.transpose(1, 2)[:, :, :, None] - k.transpose(1, 2)[:, :, None]
    exponent = -difference.square().sum(-1) / (2 * bandwidth.to(q.dtype).square()[:, None, None])
    return exponent.masked_fill(~seen, -torch.inf).softmax(-1)


def leaves(T, D, *, DV=None, B=1, H=1, same=True, equal_norms=True, strided=False, dtype=torch.float32, sigma=None):
    """(q, k, v, σ) that want gradients; q is k when `same`, rows of unit RMS when `equal_norms`."""
    generator = torch.Generator().manual_seed(1000 * T + D)
    q, k = (torch.randn(B, T, H, D, generator=generator) for _ in range(2))
    v = torch.randn(B, T, H, DV or D, generator=generator)
    if equal_norms:
        q, k = (torch.nn.functional.rms_norm(t, (D,)) for t in (q, k))
    bandwidth = D**0.25 * (0.5 + torch.rand(H, generator=generator)) if sigma is None else torch.full((H,), sigma)
    features = [t.to(DEVICE, dtype) for t in (q, k, v)]
    if strided:  # features far apart, heads before positions
        features = [t.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0) for t in features]
    q, k, v, bandwidth = (t.requires_grad_() for t in (*features, bandwidth.to(DEVICE)))
    return q, q if same else k, v, bandwidth


def terms(q, k, v, bandwidth, *, causal, window):
    """Norms of y and of each gradient, had the terms of their sums one sign; |dO| is at most 1."""
    q, k, v, bandwidth = (t.detach().double() for t in (q, k, v, bandwidth))
    same = torch.equal(q, k)
    weights = literal_weights(q, k, bandwidth, causal, window)
    ds = weights * v.abs().sum(-1).transpose(1, 2)[:, :, None]
    square = bandwidth.square()[:, None, None]
    q, k = q.abs().transpose(1, 2), k.abs().transpose(1, 2)
    to_q, to_k = (ds @ k + ds.sum(-1)[..., None] * q) / square, (ds.mT @ q + ds.sum(-2)[..., None] * k) / square
    to_sigma = (ds * (q.square().sum(-1)[..., None] + k.square().sum(-1)[:, :, None]) / square).sum(
        (0, 2, 3)
    ) / bandwidth
    features = [to_q + to_k] if same else [to_q, to_k]
    return [t.norm() for t in (weights @ v.abs().transpose(1, 2), *features, weights.sum(-2), to_sigma)]


def ours(inputs, *, causal=True, window=None, equal_key_norms=False):
    options = {"causal": causal, "window": window, "equal_key_norms": equal_key_norms}
    return value_and_gradients(triton_attention.triton_attention, inputs, **options)


def check(T, D, *, causal=True, window=None, trusted=False, **shape):
    """Ours within the budget; `trusted`: say that key norms are equal, and compare what the saying leaves alone."""
    inputs = leaves(T, D, **shape)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    if inputs[0] is inputs[1]:
        wide[1] = wide[0]
    exact, plain = (value_and_gradients(literal, t, causal=causal, window=window) for t in (wide, inputs))
    actual = ours(inputs, causal=causal, window=window, equal_key_norms=trusted)
    names = ("y", "q", "v", "σ") if inputs[0] is inputs[1] else ("y", "q", "k", "v", "σ")
    sizes = terms(*inputs, causal=causal, window=window)
    step, fine = torch.finfo(inputs[0].dtype).eps, torch.finfo(torch.float32).eps
    for name, a, p, e, size in zip(names, actual, plain, exact, sizes, strict=True):
        assert a.dtype == p.dtype
        assert torch.isfinite(a).all(), name
        if trusted and name in "qk":  # the radial component of its gradient differs by agreement: take it out
            a, p, e = (tangential(g, inputs[0] if name == "q" else inputs[1]) for g in (a, p, e))
        error = (a.double() - e).norm()
        budget = 2 * (p.double() - e).norm() + ROUNDINGS * (step * e.norm() + fine * size)
        assert error <= budget, f"{name}: {error:.2e}, allowed {budget:.2e}"


def tangential(gradient, features):
    features, gradient = features.detach().double(), gradient.double()
    return gradient - features * ((gradient * features).sum(-1, keepdim=True) / features.square().sum(-1, keepdim=True))


COVERING = [
    # T, D, window, causal, what else
    (1, 16, None, True, {}),
    (63, 128, 17, True, {"dtype": torch.bfloat16}),
    (64, 64, None, True, {"dtype": torch.bfloat16, "trusted": True}),
    (65, 16, None, False, {"same": False, "equal_norms": False, "dtype": torch.float16}),
    (65, 48, 64, True, {"same": False, "strided": True}),
    (113, 16, 64, False, {"dtype": torch.bfloat16, "equal_norms": False}),
    (97, 64, 0, True, {"dtype": torch.bfloat16, "same": False}),
    (65, 24, 33, True, {"DV": 40, "same": False, "equal_norms": False, "B": 2, "H": 2}),
    (64, 16, 17, False, {"sigma": 100.0, "dtype": torch.float16}),
]


@pytest.mark.parametrize("T,D,window,causal,options", COVERING)
def test_error_is_that_of_the_literal_version(T, D, window, causal, options):
    check(T, D, window=window, causal=causal, **options)


@pytest.mark.parametrize("window", [None, 20])
def test_dot_product_attention_by_the_kernel_is_softmax_attention(window, monkeypatch):
    """Its values and gradients in float64, with keys of any norms."""
    q, k, v, _ = leaves(65, 16, same=False, equal_norms=False)
    behind = torch.arange(65)[:, None] - torch.arange(65)
    hidden = ((behind < 0) | (behind > (window or 65))).to(DEVICE)

    def softmax(q, k, v):
        logits = 0.3 * torch.einsum("bihd,bjhd->bhij", q, k)
        return torch.einsum("bhij,bjhd->bihd", logits.masked_fill(hidden, -torch.inf).softmax(-1), v)

    exact = value_and_gradients(softmax, [t.detach().double().requires_grad_() for t in (q, k, v)])
    monkeypatch.setattr(dispatch, "attention_kernel", lambda *what: triton_attention.triton_attention)
    for a, e in zip(value_and_gradients(dot_product_attention, [q, k, v], scale=0.3, window=window), exact):
        assert (a - e).norm() <= 1e-5 * e.norm()


def test_far_features_and_large_offsets_do_not_overflow():
    z, _, v, bandwidth = leaves(64, 16, equal_norms=False, sigma=0.1)
    far = (1000 * z.detach()).requires_grad_()
    assert all(torch.isfinite(t).all() for t in ours((far, far, v, bandwidth)))


def test_tiles_outside_the_window_are_never_visited():
    """NaN behind a window reaches no sum, though a masked tile that was visited would multiply it."""
    q, k, v, bandwidth = leaves(192, 16, same=False, equal_norms=False)
    for poisoned in (k, v):
        poisoned.data[:, :64] = torch.nan
    dy = torch.ones_like(v)
    y, lse = triton_attention._attention(q, k, v, bandwidth, True, 17, True)
    assert torch.isfinite(y[:, 128:]).all()
    gradients = triton_attention._attention_backward(
        dy[:, 128:], *(t[:, 128:] for t in (q, k, v)), bandwidth, y[:, 128:], lse[:, 128:], True, 17, True
    )
    assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("same", [True, False])
def test_the_operators_keep_the_rules_of_custom_operators(same, monkeypatch):
    monkeypatch.undo()  # the checker compares tensors it made by torch.empty
    q, k, v, bandwidth = leaves(20, 16, same=False)
    k = None if same else k
    torch.library.opcheck(triton_attention._attention, (q, k, v, bandwidth, True, 5, True))
    y, lse = (t.detach() for t in triton_attention._attention(q, k, v, bandwidth, True, None, False))
    inputs = (t if t is None else t.detach() for t in (q, k, v, bandwidth))
    torch.library.opcheck(
        triton_attention._attention_backward, (torch.ones_like(y), *inputs, y, lse, True, None, False)
    )
