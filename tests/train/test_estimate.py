"""The roofline against published runs, and what it counts."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nanogka.bench.gpu_costs import Counted, plan_on_gpus
from nanogka.bench.published import TOLERANCE, comparison, published_runs
from nanogka.common.distributed import Ranks
from nanogka.common.formatting import scientific
from nanogka.common.runtime import GPUS, Hardware, find_gpu
from nanogka.model import GPTConfig, model_costs
from nanogka.train import costs
from nanogka.train.budget import plan_budget
from nanogka.train.estimate import attention_flops, checkpoint_bytes, estimate_time, held_bytes, moved_bytes, step_time
from nanogka.train.plan import Machine
from scripts import plan_gpu

ROOT = Path(__file__).parents[2]
H100 = GPUS["H100"]
DEPTH_20 = {"sequence_len": 2048, "vocab_size": 32768}


@pytest.mark.parametrize("run", published_runs(), ids=lambda run: f"{run.name} on {run.gpu}")
def test_published_steps_come_out(run):
    assert run.source
    if run.promised:
        assert run.computed_ms() == pytest.approx(run.ms, rel=TOLERANCE)
    else:
        assert "micro-batches of 10,000" in run.note


def test_the_comparison_tells_fitted_runs_from_those_held_out(capsys):
    assert plan_gpu.main(["--compare"]) == 0
    printed = capsys.readouterr().out
    assert printed.strip() == comparison()
    lines = {kind: [line for line in printed.splitlines() if kind in line] for kind in ("fitted", "held out")}
    runs = published_runs()
    assert [len(lines["fitted"]), len(lines["held out"])] == [
        sum(r.fitted for r in runs),
        sum(not r.fitted for r in runs),
    ]
    assert any(re.search(r"d26, log +8 × H100 +held out +832 +\d{3} +0\.9\d", line) for line in lines["held out"])


def test_messages_are_priced_by_the_link():
    """Somebody measured a step of this size on two rented nodes: 702 ms with NVSwitch, 1,412 with PCIe."""
    config = GPTConfig.from_depth(26, "dot_product", **DEPTH_20)
    fast, slow = (step_time(config, GPUS[name], 2**19, 8) for name in ("H100", "H100 PCIe"))
    assert slow.total > 1.8 * fast.total
    assert fast.messages == pytest.approx(8 * 1_681_790_292 / 330e9)
    assert step_time(config, GPUS["H100 PCIe"], 2**19, 1).messages == 0


@pytest.mark.parametrize("name, known", [
    ("NVIDIA H100 80GB HBM3", "H100"),
    ("NVIDIA H100 PCIe", "H100 PCIe"),
    ("NVIDIA GH200 480GB", "GH200"),
    ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
    ("NVIDIA A100-PCIE-40GB", "A100"),
    ("NVIDIA L4", "L4"),
    ("NVIDIA L40", None),
    ("NVIDIA L40S", "L40S"),
    ("NVIDIA A10G", "A10G"),
    ("NVIDIA A10", None),
    ("Tesla T4", "T4"),
    ("NVIDIA T400", None),
    ("NVIDIA RTX A1000 Laptop GPU", None),
    ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ("NVIDIA GeForce RTX 4090 D", None),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", None),
    ("NVIDIA GeForce RTX 5060 Ti", "RTX 5060 Ti"),
    ("NVIDIA GB10", "GB10"),
    ("NVIDIA B300 SXM6 AC", "B300"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
    ("h100", "H100"),
])  # fmt: skip
def test_a_gpu_is_found_by_whole_words(name, known):
    assert find_gpu(name) == (GPUS[known] if known else None)


def test_the_fastest_attention_of_a_gpu_is_assumed():
    config = GPTConfig.from_depth(20, "gaussian", **DEPTH_20)
    seconds = step_time(config, GPUS["H200"], 2**19, 8).attention
    assert seconds == step_time(config, GPUS["H200"], 2**19, 8, flash_version="FA4").attention
    assert seconds < 0.7 * step_time(config, GPUS["H200"], 2**19, 8, flash_version="FA2").attention


@pytest.mark.parametrize("mixer,tensors,more", [("gaussian", 57, 16), ("successor", 82, 16), ("dot_product", 62, 34)])
def test_the_traffic_of_depth_20_is_that_of_the_counted_tensors(mixer, tensors, more):
    """The counts that the GPU table of docs/RESULTS.md is computed from; each position has 1,280 numbers of 2 bytes."""
    config = GPTConfig.from_depth(20, mixer, **DEPTH_20)
    assert moved_bytes(config, 3) == 20 * tensors * 3 * 1280 * 2
    assert moved_bytes(config, 3, fp8=True) == 20 * (tensors + more) * 3 * 1280 * 2


RATES = [  # products, products in 8 bits, attention forward and backward, in TFLOP/s; TB/s of element-wise kernels
    ("H100", "FA4", 710, 1170, 560, 316, 2.95),
    ("H100", "FA2", 710, 1170, 300, 200, 2.95),
    ("A100-SXM4-80GB", "FA2", 0.88 * 312, None, 0.62 * 312, 0.52 * 312, 2.039 * 2.95 / 3.35),
    ("RTX 4090", "FA2", 165.2, 165.2 * 1170 / 710, 0.80 * 165.2, 0.70 * 165.2, 1.008 * 2.95 / 3.35),
]


@pytest.mark.parametrize("gpu,version,products,in_8,forward,backward,bandwidth", RATES)
def test_a_step_takes_the_time_of_the_measured_rates(gpu, version, products, in_8, forward, backward, bandwidth):
    """By hand: 500 tokens per GPU, 9 · 128² weights in each of two layers, 300 · 128 in the head."""
    config = GPTConfig.from_depth(2, "gaussian", sequence_len=8, vocab_size=300)
    time = step_time(config, GPUS[gpu], 1000, 2, flash_version=version)
    assert time.products == pytest.approx(6 * 500 * (2 * 9 * 128**2 + 300 * 128) / (products * 1e12))
    flops = 4 * 128 * (500 / 8) * (30 + 36)  # pairs of a window of 4, and of none
    assert time.attention == pytest.approx(flops / (forward * 1e12) + 2.5 * flops / (backward * 1e12))
    assert time.loss == pytest.approx(4 * 2 * 500 * 300 / (bandwidth * 1e12))
    assert time.elementwise == pytest.approx(2 * 57 * 2 * 500 * 128 / (bandwidth * 1e12))
    assert time.update == 0.01
    if in_8:
        rest = 2 * 9 * 128**2 + 300 * 128 - 10_000
        in_fp8 = step_time(config, GPUS[gpu], 1000, 2, in_fp8=10_000).products
        assert in_fp8 == pytest.approx(6 * 500 * (rest / products + 10_000 / in_8) / 1e12)
    else:
        assert step_time(config, GPUS[gpu], 1000, 2, in_fp8=10_000) is None


def test_the_peak_of_a_run_is_that_of_all_its_devices():
    machine = Machine(Ranks(3, 3, 8), torch.device("cpu"), torch.bfloat16, H100, False, "", False)
    assert machine.peak_flops == 8 * 989e12
    assert replace(machine, hardware=Hardware("a CPU")).peak_flops == 0


def test_attention_counts_the_visible_pairs():
    config = GPTConfig.from_depth(2, "gaussian", sequence_len=8, vocab_size=300, window_pattern="SL")
    pairs = (1 + 2 + 3 + 4 + 5 * 4) + 8 * 9 / 2  # a window of 4 earlier positions, and none
    assert attention_flops(config, 8) == 4 * config.n_embd * pairs


def test_a_device_holds_all_weights_and_gradients_and_its_share_of_the_state():
    config = GPTConfig.from_depth(20, "gaussian", **DEPTH_20)
    weights, state = 4 * 378_798_320, checkpoint_bytes(config) - 4 * 378_798_320
    assert 4 * 378_798_320 < state < 8 * 378_798_320  # Muon has a momentum, AdamW two moments
    assert held_bytes(config, 1) == 2 * weights + state
    assert held_bytes(config, 8) == pytest.approx(2 * weights + state / 8)


def test_unknown_hardware_and_mixers_have_no_time():
    config = GPTConfig.from_depth(2, "gaussian", sequence_len=8, vocab_size=300)
    assert step_time(config, Hardware("a CPU"), 1024, 1) is None
    assert step_time(config, GPUS["T4"], 1024, 1) is None
    assert step_time(GPTConfig.from_depth(2, "mixture", sequence_len=8, vocab_size=300), H100, 1024, 1) is None
    assert step_time(config, H100, 1024, 8).total < step_time(config, H100, 8 * 1024, 1).total


def test_without_a_roofline_the_time_is_that_of_the_assumed_share():
    plan = plan_on_gpus("gaussian", GPTConfig.from_depth(20, "gaussian", **DEPTH_20), 32, H100, 8, 3.0, COUNTS)
    unknown = replace(H100, family="")
    time = estimate_time(plan.config, plan.budget, unknown, 8)
    assert time.step is None
    assert time.seconds == pytest.approx(6.7088e18 / (0.4 * 8 * 989e12), rel=1e-4)
    assert time.mfu == pytest.approx(0.4)
    assert time.price(3.0, 8) == pytest.approx(24 * time.seconds / 3600)


@pytest.mark.parametrize("gpu", ["H100", "A100-SXM4-80GB"])  # with and without products in 8 bits
def test_a_run_takes_the_time_of_its_steps(gpu):
    config = GPTConfig.from_depth(12, "gaussian", **DEPTH_20)
    budget = plan_budget(config, num_iterations=7, total_batch_size=2**19)
    time = estimate_time(config, budget, GPUS[gpu], 4)
    assert time.step == step_time(config, GPUS[gpu], 2**19, 4)
    assert time.seconds == pytest.approx(7 * sum(vars(time.step).values()))
    assert time.mfu == pytest.approx(7 * 2**19 * 674_758_656 / (time.seconds * 4 * GPUS[gpu].peak_flops))


def test_the_peak_of_other_hardware_is_that_of_the_fastest_product(monkeypatch):
    """1,024³ multiplications and as many additions, by a clock on which the fastest of six products takes 0.25 s."""
    ticks = iter([0, 9, 10, 10.5, 20, 20.25, 30, 31, 40, 42, 50, 51])
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    assert costs.measure_matmul(torch.device("cpu"), torch.float32) == 2 * 1024**3 / 0.25


# ---- the documents' tables ----

COUNTS = Counted(390, 611, 190.9e9, 42.7e9)


def rows_of(path, start):
    """The cells of a Markdown table's rows that begin with a mixer, by mixer."""
    section = (ROOT / path).read_text(encoding="utf-8").split(start, 1)[1].split("\n\n", 1)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()]
    cells = [[row[0].removesuffix(" (baseline)").strip("`"), *row[1:]] for row in cells]
    return {row[0]: row for row in cells if row[0] in ("gaussian", "successor", "dot_product")}


