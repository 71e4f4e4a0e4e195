"""The loss's Triton kernel: on the GPU where there is one, else in Triton's interpreter."""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

pytest.importorskip("triton")

from nanogka.model import loss, loss_triton  # noqa: E402


def rows(dtype, N=9, V=97, scale=20.0):
    generator = torch.Generator().manual_seed(V)
    logits = (scale * torch.randn(N, V, generator=generator)).to(DEVICE, dtype)
    targets = torch.randint(0, V, (N,), generator=generator)
    targets[2] = -1
    weights = torch.rand(N, generator=generator)
    weights[2] = 0
    return logits, targets.to(DEVICE), weights.to(DEVICE)


@pytest.mark.parametrize("V,block", [(97, 4096), (97, 32), (64, 16), (1, 16), (300, 128)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("cap", [15.0, 100.0])
def test_kernel_equals_the_plain_version(V, block, dtype, cap, monkeypatch):
    monkeypatch.setattr(loss_triton, "LARGEST_BLOCK", block)
    logits, targets, weights = rows(dtype, V=V)
    for row_weight in (None, weights):
        expected, actual = logits.clone(), logits.clone()
        expected_loss, actual_loss = (torch.full((9,), torch.nan, device=DEVICE) for _ in range(2))
        loss._score(expected, targets, cap, expected_loss, row_weight)
        loss_triton.score(actual, targets, cap, actual_loss, row_weight)
        torch.testing.assert_close(actual_loss, expected_loss, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(actual, expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # numpy's word, in the interpreter
def test_extreme_logits_stay_finite():
    logits, targets, weights = rows(torch.float32, scale=1e4)
    losses = torch.empty(9, device=DEVICE)
    loss_triton.score(logits, targets, 15.0, losses, weights)
    assert torch.isfinite(losses).all()
    assert torch.isfinite(logits).all()


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_on_the_gpu_equals_the_plain_one(dtype, reduction, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", {"cuda": 2**20})
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1000, 256, generator=generator).to("cuda", dtype).requires_grad_()
    weight = (0.3 * torch.randn(5000, 256, generator=generator)).cuda().requires_grad_()
    targets = torch.randint(-1, 5000, (1000,), generator=generator).cuda()
    results = []
    for function, leaves in (
        (loss.capped_cross_entropy, (hidden, weight)),
        (loss.plain_cross_entropy, (hidden, weight)),
        (loss.plain_cross_entropy, tuple(t.detach().double().requires_grad_() for t in (hidden, weight))),
    ):
        value = function(*leaves, targets, cap=15.0, reduction=reduction)
        results.append([value.detach(), *torch.autograd.grad(value.sum(), leaves)])
    for actual, plain, exact in zip(*results, strict=True):
        budget = 2 * (plain.double() - exact).norm() + torch.finfo(dtype).eps * exact.norm()
        assert (actual.double() - exact).norm() <= budget
