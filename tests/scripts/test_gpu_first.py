"""The first hour on a GPU node, on a CPU: it runs to its verdict, and a stage whose subject is broken fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
BROKEN = """
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
import torch
from nanogka import backends
from nanogka.bench import first_stages
from nanogka.bench.train import TrainingStep
from scripts import gpu_first
right, start = first_stages.CONTESTANTS["gaussian"], first_stages.launch
def wrong(z, *inputs):
    if z.shape[1] == 32:  # of the stage "attention"
        raise RuntimeError("out of resources")
    return 1.1 * right(z, *inputs)
def full(step):
    raise torch.OutOfMemoryError("9 GiB wanted")
def launch(place, module, *words, **options):
    return start(place, "no_such_module", **options)
first_stages.CONTESTANTS["gaussian"], first_stages.launch = wrong, launch
first_stages.FREE_DISK = 1e18
first_stages.serve_bytes = lambda size: (None, "http://127.0.0.1:1")
TrainingStep.accumulate = full
backends.select_kernels = lambda *args, **options: {"attention": "torch (it is wrong)"}
sys.exit(gpu_first.main(sys.argv[1:]))
"""
FAILURES = {
    "machine": "GB free",
    "download": "refused",
    "kernels": "not chosen: attention: torch (it is wrong)",
    "correct": "disagrees with float64: attention with window None, attention with window 7",
    "attention": "out of resources",
    "messages": "could not send messages",
    "step gaussian": "no batch fits",
    "train": "training ended with exit code 1 after 0 steps",
}


def run(out, *flags, code=""):
    """Exit code, output, and the results by stage."""
    start = ["-c", code] if code else ["-m", "scripts.gpu_first"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NANOGKA_BASE_DIR": str(out / "home")}
    environment.pop("TRITON_INTERPRET", None)  # the tests' own, which a user does not have
    command = [sys.executable, *start, "--smoke", "--out", str(out), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    results = {}
    for line in (out / "results.jsonl").read_text().splitlines():
        values = json.loads(line)
        results.setdefault(values.pop("stage"), []).append(values)
    return done.returncode, done.stdout, results


def test_every_stage_runs_and_the_verdict_is_go(tmp_path, corpora):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "corpora").symlink_to(corpora)
    from nanogka.bench.first_stages import STAGES

    names = [name for name in STAGES if name not in ("step dot_product", "step successor")]  # as the first mixer's
    code, printed, results = run(tmp_path, "--price", "24", "--only", ",".join(names))
    assert code == 0, printed + (tmp_path / "log.txt").read_text()
    assert list(results) == names
    measured = {name: value for lines in results.values() for line in lines for name, value in line.items()}
    assert measured["crashed"], "a rank was killed before the run had ended"
    assert measured["losses_differ_by"] == 0, "on a CPU a resume is exact"
    assert {line["contestant"] for line in results["attention"]} == {"gaussian", "triton"}
    assert all(line["tokens_per_second"] > 0 for stage in results if "step" in stage for line in results[stage])
    last = printed.splitlines()[-1]
    assert last.startswith("GO: ")
    assert all(words in last for words in ("M tokens/s, 2,650 steps, ", " min, everything ", ", $"))
    assert "| step gaussian | batch 1, micro_batches 2, compile_seconds" in (tmp_path / "results.md").read_text()


def test_a_stage_whose_subject_is_broken_fails_and_the_others_still_run(tmp_path):
    code, printed, results = run(tmp_path, "--only", ",".join(FAILURES), code=BROKEN)
    assert code == 1
    for stage, failure in FAILURES.items():
        assert f"{stage}: FAILED" in printed
        assert failure in results[stage][-1]["failed"]
    assert "9 GiB wanted" in results["step gaussian"][0]["error"]
    assert printed.splitlines()[-1].startswith("NO-GO: machine: ")


def test_a_stage_that_runs_out_of_time_is_named(tmp_path, capsys):
    from nanogka.bench.first_hour import run_stages
    from nanogka.bench.first_stages import Place

    place = Place(True, tmp_path, 2)
    assert run_stages(["machine", "attention"], place, 0.0001) == ["machine", "attention"]
    lines = [json.loads(line) for line in place.results.read_text().splitlines()]
    assert [(line["stage"], line["failed"]) for line in lines if "failed" in line] == [
        (name, "out of time after 0 s") for name in ("machine", "attention")
    ]
    assert capsys.readouterr().out.count("out of time") == 2


def test_verdict_from_results():
    from nanogka.bench.first_hour import verdict

    results = [
        {"stage": "download", "download_bytes_per_second": 1e8},
        {"stage": "train", "start_seconds": 240.0, "run_tokens_per_second": 1.39e6},
    ]
    # 2,778,726,400 tokens; 10.2 GB at 0.1 GB/s; the start; one minute for the tokenizer and twelve after the training
    seconds = 2_778_726_400 / 1.39e6 + 102 + 240 + 60 + 720
    expected = f"GO: 1.39 M tokens/s, 2,650 steps, 33 min, everything {seconds / 60:.0f} min"
    assert verdict(results, [], 0) == expected
    assert verdict(results, [], 100) == f"{expected}, ${seconds / 36:.0f}"
    failed = [{"stage": "kernels", "failed": "not chosen: loss"}, *results]
    assert verdict(failed, ["kernels"], 0) == "NO-GO: kernels: not chosen: loss"
    assert verdict(results[:1], [], 0).startswith("no verdict")


def test_three_mixers_are_timed_at_the_same_time_where_each_has_a_gpu(tmp_path):
    from nanogka.bench.first_hour import group
    from nanogka.bench.first_stages import Place

    names = ["machine", "step gaussian", "step dot_product", "train"]
    alone = [[name] for name in names]
    assert group(names, Place(False, tmp_path, 1)) == alone
    assert group(names, Place(True, tmp_path, 8)) == alone
    assert group(names, Place(False, tmp_path, 8)) == [["machine"], ["step gaussian", "step dot_product"], ["train"]]
