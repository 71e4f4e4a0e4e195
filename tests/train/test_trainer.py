"""The loop: a run's outcome, exact resume, several ranks, evaluations, all errors at once."""

import gzip
import json
import os
import re
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import yaml
from rank_worlds import run_training
from training import bits, die_before, losses, saved, trace, train

from nanogka import backends
from nanogka.data import open_corpus
from nanogka.data.hub_corpora import HubCorpus
from nanogka.model import GPT
from nanogka.runs import load_run
from nanogka.train import plan as plan_module
from nanogka.train import pretraining
from nanogka.train.profile import profiled
from nanogka.train.settings import TrainSettings


def test_a_run_leaves_configuration_metrics_and_a_model_that_loads(base, flags, capsys):
    assert train(*flags, "--run", "a") == 0
    folder = base / "runs" / "a"
    said = capsys.readouterr().out.splitlines()
    assert f"done: {folder}" in said
    assert said[said.index(f"done: {folder}") + 1].startswith("evaluate: python -m scripts.base_eval --run a")
    assert [line["step"] for line in trace(folder, "train")] == list(range(1, 13))
    assert [line["step"] for line in trace(folder, "eval")] == [0, 5, 10, 12]
    bpb = [line["val_bpb"] for line in trace(folder, "eval")]
    assert bpb[-1] < bpb[0]
    sigma = [line["bandwidth"] for line in trace(folder, "train")]
    assert sigma[0] != sigma[-1]
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["settings"]["num_iterations"] == 12
    assert config["model"]["n_layer"] == 2
    assert load_run("a").step == 12


def test_a_dry_run_says_what_the_run_would_cost_and_creates_nothing(base, flags, capsys):
    assert train(*flags, "--dry-run") == 0
    text = capsys.readouterr().out
    with torch.device("meta"):
        model = GPT(TrainSettings(depth=2, sequence_len=32).config(300))
    parameters = sum(p.numel() for p in model.parameters())
    matrices = sum(p.numel() for name, p in model.named_parameters() if name.startswith("blocks.") and p.ndim == 2)
    assert f"{parameters:,} parameters" in text
    assert "12 steps × 128 tokens = 1,536 tokens" in text
    size = 4 * parameters + 4 * matrices + 8 * (parameters - matrices)
    assert f"checkpoints 1 × {size / 1e6:.1f} MB" in text
    assert train(*flags, "--dry-run", "--tokenizer", "none") == 0
    assert not (base / "runs").exists()


OPTIONS = ["--short-conv=3", "--smear", "--value-embeddings"]


def test_stop_and_resume_is_bit_for_bit_the_run_that_was_not_stopped(base, flags, interrupted):
    common = [*flags, "--attention", "GSDV", "--depth", 4, "--network", "july", *OPTIONS]
    common += ["--num-iterations", 8, "--eval-every", 3, "--save-every", 3]
    assert train(*common, "--run", "whole") == 0
    for step in (4, 7):
        interrupted(step, *common, "--run", "parts", "--resume", "auto")
    assert train(*common, "--run", "parts", "--resume", "auto") == 0
    assert trace(base / "runs" / "parts") == trace(base / "runs" / "whole")
    assert bits(base / "runs" / "parts") == bits(base / "runs" / "whole")


@pytest.mark.slow  # two compilations
def test_compiled_training_on_two_threads_repeats_bit_for_bit(base, flags):
    for name in ("first", "second"):
        command = [sys.executable, "-m", "scripts.base_train", *flags, "--compile", "on", "--run", name]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    assert trace(base / "runs" / "first") == trace(base / "runs" / "second")


def test_one_rank_and_two_give_the_same_losses_and_resume_each_others_checkpoints(base, flags, interrupted):
    """Two micro-batches of one row, on one rank or on two: then the sums have the same terms in the same order.

    Grouped otherwise, rounding differs, which Muon amplifies where a gradient is rounding and nothing else: one rank
    with micro-batches of 2 rows and with those of 4 is 6e-5 apart after 50 steps (docs/research/log.md).
    """
    common = [*flags, "--dtype", "float32", "--num-iterations", 20, "--eval-every", 0, "--lr-scale", 0.1]
    common += ["--sequence-len", 64, "--device-batch-size", 1, "--attention", "SDV", "--network", "july", *OPTIONS]
    common += ["--save-every", 4, "--resume", "auto"]
    assert train(*common, "--run", "whole") == 0
    ended = run_training(2, [*common, "--run", "parts"], base, partial(die_before, 8))
    assert [code for code, _ in ended] == [130, 130]
    interrupted(12, *common, "--run", "parts")
    assert [code for code, _ in run_training(2, [*common, "--run", "parts"], base)] == [0, 0]
    assert f"\ndone: {base / 'runs' / 'parts'}\n" in (base / "rank0.out").read_text()
    assert (base / "rank1.out").read_text() == ""
    whole, parts = losses(base / "runs" / "whole"), losses(base / "runs" / "parts")
    assert len(whole) == 20
    assert whole[-1] < whole[0] - 1  # it did learn
    assert parts == pytest.approx(whole, rel=1e-5)


