"""The choice of implementation: tried once, told, torch where a kernel is wrong or missing."""

import sys

import pytest
import torch
from operators import literal_varlen
from torch.nn import attention as torch_attention

from nanogka import backends
from nanogka.attention import gaussian_attention

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing has been tried yet."""
    monkeypatch.setattr(backends, "_disabled", {})


@pytest.mark.parametrize("outcome, told", [("losses disagree", "torch (losses disagree)"), (None, "Triton")])
def test_the_kernel_is_tried_once_and_the_outcome_is_told(monkeypatch, outcome, told):
    calls = []
    monkeypatch.setattr(backends, "_probe", lambda *what: calls.append(what) or outcome)
    assert backends.select_kernels(CPU, torch.float32) == {}
    monkeypatch.setattr(backends, "GPU", "cpu")
    assert [backends.select_kernels(CPU, torch.float32)["loss"] for _ in range(3)] == [told] * 3
    assert (backends.loss_kernel(CPU, torch.float32) is None) == (outcome is not None)
    assert calls == [(CPU, torch.float32)]


def test_without_the_kernels_folder_the_loss_is_torchs(monkeypatch):
    monkeypatch.setattr(backends, "GPU", "cpu")
    for name in [name for name in sys.modules if name.startswith("nanogka.kernels")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "nanogka.kernels", None)
    assert backends.loss_kernel(CPU, torch.float32) is None
    assert "ModuleNotFoundError" in backends.select_kernels(CPU, torch.float32)["loss"]


@pytest.mark.parametrize("installed, used", [([], "FA2"), (["FA3"], "FA3"), (["FA3", "FA4"], "FA4")])
def test_the_newest_flash_attention_that_is_installed_is_used(monkeypatch, installed, used):
    active = []

    def activate(name):
        if name not in installed:
            raise ModuleNotFoundError(name)
        active.append(name)

    monkeypatch.setattr(torch_attention, "activate_flash_attention_impl", activate)
    monkeypatch.setattr(torch_attention, "current_flash_attention_impl", lambda: active[-1] if active else None)
    monkeypatch.setattr(backends, "_probe", lambda *what: None)
    chosen = [backends.select_kernels(CUDA, torch.bfloat16) for _ in range(2)]
    assert chosen == [{"attention": used, "loss": "Triton"}] * 2
    assert len(active) == min(1, len(installed))
    assert backends.select_kernels(CUDA, torch.float32)["attention"].startswith("torch (FlashAttention")


@pytest.mark.parametrize("window", [None, 0, 5])
@pytest.mark.parametrize("same", [True, False])
def test_attention_on_a_gpu_is_the_operator_given_what_varlen_attn_promises(monkeypatch, window, same):
    """A CPU passes for the GPU, and the literal form of its promise for the kernel."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 21, 2, 16, generator=generator) for _ in range(3))
    q, k = (torch.nn.functional.rms_norm(t, (16,)) for t in (q, k))
    q, k, v = (t.bfloat16() for t in (q, q if same else k, v))
    k, sigma = q if same else k, torch.tensor([1.5, 3.0])
    expected = gaussian_attention(*(t.double() for t in (q, k, v)), sigma, window=window, backend="reference")
    monkeypatch.setattr(backends, "GPU", "cpu")
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", literal_varlen)
    y = gaussian_attention(q, k, v, sigma, window=window, equal_key_norms=True)
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=0.03)
    wide = torch.zeros(1, 4, 1, 136, dtype=torch.bfloat16)
    assert not backends.use_flash_attention(wide, wide)
    assert not backends.use_flash_attention(q.float(), v.float())
