"""The first hour on a GPU node, on a CPU: it runs to its verdict, and a stage whose subject is broken fails."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from nanogka.bench import first_hour, first_machine, first_stages  # noqa: E402
from nanogka.bench.first_hour import verdict  # noqa: E402
from nanogka.bench.first_stages import Place, limit  # noqa: E402
from nanogka.common.runtime import GPUS, Hardware  # noqa: E402
from nanogka.model import GPTConfig  # noqa: E402
from nanogka.tokenizer import Tokenizer  # noqa: E402
from nanogka.train.budget import plan_budget  # noqa: E402
from nanogka.train.estimate import step_time  # noqa: E402

PLACE = Place(False, Path("/nowhere"), 8)
ROOT = Path(__file__).parents[2]
BROKEN = """
import os, subprocess, sys
os.environ["TRITON_INTERPRET"] = "1"
import torch
from nanogka import backends
from nanogka.bench import first_machine, first_stages
from scripts import gpu_first
right = first_stages.CONTESTANTS["gaussian"]
def wrong(z, *inputs):
    if z.shape[1] == 32:  # of the stage "attention"
        raise RuntimeError("out of resources")
    return 1.1 * right(z, *inputs)
def full(*arguments):
    raise torch.OutOfMemoryError("9 GiB wanted")
first_stages.CONTESTANTS["gaussian"] = wrong
first_stages.Place.start = lambda place, module, *words, ranks=None: subprocess.Popen(
    "true" if module == "scripts.tok_train" else "false"
)
torch.compile = lambda model, **options: lambda *inputs: 1.5 * model(*inputs)  # gradients, too
first_machine.FREE_DISK = 1e18
first_stages.fill_vocabulary = lambda *args: None
first_stages.download_address = lambda place: "http://127.0.0.1:1"
first_stages.compare_steps = full
first_stages.dist.reduce = None
backends.select_kernels = lambda *args: {"attention": "torch (it is wrong)"}
sys.exit(gpu_first.main(sys.argv[1:]))
"""
FAILURES = {
    "machine": "GB free",
    "download": "refused",
    "kernels": "not chosen: attention: torch (it is wrong)",
    "correct": "disagrees with float64: attention with window 7, the compiled model's gradients",
    "attention": "out of resources",
    "messages": "TypeError",
    "steps": "no batch fits",
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


@pytest.mark.slow  # two minutes: a small copy of every stage
def test_every_stage_runs_and_the_verdict_is_go(tmp_path, corpora):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "corpora").symlink_to(corpora)
    code, printed, results = run(tmp_path, "--price", "24")
    assert code == 0, printed + (tmp_path / "log.txt").read_text()
    assert list(results) == list(FAILURES)
    measured = {name: value for lines in results.values() for line in lines for name, value in line.items()}
    assert measured["crashed"], "a rank was killed before the run had ended"
    assert measured["losses_differ_by"] == 0, "on a CPU a resume is exact"
    assert {line["contestant"] for line in results["attention"]} == {"gaussian"}
    assert results["steps"][0]["tokens_per_second"] > 0
    last = printed.splitlines()[-1]
    assert last.startswith("GO: ")
    assert all(words in last for words in ("M tokens/s, 2,650 steps, ", ", everything ", ", $"))
    assert "| steps | batch 1, mixer gaussian, tokens_per_second" in (tmp_path / "results.md").read_text()


@pytest.mark.slow  # half a minute: the stages again
def test_a_stage_whose_subject_is_broken_fails_and_the_others_still_run(tmp_path):
    code, printed, results = run(tmp_path, code=BROKEN)
    assert code == 1
    for stage, failure in FAILURES.items():
        assert f"{stage}: FAILED" in printed
        assert failure in results[stage][-1]["failed"]
    assert printed.splitlines()[-1].startswith("NO-GO: machine: ")


def test_a_stage_that_runs_out_of_time_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(first_stages.STAGES, "machine", (lambda place: time.sleep(60), 0.01))
    assert not first_hour.run_stage("machine", first_stages.Place(True, tmp_path, 2))
    line = json.loads((tmp_path / "results.jsonl").read_text())
    assert re.fullmatch(r"out of time after \d+ s", line["failed"])
    assert "machine: out of time" in capsys.readouterr().out


def test_a_stage_that_runs_out_of_time_leaves_no_process_and_no_files(tmp_path, monkeypatch):
    """Neither its children nor those in another session, as a launcher's workers are."""
    starts = (
        f"p = subprocess.Popen(['sleep', '99'], start_new_session=True); open('{tmp_path}/pid', 'w').write(str(p.pid))"
    )

    def stage(place):
        (tmp_path / "base").mkdir()
        subprocess.run([sys.executable, "-c", f"import subprocess; {starts}; p.wait()"])
        yield {}

    monkeypatch.setitem(first_stages.STAGES, "train", (stage, 8))
    assert not first_hour.run_stage("train", first_stages.Place(True, tmp_path, 2))
    assert not (tmp_path / "base").exists()
    path = Path("/proc") / (tmp_path / "pid").read_text().strip()
    assert not path.exists() or ") Z" in (path / "stat").read_text()