def test_evaluations_are_logged_the_validation_last_and_the_best_checkpoint_is_kept(base, flags, monkeypatch):
    values = iter([9.0, 4.0, 3.0, 5.0, 6.0, 7.0, 8.0])
    monkeypatch.setattr(pretraining, "validate", lambda plan, corpus, model: {"val_bpb": next(values)})
    monkeypatch.setattr(pretraining, "open_core_tasks", lambda *_: ["a task"])
    monkeypatch.setattr(pretraining, "core_evaluation", lambda *_: lambda model: {"core": 0.5})
    options = ["--eval-every", 2, "--save-every", 2, "--keep", 2, "--core-every", 6]
    assert train(*flags, *options, "--run", "best") == 0
    lines = trace(base / "runs" / "best", "eval")
    assert [line["step"] for line in lines if line.get("core") == 0.5] == [0, 6, 12]
    assert "val_bpb" in lines[-1]  # readers of the last evaluation expect the validation
    assert saved(base / "runs" / "best") == ["step_000004", "step_000010", "step_000012"]


def test_kernels_are_tried_before_compiling_and_a_broken_one_stops_the_run(base, flags, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(plan_module, "can_compile", lambda device: (True, "assumed"))
    monkeypatch.setattr(torch, "compile", lambda model, **options: calls.append("compile") or model)
    select = backends.select_kernels
    broken = {"loss": "torch (wrong)"}
    monkeypatch.setattr(backends, "select_kernels", lambda *_: calls.append("select") or broken)
    words = [*flags, "--run", "a", "--compile", "on", "--num-iterations", 1]
    assert train(*words) == 2
    assert "--allow-torch" in capsys.readouterr().err
    assert not (base / "runs" / "a").exists()
    calls.clear()
    assert train(*words, "--allow-torch") == 0
    assert calls[:2] == ["select", "compile"]
    assert select(torch.device("cpu"), torch.float32) == {}  # nothing to try on a CPU


@pytest.mark.parametrize(
    "wanted,flops,found",
    [
        ("auto", 3e13, (False, "no compiler")),
        ("auto", 1e13, (False, "the run is too short for it to pay")),
        ("off", 3e13, (False, "--compile off")),
        (None, 3e13, (False, "batches have many shapes")),
        ("on", 1e13, "compile: got 'on', but no compiler"),
    ],
    ids=["auto", "short", "off", "never", "on"],
)
def test_only_a_run_that_must_compile_stops_where_that_is_impossible(monkeypatch, wanted, flops, found):
    monkeypatch.setattr(plan_module, "can_compile", lambda device: (False, "no compiler"))
    decide = partial(plan_module.decide_compile, wanted, torch.device("cpu"), SimpleNamespace(flops=flops))
    if isinstance(found, str):
        with pytest.raises(ValueError, match=f"^{found}$"):
            decide()
        assert decide(probe=False) == (True, "not tried in a dry run")
    else:
        assert decide() == found


def test_a_profile_of_some_steps_is_kept(base, flags, capsys):
    assert train(*flags, "--run", "a", "--num-iterations", 6, "--profile", 2, "--eval-every", 0) == 0
    trace_file = base / "runs" / "a" / "profile" / "rank0.json.gz"
    names = [event.get("name", "") for event in json.loads(gzip.decompress(trace_file.read_bytes()))["traceEvents"]]
    assert len([name for name in names if re.fullmatch(r"ProfilerStep#\d+", name)]) == 2
    assert "aten::mm" in names


def test_a_profile_begins_after_three_steps_that_fill_caches(tmp_path):
    path, said = tmp_path / "profile" / "rank0.json.gz", []
    with profiled(2, path, False, said.append) as next_step:
        for step in range(1, 7):
            next_step()
            assert path.exists() is (step >= 5)
    assert said == [f"profile of 2 steps: {path}"]


def test_samples_are_shown_and_logged_and_change_no_loss(base, finished, short, capsys):
    assert train(*short, "--sample-every", 3) == 0
    lines = [line for line in trace(base / "runs" / "mine", "eval") if "samples" in line]
    assert [line["step"] for line in lines] == [0, 3, 5]
    assert all(line["samples"][0].startswith("> The with statement") for line in lines)
    assert lines[-1]["samples"][0] in capsys.readouterr().err
    assert losses(base / "runs" / "mine") == losses(finished)


@pytest.mark.parametrize(
    "words,message",
    [
        ("--total-batch-size 100", r"--total-batch-size: got 100 tokens"),
        ("--device-batch-size 3", "--device-batch-size: got 3"),
        ("--target-flops 1e12", "expected one horizon"),
        ("--lr-scale -1 --matrix-lr nan", "--matrix-lr: got 'nan', expected[^$]*--lr-scale: got"),
        ("--attention gauss", "--attention: got 'gauss'"),
        ("--window-pattern SX", "--window-pattern: got 'SX'"),
        (
            "--sequence-len 4096 --total-batch-size 4096 --device-batch-size 1",
            r"--data: got .*, whose val split has \d+ tokens .*, expected at least one row of 4096",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_named(flags, words, message, capsys):
    assert train(*flags, *words.split()) == 2
    assert re.search(message, capsys.readouterr().err)


def test_shards_of_fineweb_are_fetched_only_for_a_run_that_can_start(world, flags, monkeypatch):
    fetched = []
    monkeypatch.setattr("nanogka.train.pretraining.fetch_corpus", lambda corpus, shards, log: fetched.append(shards))
    monkeypatch.setattr(HubCorpus, "open", lambda self, shards: open_corpus(world / "text"))
    words = [*flags, "--data", "fineweb-edu", "--num-iterations", 2, "--run", "web"]
    assert train(*words, "--total-batch-size", 100) == 2
    assert train(*words, "--shards", 2000) == 2
    assert train(*words, "--dry-run") == 0
    assert fetched == []
    assert train(*words, "--shards", 3) == 0
    assert train(*words, "--run", "more") == 0
    assert fetched == [3, 8]
