"""The runner, with processes that only say how they end: what is recorded, what is tried again, what stops it."""

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import asdict

import pytest
from study_fakes import grid_with, row

from nanogka.data import open_corpus, train_on_corpus
from nanogka.runs import write_config
from nanogka.study import runner
from nanogka.study.runner import Study, append_line, read_results
from nanogka.train.setup import load_tokenizer

SIZES = {"small": {"depth": 1, "budget": 1e9, "seeds": [1, 2]}}
FAMILIES = {name: {"flags": {"attention": name}} for name in ("gaussian", "dot_product")}


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """Two families with two seeds, their corpus and their tokenizer."""
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    rng = random.Random(0)
    (tmp_path / "text").mkdir()
    for i in range(20):
        (tmp_path / "text" / f"{i}.txt").write_text(" ".join(rng.choice(["the", "cat", "dog"]) for _ in range(50)))
    tokenizer = train_on_corpus(open_corpus(tmp_path / "text"), 270, max_chars=10**5, doc_cap=10**4)
    tokenizer.save(tmp_path / "base" / "tokenizers" / "tiny")
    return grid_with(tmp_path / "grid.yaml", data=str(tmp_path / "text"), sizes=SIZES, families=FAMILIES, sweep=None)


@pytest.fixture
def study(grid, tmp_path, monkeypatch):
    """`study(code)` runs the grid with trainings that end with `code(words)`; returns exit code, lines said, words."""
    monkeypatch.setattr(runner, "POLL", 0.01)
    monkeypatch.setattr(runner, "describe_run", lambda folder: {})

    def run(code=lambda words: 0, program="pass", **options):
        said, launched = [], []

        def launch(self, words, slot, log, own_base=False):
            launched.append(words)
            output = next((word.removeprefix("--output=") for word in words if word.startswith("--output=")), None)
            write = f"import os; os.makedirs(os.path.dirname({output!r}), exist_ok=True); "
            write += f"open({output!r}, 'w').write('{json.dumps({'val_bpb': 2.0, 'confirm_bpb': None})}')"
            text = write if output else f"print('the last word'); {program}; raise SystemExit({code(words)})"
            return subprocess.Popen([sys.executable, "-S", "-c", text], stdout=log, stderr=log)

        monkeypatch.setattr(Study, "launch", launch)
        study = Study(grid, tmp_path / "results.jsonl", workers=2, say=said.append, **options)
        return study.run(), said, launched

    return run


def trained(launched):
    """The attention and the seed of every training launched."""
    found = []
    for words in launched:
        if words[0] == "scripts.base_train":
            flags = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
            found.append((flags["attention"], int(flags["seed"])))
    return found


def test_every_job_is_trained_measured_and_never_repeated(study, tmp_path, capsys):
    code, _, launched = study()
    assert code == 0
    order = [("gaussian", 1), ("dot_product", 1), ("gaussian", 2), ("dot_product", 2)]
    assert trained(launched) == order
    assert len(read_results(tmp_path / "results.jsonl")) == 4
    assert study()[2] == []
    lines = (tmp_path / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_text("".join(lines[:3]) + lines[3][:50])  # cut short by a crash
    code, _, launched = study()
    assert (code, trained(launched)) == (0, order[3:])
    assert f"{tmp_path / 'results.jsonl'}: 1 damaged lines left out\n" in capsys.readouterr().err
    assert len(read_results(tmp_path / "results.jsonl")) == 4


def test_a_failed_job_is_kept_apart_stops_no_other_and_is_tried_again(study, tmp_path):
    def second(words):
        return 1 if "--attention=dot_product" in words and "--seed=2" in words else 0

    code, said, _ = study(second)
    assert code == 1
    assert len(read_results(tmp_path / "results.jsonl")) == 3
    failures = read_lines(tmp_path / "base" / "studies" / "grid" / "failures.jsonl")
    assert [(entry["exit_code"], entry["end"]) for entry in failures] == [(1, "the last word")]
    assert any(line.startswith("FAILED dot_product small seed 2 (exit code 1, ") for line in said)
    code, _, launched = study()
    assert (code, trained(launched)) == (0, [("dot_product", 2)])


def test_a_run_whose_loss_is_not_finite_is_a_result(study, tmp_path):
    code, said, launched = study(lambda words: 3 if "--seed=2" in words else 0)
    assert code == 0
    rows = read_results(tmp_path / "results.jsonl")
    assert sorted((row["seed"], row["val_bpb"]) for row in rows if row["seed"] == 2) == [(2, None)] * 2
    assert any("seed 2: diverged" in line for line in said)


WAITING = """
import signal, sys, time
signal.signal(15, lambda *_: sys.exit(print("asked") or 143))
print("ready", flush=True)
time.sleep(20)
"""


def test_a_signal_reaches_the_trainings_and_nothing_is_started_after_it(study, tmp_path, monkeypatch):
    folder, asked = tmp_path / "base" / "studies" / "grid", []

    def logs():
        return "".join(path.read_text() for path in (folder / "logs").iterdir())

    def sleep(seconds, original=runner.time.sleep):
        original(seconds)
        if not asked and logs().count("ready") == 2:
            asked.append(os.kill(os.getpid(), signal.SIGTERM))

    monkeypatch.setattr(runner.time, "sleep", sleep)
    code, said, launched = study(program=f"exec({WAITING!r})")
    assert code == 143
    assert len(launched) == 2
    assert logs().count("asked") == 2
    assert said[-1].startswith("stopped by SIGTERM")
    assert read_results(tmp_path / "results.jsonl") == []
    assert not (folder / "failures.jsonl").exists()


def test_results_of_the_same_settings_on_other_text_do_not_count(study, grid, tmp_path):
    append_line(tmp_path / "results.jsonl", row(grid.job("gaussian", "small", 1), 2.0))
    assert ("gaussian", 1) in trained(study()[2])


@pytest.mark.parametrize("matrix_lr, word", [(0.02, "--resume=auto"), (0.5, "--overwrite")])
def test_a_run_from_when_a_default_was_another_begins_anew(study, grid, tmp_path, matrix_lr, word):
    job = grid.job("gaussian", "small", 1)
    fingerprints = [open_corpus(grid.data).fingerprint, load_tokenizer("tiny").fingerprint]
    folder = tmp_path / "base" / "studies" / "grid" / "runs" / job.identity(*fingerprints)
    folder.mkdir(parents=True)
    settings = asdict(job.settings) | {"target_flops": None, "num_iterations": 7, "matrix_lr": matrix_lr}
    write_config(folder, {"model": {}, "settings": settings})
    assert word in study()[2][0]


def test_what_base_train_would_refuse_is_said_before_anything_starts(grid, tmp_path):
    sizes = {"small": SIZES["small"] | {"settings": {"total_batch_size": 100}}}
    bad = grid_with(tmp_path / "bad.yaml", data=grid.data, sizes=sizes, families=FAMILIES, sweep=None)
    with pytest.raises(ValueError) as error:
        Study(bad, tmp_path / "results.jsonl", workers=0, families=("nobody",))
    assert "--workers: got 0" in str(error.value)
    assert "--only: got 'nobody', takes gaussian, dot_product" in str(error.value)
    with pytest.raises(ValueError, match="gaussian at small: --total-batch-size: got 100 tokens, takes a multiple"):
        Study(bad, tmp_path / "results.jsonl")


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