def test_the_stages_time_and_train_the_model_of_the_verdict(tmp_path):
    config = PLACE.config("gaussian")
    assert config == GPTConfig.from_depth(20, "gaussian", sequence_len=2048, vocab_size=32768)
    small = Tokenizer.train(["a b a b a b"], 300)
    assert small.vocab_size < 300
    small.save(tmp_path)
    first_stages.fill_vocabulary(tmp_path, 300)
    filled = Tokenizer.load(tmp_path)
    assert filled.vocab_size == 300
    assert filled.encode("b a b") == small.encode("b a b")
    assert filled.bos_id == small.bos_id


def test_what_would_make_a_run_fail_is_refused(tmp_path, monkeypatch, base):
    answers = {"memory.used": "12\n41000\n", "name,driver": "H100\n", "topo": "NV18\n"}
    monkeypatch.setattr(
        first_machine, "ask_driver", lambda *words: next((a for k, a in answers.items() if k in " ".join(words)), "")
    )
    monkeypatch.setattr(first_machine, "PROBE", 2**24)
    monkeypatch.setattr(first_machine, "DISK_RATE", 1e18)
    monkeypatch.setattr(first_machine, "SHARED_MEMORY", 1e18)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("torch.cuda.get_arch_list", lambda: ["sm_80", "sm_90a", "compute_90"])
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": "/nowhere"})
    for capability, known in (((8, 9), True), ((9, 0), True), ((10, 0), False), ((7, 5), False)):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda c=capability: c)
        assert (first_machine.missing_architecture() == []) == known
    with pytest.raises(RuntimeError) as refused:
        list(first_machine.machine(False, torch.device("cpu"), 2))
    for words in ("MB/s", "(GPU 1 41000 MiB)", "no code for sm_75", "C compiler", "Python.h", "--ipc=host"):
        assert words in str(refused.value)


def test_verdict_from_results():
    results = [
        {"stage": "download", "download_bytes_per_second": 1e8},
        {"stage": "train", "start_seconds": 240.0, "run_tokens_per_second": 1.39e6},
    ]
    # 2,778,726,400 tokens; 10.2 GB at 0.1 GB/s; the start; one minute for the tokenizer and twelve after the training
    seconds = 2_778_726_400 / 1.39e6 + 102 + 240 + 60 + 240 + 480 * 1.6 / 1.39
    expected = "GO: 1.39 M tokens/s, 2,650 steps, 33m19s, everything 53m14s"
    assert verdict(results, [], 0, PLACE) == expected
    assert verdict(results, [], 100, PLACE) == f"{expected}, ${seconds / 36:.0f}"
    failed = [{"stage": "kernels", "failed": "not chosen: loss"}, *results]
    assert verdict(failed, ["kernels"], 0, PLACE) == "NO-GO: kernels: not chosen: loss"
    assert verdict(results[:1], [], 0, PLACE).startswith("no verdict")
    known = replace(PLACE, hardware=GPUS["H100"])
    assert "(85% of the computed speed)" in verdict(results, [], 0, known)
    small = verdict(results, [], 0, replace(PLACE, depth=12, mixers=("dot_product",)))
    assert f"{plan_budget(replace(PLACE, depth=12).config('dot_product')).num_iterations:,} steps" in small


def test_limits_follow_from_the_computed_step_of_the_gpu(tmp_path):
    """A step of depth 20 takes 0.64 s on eight H100s, and 20 s or more on one card of 24 GB."""
    node = replace(PLACE, hardware=GPUS["H100"])
    assert 600 + 35 * 0.64 < limit("train", node) < 600 + 35 * 1.1
    for card in ("RTX 4090", "RTX 3090", "L4", "L40S"):
        place = replace(PLACE, gpus=1, hardware=GPUS[card])
        step = step_time(place.config("gaussian"), place.hardware, 2**20, 1)
        assert limit("train", place) > 300 + 35 * step.total > 400
        assert limit("train", replace(place, depth=12)) < limit("train", place)
    assert limit("machine", node) == 60
    assert limit("train", replace(PLACE, hardware=Hardware("a new GPU"))) == first_stages.UNKNOWN_LIMIT


@pytest.mark.parametrize("fits, expected", [({4, 2, 1}, 4), ({1}, 1), (set(), None)])
def test_rows_are_halved_down_to_one_and_a_mixer_that_does_not_fit_is_a_line(fits, expected, monkeypatch):
    def compare(settings, device, dtype):
        if settings.batch not in fits:
            raise torch.OutOfMemoryError("9 GiB wanted")
        return [{"mixer": settings.mixers, "tokens": settings.batch * settings.micro_batches * settings.sequence_len}]

    monkeypatch.setattr(first_stages, "compare_steps", compare)
    result = first_stages.time_step(replace(PLACE, depth=12), False, 0, "successor")
    if expected is None:
        assert result == {"mixer": "successor", "reason": "no batch fits"}
    else:
        tokens = plan_budget(replace(PLACE, depth=12).config("successor")).total_batch_size
        assert result == {"batch": expected, "mixer": "successor", "tokens": tokens}


def test_a_stage_that_the_kernel_kills_is_not_out_of_time(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(first_stages.STAGES, "machine", (lambda place: os.kill(os.getpid(), signal.SIGKILL), 600))
    assert not first_hour.run_stage("machine", first_stages.Place(True, tmp_path, 2))
    line = json.loads((tmp_path / "results.jsonl").read_text())
    assert line["failed"].startswith("killed (signal 9), perhaps because the machine is out of memory, after ")
    assert "out of time" not in capsys.readouterr().out
