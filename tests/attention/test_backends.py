"""The choice of a back-end: probed, measured, logged, and never made inside a traced graph."""

import itertools
import logging

import pytest
import torch

from nanogka.attention import backends, gaussian_attention
from nanogka.attention.backends import Case, Chooser


@pytest.fixture
def chooser(monkeypatch):
    fresh = Chooser()
    monkeypatch.setattr(backends, "_chooser", fresh)
    return fresh


def case(**changes):
    fields = {
        "device": torch.device("cpu"),
        "dtype": torch.float32,
        "sizes": (1, 100, 2, 16, 16),
        "shared": True,
        "learns": True,
        "causal": True,
        "window": None,
        "equal_key_norms": True,
    }
    return Case(**fields | changes)


def inputs(T=30, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    z, v = (torch.randn(1, T, 2, 16, generator=generator).to(dtype).requires_grad_() for _ in range(2))
    return z, z, v, torch.ones(2)


KINDS = list(
    itertools.product((torch.float32, torch.bfloat16, torch.float16, torch.float64), (True, False), (True, False))
)
PROBED = [(*kind, (16, 48, 128)[i % 3], (None, 40)[(i + i // 4) % 2]) for i, kind in enumerate(KINDS)]
REST = [(*kind, D, window) for kind in KINDS for D in (16, 48, 128) for window in (None, 40)]


@pytest.mark.parametrize(
    "dtype,equal_key_norms,shared,D,window",
    PROBED + [pytest.param(*one, marks=pytest.mark.slow) for one in REST if one not in PROBED],
)
def test_sdpa_passes_its_probe_on_the_cpu(chooser, dtype, equal_key_norms, shared, D, window):
    sizes = (1, 9, 1, D, D)
    probed = case(dtype=dtype, equal_key_norms=equal_key_norms, shared=shared, sizes=sizes, window=window)
    assert chooser.why_not("sdpa", probed) is None


def test_a_back_end_that_computes_wrongly_is_not_chosen(chooser, monkeypatch, caplog):
    right = backends.softmax_attention

    def wrong(q, k, v, **options):
        return right(q, k, v, **options) * 1.01

    monkeypatch.setattr(backends, "softmax_attention", wrong)
    with caplog.at_level(logging.INFO):
        assert chooser.choose("auto", case()) == "reference"
    assert "disagrees with the reference: y off by 1.0e-02" in caplog.text
    with pytest.raises(ValueError, match="'sdpa' cannot run on cpu in torch.float32: disagrees"):
        gaussian_attention(*inputs(), backend="sdpa")


def test_one_log_line_says_what_runs_and_why(chooser, caplog):
    with caplog.at_level(logging.INFO, logger="nanogka.attention.backends"):
        for _ in range(3):
            gaussian_attention(*inputs())
    assert [r.getMessage() for r in caplog.records] == [
        "attention on cpu, float32, D=16 D_v=16, with gradients: sdpa (agrees with the reference)"
    ]


def test_the_fastest_is_measured_once_a_shape(chooser, monkeypatch, caplog):
    asked = []

    def seconds(name, measured):
        asked.append((name, measured.sizes))
        return {"triton": 3.0, "sdpa": 2.0, "flex": 1.0}[name]

    monkeypatch.setattr(backends, "CANDIDATES", {"cpu": ("triton", "sdpa", "flex", "varlen")})
    monkeypatch.setattr(backends, "_seconds", seconds)
    monkeypatch.setattr(chooser, "why_not", lambda name, _: "has no windows" if name == "varlen" else None)
    with caplog.at_level(logging.INFO):
        assert chooser.choose("auto", case()) == "flex"
        assert chooser.choose("auto", case(sizes=(1, 120, 2, 16, 16))) == "flex"
    assert len(asked) == 3
    assert (
        "flex (fastest of flex 1000.000 ms, sdpa 2000.000 ms, triton 3000.000 ms; varlen: has no windows)"
        in caplog.text
    )
    chooser.choose("auto", case(sizes=(1, 300, 2, 16, 16)))
    chooser.choose("auto", case(window=20))
    assert len(asked) == 9


@pytest.mark.parametrize("backend,reason", [("flex", "backward on CPU"), ("varlen", "cannot run on cpu")])
def test_a_back_end_asked_for_by_name_says_why_it_cannot_run(chooser, backend, reason):
    with pytest.raises(ValueError, match=reason):
        gaussian_attention(*inputs(), backend=backend)


def test_without_triton_the_reason_is_given(chooser, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nanogka.attention.triton_ops", None)
    with pytest.raises(ValueError, match="'triton' cannot run .* ModuleNotFoundError"):
        gaussian_attention(*inputs(), backend="triton")


@pytest.mark.parametrize("window", [None, 7])
def test_the_choice_leaves_one_graph_and_lengths_symbolic(chooser, window):
    torch._dynamo.reset()
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph

    compiled = torch.compile(gaussian_attention, fullgraph=True, backend=count, dynamic=window is None)
    for T in (30, 40, 50):
        torch.testing.assert_close(compiled(*inputs(T), window=window), gaussian_attention(*inputs(T), window=window))
    if window is None:
        assert len(graphs) == 1


def test_equal_norms_give_the_same_result_and_gradient_through_a_norm():
    leaf = torch.randn(1, 40, 2, 16, dtype=torch.float64, requires_grad=True)
    v, bandwidth = torch.randn(1, 40, 2, 16, dtype=torch.float64), torch.full((2,), 1.5, dtype=torch.float64)
    outcomes = []
    for trusted in (True, False):
        z = torch.nn.functional.rms_norm(leaf, (16,))
        y = gaussian_attention(z, z, v, bandwidth, equal_key_norms=trusted)
        to_z, to_leaf = torch.autograd.grad(y.square().sum(), [z, leaf])
        outcomes.append((y, to_leaf, to_z))
    (y, to_leaf, to_z), (y_general, to_leaf_general, to_z_general) = outcomes
    torch.testing.assert_close(y, y_general, rtol=0, atol=1e-12)
    torch.testing.assert_close(to_leaf, to_leaf_general, rtol=0, atol=1e-8)
    assert (to_z - to_z_general).norm() > 1e-3 * to_z.norm()  # the radial component, which the norm takes out
