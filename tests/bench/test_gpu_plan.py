"""The kernels that Inductor plans for a GPU: how many, and how many bytes they move."""

import pytest

pytest.importorskip("triton")

from nanogka.bench.gpu_plan import plan_kernels
from nanogka.model import GPTConfig
from nanogka.train.estimate import FP8_TRAFFIC, TRAFFIC, moved_bytes

pytestmark = pytest.mark.slow  # a trace of the network takes half a minute

ROWS = 32
# GB that the element-wise kernels of four layers move, and kernels; 5 % above what was counted.
BOUNDS = {"gaussian": (40.1, 82), "successor": (57.6, 130), "dot_product": (43.5, 109)}


@pytest.mark.parametrize("mixer", BOUNDS)
def test_a_commit_that_moves_more_memory_is_seen(mixer, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    config = GPTConfig.from_depth(20, mixer, sequence_len=2048, vocab_size=32768)
    plan = plan_kernels(config, ROWS).scaled(4 / 20)
    most, kernels = BOUNDS[mixer]
    assert 0.9 * most * 1e9 < plan.moved <= most * 1e9
    assert plan.fused <= kernels
    assert plan.others["torch.ops.torch_attn._varlen_attn.default"] == 4, "attention is torch's, in the graph"
    assert 5 * plan.moved == pytest.approx(moved_bytes(config, ROWS * 2048), rel=0.05), TRAFFIC


def test_fp8_is_planned_and_keeps_less(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    config = GPTConfig.from_depth(20, "gaussian", sequence_len=2048, vocab_size=32768)
    plan = plan_kernels(config, ROWS, fp8=True)
    assert plan.others["extern_kernels._scaled_mm"] == 3 * 3 * 20
    assert plan.kept < 0.8 * 42.7e9
    assert plan.moved == pytest.approx(moved_bytes(config, ROWS * 2048, fp8=True), rel=0.05), FP8_TRAFFIC
