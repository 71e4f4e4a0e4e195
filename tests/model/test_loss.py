"""The chunked loss: same losses and gradients as the plain one, in one graph, without the whole logits."""

import pytest
import torch
import torch.nn.functional as F
from operators import peak_bytes, value_and_gradients

from nanogka import backends
from nanogka.model import loss as loss_module
from nanogka.model.loss import capped_cross_entropy, plain_cross_entropy


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several chunks and several scratch blocks a chunk, at the sizes of a test."""
    monkeypatch.setattr(loss_module, "SMALL_VOCABULARY", 0)
    monkeypatch.setattr(loss_module, "CHUNK_ELEMENTS", {"cpu": 97 * 20, "cuda": 97 * 20})
    monkeypatch.setitem(loss_module.SCRATCH_ELEMENTS, "cpu", 97 * 7)


def problem(dtype=torch.float64, N=53, C=24, V=97, scale=3.0, seed=0, every=9):
    """hidden, weight (leaves) and targets, one of `every` not scored; logits reach well into the cap."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, C, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = (scale * torch.randn(V, C, generator=generator, dtype=torch.float64)).to(
        torch.promote_types(dtype, torch.float32)
    )
    targets = torch.randint(0, V, (N,), generator=generator)
    targets[::every] = -1
    return hidden, weight.requires_grad_(), targets


def results(function, hidden, weight, targets, *, cap=15.0, gradient=1.0):
    """Mean loss and gradients, the gradient of the loss scaled."""
    scaled = lambda *t: gradient * function(*t, targets, cap=cap)  # noqa: E731
    return value_and_gradients(scaled, [hidden, weight])


# Of nine rows, one is not scored: only the others pass the head. Of twenty, all do.
# The last vocabulary is smaller than a block of rows.
@pytest.mark.parametrize(
    "cap, gradient, every, V", [(1.0, 1.0, 9, 97), (15.0, 1024.0, 20, 97), (1000.0, 1.0, 20, 97), (15.0, 1.0, 20, 11)]
)
def test_equals_the_plain_loss_in_float64(cap, gradient, every, V):
    inputs = problem(every=every, V=V)
    expected = results(plain_cross_entropy, *inputs, cap=cap, gradient=gradient)
    for a, e in zip(results(capped_cross_entropy, *inputs, cap=cap, gradient=gradient), expected, strict=True):
        assert (a - e).abs().max() <= 1e-10 * max(1, e.abs().max())
    with torch.no_grad():  # another way through the code
        rows = [f(*inputs, cap=cap, reduction="none") for f in (capped_cross_entropy, plain_cross_entropy)]
        torch.testing.assert_close(*rows, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient * capped_cross_entropy(*inputs, cap=cap), expected[0])


def test_only_rows_with_a_target_pass_the_head(monkeypatch):
    rows, by_chunks = [], loss_module._by_chunks
    monkeypatch.setattr(
        loss_module, "_by_chunks", lambda hidden, *rest: rows.append(len(hidden)) or by_chunks(hidden, *rest)
    )
    hidden, weight, targets = problem()
    targets[::2] = -1
    results(capped_cross_entropy, hidden, weight, targets)
    assert rows == [int((targets >= 0).sum())]
    targets[:] = -1  # nothing is scored: the mean of nothing, as in the plain version, and no gradient
    loss, hidden_gradient, _ = results(capped_cross_entropy, hidden, weight, targets)
    assert loss.isnan()
    assert not hidden_gradient.any()


def test_rows_can_be_weighted_and_differentiated():
    hidden, weight, targets = problem()
    row_weights = torch.linspace(-1, 2, len(targets), dtype=torch.float64)
    (capped_cross_entropy(hidden, weight, targets, cap=15.0, reduction="none") * row_weights).sum().backward()
    # The formula of the module: ∂loss / ∂l = (softmax(c) − [v = target]) (1 − tanh²(l / cap)).
    with torch.no_grad():
        scaled = torch.tanh(hidden @ weight.T / 15.0)
        slope = (15.0 * scaled).softmax(-1) - F.one_hot(targets.clamp_min(0), len(weight))
        slope *= (1 - scaled**2) * (row_weights * (targets != -1))[:, None]
    torch.testing.assert_close(hidden.grad, slope @ weight)
    torch.testing.assert_close(weight.grad, slope.T @ hidden)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_error_is_that_of_the_plain_loss(dtype):
    hidden, weight, targets = problem(dtype, N=200, C=64, V=300, scale=0.5)
    wide = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    exact = results(plain_cross_entropy, *wide, targets)
    plain = results(plain_cross_entropy, hidden, weight, targets)
    ours = results(capped_cross_entropy, hidden, weight, targets)
    assert ours[0].dtype == torch.float32
    for a, p, e in zip(ours, plain, exact, strict=True):
        assert torch.isfinite(a).all()
        assert a.dtype == p.dtype
        assert (a.double() - e).norm() <= 2 * (p.double() - e).norm() + torch.finfo(dtype).eps * e.norm()


def test_the_gradient_of_the_head_is_summed_in_32_bits_and_not_rounded_at_the_end():
    hidden, weight, targets = problem(torch.bfloat16, N=200, C=64, V=300, scale=0.5)
    gradient = results(capped_cross_entropy, hidden, weight, targets)[2]
    assert gradient.dtype == torch.float32
    assert (gradient != gradient.bfloat16()).double().mean() > 0.9


def test_the_mean_of_no_rows_is_nan():
    hidden, weight, targets = problem()
    assert capped_cross_entropy(hidden, weight, torch.full_like(targets, -1), cap=15.0).isnan()


def test_the_operators_keep_the_rules_of_custom_operators():
    hidden, weight, targets = problem(torch.float32)
    torch.library.opcheck(loss_module._rows, (hidden.detach(), weight.detach(), targets, 15.0))
    torch.library.opcheck(loss_module._mean, (hidden, weight, targets, 15.0))


def test_the_logits_never_exist_whole():
    rows, vocabulary = 512, 400
    inputs = problem(torch.float32, N=rows, C=8, V=vocabulary)
    losses = (plain_cross_entropy, capped_cross_entropy)
    plain, ours = (peak_bytes(lambda f=f: results(f, *inputs))[1] for f in losses)
    assert plain >= rows * vocabulary * 4
    assert ours <= rows * vocabulary * 4 / 16


def test_strided_targets_score_as_their_copy(monkeypatch):
    """By torch and, where Triton is installed, by its kernel, which reads targets one after the other."""
    pytest.importorskip("triton")
    hidden, weight, targets = problem(torch.float32)
    strided = torch.stack([targets, targets.flip(0)], dim=1)[:, 0]
    expected = capped_cross_entropy(hidden, weight, targets, cap=15.0, reduction="none")
    torch.testing.assert_close(capped_cross_entropy(hidden, weight, strided, cap=15.0, reduction="none"), expected)
    monkeypatch.setattr(backends, "GPU", "cpu")
    assert backends.loss_kernel(hidden.device, hidden.dtype) is not None
    torch.testing.assert_close(capped_cross_entropy(hidden, weight, strided, cap=15.0, reduction="none"), expected)
