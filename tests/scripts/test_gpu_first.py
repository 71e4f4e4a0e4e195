"""The first command on a GPU, on a CPU: it runs to its end, and a stage whose subject is broken fails."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

RUN = "import sys; from scripts import gpu_first; sys.exit(gpu_first.main(sys.argv[1:]))"
WRONG = """
import os; os.environ["TRITON_INTERPRET"] = "1"
from nanogka.kernels import triton_attention as module
right = module.triton_attention
module.triton_attention = lambda *t, **options: 1.1 * right(*t, **options)
"""
NOT_CHOSEN = 'from nanogka import dispatch; dispatch._probe = lambda *what: "it is wrong"'


def run(out, *flags, broken=""):
    """Exit code, what was printed, and the results by stage."""
    command = [sys.executable, "-c", f"{broken}\n{RUN}", "--smoke", "--out", str(out), *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    results = {}
    for line in (out / "results.jsonl").read_text().splitlines():
        values = json.loads(line)
        results.setdefault(values.pop("stage"), []).append(values)
    return done.returncode, done.stdout, results


def test_every_stage_runs_and_leaves_results(tmp_path):
    code, printed, results = run(tmp_path)
    assert code == 0, printed + (tmp_path / "log.txt").read_text()
    assert list(results) == [
        "machine", "kernels", "correct", "attention", "step gaussian", "step dot_product", "step successor", "train",
    ]  # fmt: skip
    assert results["kernels"] == [{"attention": "Triton", "loss": "Triton"}]
    assert all(line["tokens_per_second"] > 0 for stage in results if "step" in stage for line in results[stage])
    assert "| step gaussian | mixer gaussian, batch 1, compile_seconds" in (tmp_path / "results.md").read_text()


@pytest.mark.parametrize("broken, stage", [(WRONG, "correct"), (NOT_CHOSEN, "kernels")])
def test_a_kernel_that_is_wrong_or_not_chosen_fails_its_stage(broken, stage, tmp_path):
    code, printed, results = run(tmp_path, "--only", stage, broken=broken)
    assert code == 1
    assert f"{stage}: FAILED" in printed
    assert {"correct": "disagrees with float64", "kernels": "not chosen"}[stage] in results[stage][-1]["failed"]
