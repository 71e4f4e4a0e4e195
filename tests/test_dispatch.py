"""The choice of who computes: probed once, logged, torch where a kernel is wrong, missing or not wanted."""

import logging
import subprocess
import sys

import pytest
import torch

from nanogka import dispatch
from nanogka.attention import gaussian_attention

CPU = torch.device("cpu")


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(dispatch, "_reasons", {})


@pytest.mark.parametrize("outcome,said", [("y is off by 1e+00", "torch (y is off by 1e+00)"), (None, "our kernel")])
def test_a_kernel_is_probed_once_and_the_outcome_is_logged(fresh, monkeypatch, caplog, outcome, said):
    calls = []
    monkeypatch.setattr(dispatch, "_probe", lambda *what: calls.append(what) or outcome)
    with caplog.at_level(logging.INFO), torch.no_grad():
        for _ in range(3):
            dispatch.prepare(CPU, torch.float32)
    assert calls == [("decode", CPU, torch.float32)]
    assert [record.getMessage() for record in caplog.records] == [f"decode on cpu in float32: {said}"]
    with torch.no_grad():
        assert (dispatch.decode_kernels(torch.zeros(1, 1, 4)) is None) == (outcome is not None)


def test_a_probe_that_fails_in_any_way_leaves_the_work_to_torch(fresh, monkeypatch):
    def broken(*what):
        raise OSError("no compiler")

    monkeypatch.setattr(dispatch, "_probe", broken)
    x, weight = torch.randn(2, 8).bfloat16(), torch.randn(5, 8).bfloat16()
    with torch.no_grad():
        torch.testing.assert_close(dispatch.linear(x, weight), x @ weight.T)
    assert dispatch._reasons == {("decode", "cpu", torch.bfloat16): "OSError: no compiler"}


def test_gradients_other_dtypes_and_a_plain_request_are_torchs(fresh):
    x = torch.zeros(1, 1, 4)
    assert dispatch.decode_kernels(x) is None  # gradients are on
    with torch.no_grad():
        assert dispatch.decode_kernels(x.double()) is None
        with dispatch.torch_only():
            assert dispatch.decode_kernels(x) is None
    assert dispatch._reasons == {}


def test_a_kernel_asked_for_by_name_that_cannot_run_is_an_error(fresh, monkeypatch):
    monkeypatch.setattr(dispatch, "_probe", lambda *what: "it is wrong")
    z = torch.zeros(1, 3, 1, 8)
    with pytest.raises(ValueError, match="backend: 'triton' cannot run on cpu in torch.float32: it is wrong"):
        gaussian_attention(z, z, z, torch.ones(1), backend="triton")


WITHOUT = """
import sys
sys.modules["nanogka.kernels"] = None     # as if the folder were not there
import torch
from nanogka.model import GPT, GPTConfig, KVCache
torch.manual_seed(0)
for pattern in "GD":
    config = GPTConfig(
        sequence_len=40, vocab_size=700, n_layer=2, n_head=2, n_embd=64, mixer_pattern=pattern, window_pattern="SL"
    )
    model = GPT(config)
    for p in model.parameters():
        p.data += 0.1 * torch.randn_like(p)
    ids = torch.randint(700, (2, 40), generator=torch.Generator().manual_seed(1))
    loss = model(ids, ids)
    loss.backward()
    model.to_compute(torch.float32).eval()
    with torch.no_grad():
        cache = KVCache(model, 2)
        steps = [model(ids[:, :30], cache=cache), *(model(ids[:, i : i + 1], cache=cache) for i in range(30, 40))]
    print(loss.item(), *torch.cat(steps, 1)[:, ::13, ::97].flatten().tolist())
"""


def test_without_the_kernels_folder_everything_works_with_the_same_numbers_to_rounding():
    numbers = []
    for source in (WITHOUT, WITHOUT.replace('sys.modules["nanogka.kernels"] = None', "")):
        outcome = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
        numbers.append([[float(word) for word in line.split()] for line in outcome.stdout.splitlines()])
    without, with_kernels = (torch.tensor(rows, dtype=torch.float64) for rows in numbers)
    assert without.shape[0] == 2
    assert without.shape[1] > 40
    torch.testing.assert_close(without, with_kernels, atol=2e-5, rtol=0)
