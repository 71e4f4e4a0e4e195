"""The loop: exact resume, refusal of spoilt numbers, several ranks, all problems at once."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml

from nanogka.train.checkpoint import load_checkpoint, load_run, newest_sound
from nanogka.train.metrics import read_metrics
from scripts import base_train

TIMES = {"tokens_per_second", "flops_per_second", "seconds", "total_seconds", "data_wait", "created"}


def trace(folder):
    """Everything a run logged, less what the clock decides."""
    return [{k: v for k, v in line.items() if k not in TIMES} for line in read_metrics(folder / "metrics.jsonl")]


def weights(folder):
    return load_checkpoint(newest_sound(folder / "checkpoints")[0]).weights


def train(*words):
    return base_train.main([str(word) for word in words])


def test_a_run_leaves_configuration_metrics_and_a_model_that_loads(base, flags):
    assert train(*flags, "--run", "a") == 0
    folder = base / "runs" / "a"
    lines = trace(folder)
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 13))
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [0, 5, 10, 12]
    bpb = [line["val_bpb"] for line in lines if line["kind"] == "eval"]
    assert bpb[-1] < bpb[0]
    sigma = [line["bandwidth"] for line in lines if line["kind"] == "train"]
    assert sigma[0] != sigma[-1]
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["settings"]["num_iterations"] == 12
    assert config["model"]["n_layer"] == 2
    loaded = load_run("a")
    assert loaded.step == 12
    ids = torch.tensor([loaded.tokenizer.encode("the old cat sees")])
    assert loaded.model(ids).shape == (1, ids.shape[1], loaded.tokenizer.vocab_size)


@pytest.mark.parametrize("attention", ["gaussian", "dot_product"])
def test_stop_and_resume_is_bit_for_bit_the_run_that_was_not_stopped(base, flags, attention, monkeypatch):
    common = [*flags, "--attention", attention, "--save-every", "4"]
    assert train(*common, "--run", "whole") == 0
    from nanogka.train.loop import Trainer

    original, stop_at = Trainer._step, iter([7, 10])

    def step_that_dies(self, loader):
        if self.step == self.dies:
            raise KeyboardInterrupt
        return original(self, loader)

    monkeypatch.setattr(Trainer, "_step", step_that_dies)
    for at in (*stop_at, None):
        Trainer.dies = at
        assert train(*common, "--run", "parts", "--resume", "auto") == (0 if at is None else 130)
    assert trace(base / "runs" / "parts") == [
        {**line, "tag": "parts"} if line["kind"] == "run" else line for line in trace(base / "runs" / "whole")
    ]
    whole, parts = weights(base / "runs" / "whole"), weights(base / "runs" / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_sigkill_at_any_moment_then_resume_gives_the_same_losses(base, flags):
    common = [*flags, "--save-every", "3"]
    assert train(*common, "--run", "whole") == 0
    command = [sys.executable, "-m", "scripts.base_train", *common, "--run", "killed", "--resume", "auto"]
    metrics, rng = base / "runs" / "killed" / "metrics.jsonl", random.Random(5)
    for kills in (3, 8):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and sum(line["kind"] == "train" for line in read_metrics(metrics)) < kills:
            time.sleep(0.01)
        time.sleep(rng.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert train(*common, "--run", "killed", "--resume", "auto") == 0
    assert trace(base / "runs" / "killed")[1:] == trace(base / "runs" / "whole")[1:]


@pytest.mark.slow  # two compilations
def test_compiled_training_on_two_threads_repeats_bit_for_bit(base, flags):
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    runs = ("first", "second")
    for name in runs:
        command = [sys.executable, "-m", "scripts.base_train", *flags, "--compile", "on", "--run", name]
        subprocess.run(command, check=True, capture_output=True, env=environment)
    first, second = (trace(base / "runs" / name)[1:] for name in runs)
    assert first == second


def test_sigterm_finishes_the_step_saves_and_exits_143(base, flags):
    command = [sys.executable, "-m", "scripts.base_train", *flags, "--num-iterations", "100000", "--run", "asked"]
    metrics = base / "runs" / "asked" / "metrics.jsonl"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and len(read_metrics(metrics)) < 4:
        time.sleep(0.02)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    steps = [line["step"] for line in read_metrics(metrics) if line["kind"] == "train"]
    assert newest_sound(base / "runs" / "asked" / "checkpoints")[0].name == f"step_{steps[-1]:06d}"
    assert "--resume auto goes on" in errors


def test_a_loss_that_is_not_finite_stops_before_the_update(base, flags, monkeypatch, capsys):
    from nanogka.train.loop import Trainer

    original = Trainer._steps

    def spoil(self, *rest):
        inner = self.loss_function
        self.loss_function = lambda ids, targets: inner(ids, targets) * (float("nan") if self.step == 6 else 1)
        return original(self, *rest)

    monkeypatch.setattr(Trainer, "_steps", spoil)
    assert train(*flags, "--run", "nan", "--save-every", "2") == 3
    assert "stopped at step 7 before its update: the loss is nan" in capsys.readouterr().err
    folder = base / "runs" / "nan"
    assert newest_sound(folder / "checkpoints")[0].name == "step_000006"
    assert all(torch.isfinite(t).all() for t in weights(folder).values())
    assert max(line["step"] for line in trace(folder)) <= 6


def test_two_ranks_give_the_losses_of_one(base, flags):
    common = [*flags, "--dtype", "float32", "--num-iterations", "8"]
    assert train(*common, "--run", "one", "--device-batch-size", "4") == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += ["-m", "scripts.base_train", "--", *common, "--run", "two"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    one, two = ([line["loss"] for line in trace(base / "runs" / n) if line["kind"] == "train"] for n in ("one", "two"))
    assert len(one) == 8
    assert two == pytest.approx(one, rel=1e-5)


def test_all_problems_are_reported_before_anything_is_created(base, capsys):
    code = train(
        *("--depth", 0, "--seed", -1, "--device", "abacus", "--tokenizer", "nix", "--data", base / "nowhere"),
        *("--num-iterations", "many", "--compile", "maybe", "--warmdown-ratio", 2, "--run", "a/b"),
    )
    assert code == 2
    lines = capsys.readouterr().err.splitlines()
    named = ("num-iterations", "compile", "depth", "seed", "device", "tokenizer", "data", "warmdown-ratio", "run")
    for flag in named:
        assert sum(line.startswith(f"base_train: --{flag}: got ") for line in lines) == 1, flag
    assert len(lines) == len(named)
    assert not (base / "runs").exists()


@pytest.mark.parametrize(
    "words,message",
    [
        ("--total-batch-size 100", r"--total-batch-size: got 100 tokens, takes a multiple of .* = 32"),
        ("--device-batch-size 3", "--device-batch-size: got 3, takes a divisor of 4"),
        ("--target-flops 1e12", "takes one horizon"),
        ("--attention gauss", "--attention: got 'gauss', takes gaussian, dot_product"),
        ("--window-pattern SX", "window_pattern: got 'SX'"),
    ],
)
def test_settings_that_do_not_fit_together_are_named(flags, words, message, capsys):
    assert train(*flags, *words.split()) == 2
    import re

    assert re.search(message, capsys.readouterr().err)


def test_a_finished_run_is_neither_overwritten_nor_mixed_with_another(base, flags, capsys):
    assert train(*flags, "--run", "mine") == 0
    before = (base / "runs" / "mine" / "metrics.jsonl").read_text()
    assert train(*flags, "--run", "mine") == 2
    assert "--resume auto continues it, --overwrite deletes it" in capsys.readouterr().err
    assert train(*flags, "--run", "mine", "--resume", "auto", "--seed", "9", "--depth", "3") == 2
    errors = capsys.readouterr().err
    assert "--seed: got 9, takes 1, as" in errors
    assert "--depth: got 3, takes 2, as" in errors
    assert train(*flags, "--run", "mine", "--resume", "auto") == 0  # finished already: nothing to do
    assert (base / "runs" / "mine" / "metrics.jsonl").read_text() == before
    assert train(*flags, "--run", "mine", "--overwrite", "--num-iterations", "3") == 0
    assert len([line for line in trace(base / "runs" / "mine") if line["kind"] == "train"]) == 3


def test_metrics_survive_a_line_cut_short(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"kind": "train", "step": 1}) + '\n{"kind": "tra')
    assert read_metrics(path) == [{"kind": "train", "step": 1}]
