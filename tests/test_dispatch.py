"""The choice of who computes: probed once, logged, torch where a kernel is wrong, missing or not wanted."""

import subprocess
import sys

import pytest
import torch

from nanogka import dispatch
from nanogka.attention import gaussian_attention
from nanogka.evaluate.measures import measure_bits_per_byte
from nanogka.model import GPT, GPTConfig

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing has been probed yet."""
    monkeypatch.setattr(dispatch, "_reasons", {})


@pytest.mark.parametrize("outcome,said", [("y is off by 1e+00", "torch (y is off by 1e+00)"), (None, "C++")])
def test_a_kernel_is_probed_once_and_the_outcome_is_told(monkeypatch, outcome, said):
    calls = []
    monkeypatch.setattr(dispatch, "_probe", lambda *what: calls.append(what) or outcome)
    x = torch.zeros(1, 1, 4)
    with torch.no_grad():
        assert [dispatch.prepare(CPU, torch.float32) for _ in range(3)] == [{"decode": said}] * 3
        assert (dispatch.decode_kernels(x) is None) == (outcome is not None)
        assert dispatch.decode_kernels(x.double()) is None
    assert dispatch.decode_kernels(x) is None  # gradients are on
    monkeypatch.setattr(dispatch, "allowed", False)
    with torch.no_grad():
        assert dispatch.decode_kernels(x) is None
    assert calls == [("decode", CPU, torch.float32)]
    assert dispatch.prepare(CPU, torch.float32, training=True) == {}


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
    x, weight = torch.randn(2, 8).bfloat16(), torch.randn(5, 8).bfloat16()
    with torch.no_grad():
        torch.testing.assert_close(dispatch.linear(x, weight), x @ weight.T)
    assert dispatch._reasons == {("decode", "cpu", torch.bfloat16): "OSError: no compiler"}
    z = torch.zeros(1, 3, 1, 8)
    with pytest.raises(ValueError, match="backend: 'triton' cannot run on cpu in torch.float32: OSError: no compiler"):
        gaussian_attention(z, z, z, torch.ones(1), backend="triton")


WITHOUT = """
import sys
import torch
from nanogka import dispatch
def numbers(pattern):
    torch.manual_seed(0)
    shape = {"sequence_len": 40, "vocab_size": 700, "n_layer": 2, "n_head": 2, "n_embd": 64, "window_pattern": "SL"}
    model = GPT(GPTConfig(mixer_pattern=pattern, **shape))
    for p in model.parameters():
        p.data += 0.1 * torch.randn_like(p)
    ids = torch.randint(700, (2, 40), generator=torch.Generator().manual_seed(1))
    loss = model(ids, ids)
    loss.backward()
    model.to_compute(torch.float32).eval()
    with torch.no_grad():
        cache = KVCache(model, 2)
        steps = [model(ids[:, :30], cache=cache), *(model(ids[:, i : i + 1], cache=cache) for i in range(30, 40))]
    return torch.cat([loss.detach()[None], torch.cat(steps, 1).flatten()])
from nanogka.model import GPT, GPTConfig, KVCache
with_kernels = [numbers(pattern) for pattern in "GD"]
assert "nanogka.kernels.cpu" in sys.modules
for name in [name for name in sys.modules if name.startswith("nanogka.kernels")]:
    sys.modules[name] = None                    # as if the folder were not there
dispatch._reasons.clear()
torch.testing.assert_close([numbers(pattern) for pattern in "GD"], with_kernels, atol=2e-5, rtol=0)
assert dispatch._reasons["decode", "cpu", torch.float32].startswith("ModuleNotFoundError")
"""


def test_without_the_kernels_folder_everything_works_with_the_same_numbers_to_rounding():
    outcome = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