@pytest.mark.parametrize("mixer", ["gaussian", "successor", "dot_product"])
def test_times_and_prices_of_the_documents_follow_from_the_counts(mixer):
    """The counts themselves are compared with the compiler's plan in tests/bench/test_gpu_plan.py."""
    printed = rows_of("docs/RESULTS.md", "| mixer | fused kernels")[mixer]
    fused, launches, moved, kept = (float(cell.replace(",", "")) for cell in printed[1:5])
    counted = Counted(int(fused), int(launches), moved * 1e9, kept * 1e9)
    config = GPTConfig.from_depth(20, mixer, **DEPTH_20)
    assert moved_bytes(config, 32 * 2048) / 1e9 == pytest.approx(moved, rel=0.05)
    plan = plan_on_gpus(mixer, config, 32, H100, 8, 3.0, counted)
    assert list(plan.row()) == printed
    minutes = f"{plan.time.seconds / 60:.0f} min"
    assert rows_of("docs/gpu-node.md", "| depth 20, 8 × H100")[mixer][2] == minutes
    names = {"gaussian": "GKA (`gaussian`)", "successor": "`successor`", "dot_product": "attention (`dot_product`)"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = [line for line in readme.splitlines() if line.startswith(f"| {names[mixer]} | ") and "e9" in line]
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    costs = model_costs(config)
    per_token, flops = scientific(costs.flops_per_token), scientific(plan.budget.flops)
    assert cells == [f"{costs.total_parameters:,}", per_token, flops, minutes.replace("min", "minutes")]


def test_plan_gpu_prints_price_and_memory_of_all_gpus(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("nanogka.bench.gpu_costs.count_kernels", lambda *of: COUNTS)
    assert plan_gpu.main(["--price", "3", "--json"]) == 0
    printed = capsys.readouterr().out
    seconds = plan_on_gpus("gaussian", GPTConfig.from_depth(20, "gaussian", **DEPTH_20), 32, H100, 8, 3.0, COUNTS)
    dollars = 24 * seconds.time.seconds / 3600
    assert 10 < dollars < 13
    assert f", ${dollars:,.2f}" in printed
    # Parameters in float32; Muon's momentum and AdamW's two moments, of which each GPU has an eighth.
    assert re.search(r"checkpoint +3\.4 GB", printed)
    assert plan_gpu.main(["--fp8", "--hardware", "A100"]) == 2
    assert "--fp8: got True, expected false: A100 has no products in 8 bits" in capsys.readouterr().err
    assert plan_gpu.main(["--hardware", "t4"]) == plan_gpu.main(["--hardware", "h101"]) == 2
    refused = capsys.readouterr().err
    assert "--hardware: got 't4', expected Ampere or newer" in refused
    assert "--hardware: got 'h101', expected B300" in refused
