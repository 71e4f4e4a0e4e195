"""The choice of who computes: probed once, logged, torch where a kernel is wrong, missing or not wanted."""

import sys

import pytest
import torch

from nanogka import dispatch
from nanogka.attention import gaussian_attention
from nanogka.evaluate.bpb import measure_bits_per_byte
from nanogka.model import GPT, GPTConfig

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing has been probed yet."""
    monkeypatch.setattr(dispatch, "_reasons", {})


@pytest.mark.parametrize("outcome,said", [("y is off by 1e+00", "torch (y is off by 1e+00)"), (None, "Triton")])
def test_a_kernel_is_probed_once_and_the_outcome_is_told(monkeypatch, outcome, said):
    calls = []
    monkeypatch.setattr(dispatch, "_probe", lambda *what: calls.append(what) or outcome)
    assert dispatch.prepare(CPU, torch.float32, training=True) == {}
    monkeypatch.setattr(dispatch, "GPU", "cpu")
    assert [dispatch.prepare(CPU, torch.float32) for _ in range(3)] == [{"attention": said, "loss": said}] * 3
    assert (dispatch.loss_kernel(CPU, torch.float32) is None) == (outcome is not None)
    assert calls == [("attention", CPU, torch.float32), ("loss", CPU, torch.float32)]


def test_compiled_training_uses_the_gpu_kernels_whoever_asks_first(monkeypatch):
    """A CPU passes for the GPU, with Triton's interpreter: one graph, with our operators, after an evaluation too."""
    triton_loss = pytest.importorskip("nanogka.kernels.triton_loss")
    monkeypatch.setattr(dispatch, "GPU", "cpu")
    score, scored, graphs = triton_loss.score, [], []
    monkeypatch.setattr(triton_loss, "score", lambda *what: scored.append(what[0].shape[0]) or score(*what))

    def count_operators(module, inputs):
        graphs.append([str(n.target) for m in module.modules() if hasattr(m, "graph") for n in m.graph.nodes])
        return module.forward

    shape = {"sequence_len": 32, "vocab_size": 700, "n_layer": 3, "n_head": 1, "n_embd": 32, "window_pattern": "SL"}
    model, ids = GPT(GPTConfig(mixer_pattern="GSD", **shape)), torch.randint(700, (2, 32))
    with torch.inference_mode():
        assert dispatch.prepare(CPU, torch.float32) == {"attention": "Triton", "loss": "Triton"}
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=count_operators, dynamic=False)
    compiled(ids, ids).backward()
    measure_bits_per_byte(model, [(ids, ids)], torch.ones(700))
    compiled(ids, ids).backward()
    assert len(graphs) == 1
    assert sum("nanogka.gaussian_attention" in name for name in graphs[0]) == 3
    assert not any("scaled_dot_product" in name for name in graphs[0])
    assert len(scored) >= 3


def test_a_probe_that_fails_in_any_way_leaves_the_work_to_torch(monkeypatch):
    def broken(*what):
        raise OSError("no compiler")

    monkeypatch.setattr(dispatch, "_probe", broken)
    z = torch.zeros(1, 3, 1, 8)
    with pytest.raises(ValueError, match="backend: 'triton' cannot run on cpu in torch.float32: OSError: no compiler"):
        gaussian_attention(z, z, z, torch.ones(1), backend="triton")


def test_without_the_kernels_folder_the_loss_is_torchs(monkeypatch):
    monkeypatch.setattr(dispatch, "GPU", "cpu")
    for name in [name for name in sys.modules if name.startswith("nanogka.kernels")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "nanogka.kernels", None)
    assert dispatch.loss_kernel(CPU, torch.float32) is None
    assert dispatch._reasons["loss", "cpu", torch.float32].startswith("ModuleNotFoundError")
