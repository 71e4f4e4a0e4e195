"""The Triton kernel of the loss: on the GPU where there is one, else in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from nanogka.kernels import triton_loss

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def rows(dtype, N=9, V=97, scale=20.0):
    generator = torch.Generator().manual_seed(V)
    logits = (scale * torch.randn(N, V, generator=generator)).to(DEVICE, dtype)
    targets = torch.randint(0, V, (N,), generator=generator)
    targets[2] = -1
    return logits, targets.to(DEVICE), torch.rand(N, generator=generator).to(DEVICE)


def literal(logits, targets, cap, weights):
    """Losses, and the gradient of Σ weight · loss with respect to the logits, in float64."""
    logits = logits.double().requires_grad_()
    capped = cap * torch.tanh(logits / cap)
    losses = torch.nn.functional.cross_entropy(capped, targets, ignore_index=-1, reduction="none")
    (losses * weights).sum().backward()
    return losses.detach(), logits.grad


@pytest.mark.parametrize(
    "V,block,dtype,cap",
    [
        (97, 4096, torch.bfloat16, 15.0),
        (64, 16, torch.float32, 100.0),
        (1, 16, torch.float32, 15.0),
        (300, 128, torch.bfloat16, 100.0),
    ],
)
def test_losses_and_gradients_are_those_of_float64(V, block, dtype, cap, monkeypatch):
    monkeypatch.setattr(triton_loss, "LARGEST_BLOCK", block)
    logits, targets, weights = rows(dtype, V=V)
    losses, gradient = literal(logits, targets, cap, weights)
    for row_weight in (None, weights):
        actual, actual_losses = logits.clone(), torch.full((9,), torch.nan, device=DEVICE)
        triton_loss.score(actual, targets, cap, actual_losses, row_weight)
        torch.testing.assert_close(actual_losses.double(), losses, rtol=2e-5, atol=2e-5)
        expected = logits.double() if row_weight is None else gradient
        torch.testing.assert_close(actual.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=2e-6)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # numpy's word, in the interpreter
def test_extreme_logits_stay_finite():
    logits, targets, weights = rows(torch.float32, scale=1e4)
    losses = torch.empty(9, device=DEVICE)
    triton_loss.score(logits, targets, 15.0, losses, weights)
    assert torch.isfinite(losses).all()
    assert torch.isfinite(logits).all()
