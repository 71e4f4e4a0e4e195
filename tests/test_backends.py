"""The choice of implementation: tried once, told, torch where a kernel is wrong or missing."""

import sys

import pytest
import torch
from operators import literal_varlen
from torch.nn import attention as torch_attention

from nanogka import backends
from nanogka.attention import gaussian_attention

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing has been tried yet."""
    monkeypatch.setattr(backends, "_disabled", {})
    monkeypatch.setattr(backends, "_attention", {})


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


class Torch:
    """Stands in for torch's choice of FlashAttention: some versions are installed, and some of those are broken."""

    def __init__(self, monkeypatch, installed, broken):
        self.active, self.installed, self.tried = None, installed, []
        monkeypatch.setattr(torch_attention, "activate_flash_attention_impl", self.activate)
        monkeypatch.setattr(torch_attention, "restore_flash_attention_impl", lambda: setattr(self, "active", None))
        monkeypatch.setattr(torch_attention, "current_flash_attention_impl", lambda: self.active)
        monkeypatch.setattr(backends, "GPU", "cpu")
        monkeypatch.setattr(backends, "_probe", lambda *what: None)

        def attend(q, k, v, *rest, scale, window_size):
            name = self.active or "FA2"
            self.tried.append(name)
            fault = broken.get(name)
            if fault == "raises":
                raise RuntimeError(f"{name} requires compute capability 9.0 or 10.0")
            y = literal_varlen(
                q, k, v, *rest, scale=scale, window_size=(-1, 0) if fault == "no window" else window_size
            )
            return 1.1 * y if fault == "values" else y.detach() + 0.9 * (y - y.detach()) if fault == "gradients" else y

        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", attend)

    def activate(self, name):
        if name not in self.installed:
            raise ModuleNotFoundError(name)
        self.active = name


@pytest.mark.parametrize("installed, broken, used, told", [
    ([], {}, "FA2", []),
    (["FA3"], {}, "FA3", []),
    (["FA3", "FA4"], {}, "FA4", []),
    (["FA3", "FA4"], {"FA4": "raises"}, "FA3", ["FA4 does not work here: RuntimeError: FA4 requires compute"]),
    (["FA4"], {"FA4": "values"}, "FA2", ["values disagree with float64"]),
    (["FA4"], {"FA4": "gradients"}, "FA2", ["gradients of q disagree"]),
    (["FA4"], {"FA4": "no window"}, "FA2", ["values disagree with float64 in a window"]),
    ([], {"FA2": "raises"}, "torch", ["torch (FA2 does not work here: "]),
])  # fmt: skip
def test_the_newest_flash_attention_that_is_right_is_used_and_told(monkeypatch, installed, broken, used, told):
    world = Torch(monkeypatch, installed, broken)
    with torch.no_grad():
        chosen = [backends.select_kernels(CPU, torch.bfloat16)["attention"] for _ in range(2)]
    assert chosen[0] == chosen[1]
    assert chosen[0].startswith(used)
    assert all(words in chosen[0] for words in told)
    assert (world.active or "FA2") == (used if used != "torch" else "FA2")
    assert max(world.tried.count(name) for name in world.tried) <= 2, "each is tried once, dense and windowed"
    q = torch.zeros(1, 4, 1, 16, dtype=torch.bfloat16)
    assert backends.use_flash_attention(q, q) == (used != "torch")
    assert backends._choose_attention(torch.device("cuda"), torch.float32).startswith("torch (FlashAttention")


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
