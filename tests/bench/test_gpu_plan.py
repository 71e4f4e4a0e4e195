"""The kernels that Inductor plans for a GPU: how many, and how many bytes they move."""

from collections import Counter

import pytest

pytest.importorskip("triton")

from nanogka.bench.gpu_plan import KernelPlan, plan_kernels
from nanogka.model import GPTConfig
from nanogka.train.estimate import FP8_TRAFFIC, TRAFFIC, moved_bytes

ROWS = 32
# GB that the element-wise kernels of four layers move, and kernels; 5 % above what was counted.
BOUNDS = {"gaussian": (40.1, 82), "successor": (57.6, 130), "dot_product": (43.5, 109)}


def test_counts_of_few_layers_are_scaled_to_the_depth_but_not_the_loss():
    plan = KernelPlan(7, 3e9, Counter({"mm": 24, "cross_entropy_mean": 1}), 2e9).scaled(5)
    assert plan == KernelPlan(35, 15e9, Counter({"mm": 120, "cross_entropy_mean": 1}), 10e9)
    assert plan.launches == 156


@pytest.mark.slow  # a trace of the network takes half a minute
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


@pytest.mark.slow
def test_fp8_is_planned_and_keeps_less(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    config = GPTConfig.from_depth(20, "gaussian", sequence_len=2048, vocab_size=32768)
    plan = plan_kernels(config, ROWS, fp8=True)
    assert plan.others["extern_kernels._scaled_mm"] == 3 * 3 * 20
    assert plan.kept < 0.8 * 42.7e9
    assert plan.moved == pytest.approx(moved_bytes(config, ROWS * 2048, fp8=True), rel=0.05), FP8_TRAFFIC
