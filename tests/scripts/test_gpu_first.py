"""The first command on a GPU, on a CPU: it runs to its end, and a stage whose subject is broken fails."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

RUN = "import sys; from scripts import gpu_first; sys.exit(gpu_first.main(sys.argv[1:]))"
BROKEN = """
import os; os.environ["TRITON_INTERPRET"] = "1"
import torch
from nanogka import dispatch
from nanogka.bench.train import TrainingStep
from nanogka.kernels import triton_attention as module
from scripts import base_train
right = module.triton_attention
def wrong(q, *inputs, **options):
    if q.shape[1] == 64:  # of the stage "attention"
        raise RuntimeError("out of resources")
    return 1.1 * right(q, *inputs, **options)
def full(step):
    raise torch.OutOfMemoryError("9 GiB wanted")
module.triton_attention, TrainingStep.run = wrong, full
dispatch._probe = lambda *what: "it is wrong"
base_train.main = lambda argv: 3
"""
FAILURES = {
    "kernels": "not chosen: attention: torch (it is wrong)",
    "step gaussian": "no batch fits",
    "correct": "a kernel disagrees with float64",
    "attention": "no configuration of our kernels ran",
    "train": "gaussian did not train",
}


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


def test_every_stage_runs_and_leaves_results(tmp_path, corpora):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "corpora").symlink_to(corpora)
    code, printed, results = run(tmp_path)
    assert code == 0, printed + (tmp_path / "log.txt").read_text()
    assert list(results) == [
        "machine", "kernels", "step gaussian", "correct", "step dot_product", "attention", "train", "step successor",
    ]  # fmt: skip
    assert results["kernels"] == [{"attention": "Triton", "loss": "Triton"}]
    assert all(line["tokens_per_second"] > 0 for stage in results if "step" in stage for line in results[stage])
    assert "| step gaussian | mixer gaussian, batch 1, compile_seconds" in (tmp_path / "results.md").read_text()


def test_a_stage_whose_subject_is_broken_fails_and_the_others_still_run(tmp_path):
    code, printed, results = run(tmp_path, "--only", ",".join(FAILURES), broken=BROKEN)
    assert code == 1
    assert printed.rstrip().endswith(f"failed: {', '.join(FAILURES)}")
    for stage, failure in FAILURES.items():
        assert f"{stage}: FAILED" in printed
        assert failure in results[stage][-1]["failed"]
    assert "9 GiB wanted" in results["step gaussian"][0]["error"]


def test_a_stage_that_the_time_cuts_off_is_named(tmp_path):
    code, printed, results = run(tmp_path, "--only", "machine,attention", "--minutes", "0.00001")
    assert (code, printed.count("out of time")) == (1, 2)
    assert results["attention"] == [{"failed": "out of time after 0 s"}]
