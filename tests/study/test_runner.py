"""The runner without its processes: what is recorded and what is tried again."""

import json
import os
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from run_fakes import write_run
from study_fakes import grid_with, make_data, row

from nanogka.data import open_corpus
from nanogka.model.mixers.dot_product import DotProductMixer
from nanogka.study import runner
from nanogka.study.plan import read_results
from nanogka.study.runner import Study, describe_run

FACTS = set("parameters flops_per_token cache_bytes_per_token steps tokens flops curve seconds".split())
FACTS |= set("tokens_per_second hardware dtype compiled torch".split())
SIZES = {"small": {"depth": 1, "budget": 1e9, "seeds": [1, 2]}}
FAMILIES = {name: {"flags": {"attention": name}} for name in ("gaussian", "dot_product")}


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """Two families with two seeds, their corpus and their tokenizer."""
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    make_data(tmp_path, "text", "another")
    corpora = {"data": str(tmp_path / "text"), "confirm": str(tmp_path / "another")}
    return grid_with(tmp_path / "grid.yaml", **corpora, sizes=SIZES, families=FAMILIES)


@pytest.fixture
def study(grid, tmp_path, monkeypatch):
    """`study(code)` runs the grid without training. A training of `settings` exits with `code(settings)`.

    Returns the exit code and (attention, seed) of each training.
    """
    facts = {name: value for name, value in row(grid.job("gaussian", "small", 1), None).items() if name in FACTS}
    monkeypatch.setattr(runner, "describe_run", lambda folder: facts)

    def run(code=lambda settings: 0):
        trained = []

        def call(self, job, slot, words):
            flags = dict(word.removeprefix("--").split("=", 1) for word in words[1:] if "=" in word)
            if words[0] == "scripts.base_train":
                settings = yaml.safe_load(Path(flags["config"]).read_text())
                trained.append((settings["attention"], settings["seed"]))
                folder = self.folder / "runs" / flags["run"]
                (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
                (folder / "config.yaml").write_text("{settings: {}, model: {}, run: {device: cpu, dtype: float32}}")
                self._log_of(job).write_text("a line\nthe last word\n")
                return code(settings)
            assert words[:2] == ["scripts.base_eval", "--eval=bpb"]
            assert (flags["device"], flags["dtype"]) == ("cpu", "float32")
            val = 3.0 if open_corpus(flags["data"]).fingerprint == open_corpus(grid.confirm).fingerprint else 2.0
            documents = {"number": [103, 7, 3], "nats": [2.25 * val, 7.0, 0.5], "bytes": [5, 11, 2]}
            evaluation = {"bpb": {"train": 9.0, "val": val}, "val_documents": {"corpus": "a"} | documents}
            Path(flags["output"]).write_text(json.dumps(evaluation))
            return 0

        monkeypatch.setattr(Study, "_call", call)
        return Study(grid, tmp_path / "results.jsonl", workers=2).run(), trained

    return run


ORDER = [("gaussian", 1), ("dot_product", 1), ("gaussian", 2), ("dot_product", 2)]


def test_each_job_is_trained_measured_and_never_repeated(study, tmp_path, capsys):
    results = tmp_path / "results.jsonl"
    code, trained = study()
    assert (code, sorted(trained[:2]), sorted(trained)) == (0, sorted(ORDER[:2]), sorted(ORDER))
    assert [(row["val_bpb"], row["confirm_bpb"]) for row in read_results(results)] == [(2, 3)] * 4
    for line in read_results(results):  # documents 3 and 103 are of one group
        assert line["val_documents"] == {"nats": [5.0, 7.0], "bytes": [7, 11]}
        assert line["confirm_documents"] == {"nats": [7.25, 7.0], "bytes": [7, 11]}
    runs = list((tmp_path / "base" / "studies" / "grid" / "runs").iterdir())
    assert [(run / "checkpoints").exists() for run in runs] == [False] * 4  # dozens of runs would fill the disk
    assert study()[1] == []
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:3]) + lines[3][:50])  # cut by a crash
    code, trained = study()
    last = json.loads(lines[3])
    assert (code, trained) == (0, [(last["family"], last["seed"])])
    assert f"{results}: skipped line 4" in capsys.readouterr().err
    assert len(read_results(results)) == 4


def test_the_plan_has_a_row_per_job_and_the_flops_that_are_left(grid, tmp_path):
    sizes = {"small": SIZES["small"] | {"lr_scale": [0.3, 1]}}
    tried = grid_with(tmp_path / "grid.yaml", data=grid.data, sizes=sizes, families={"gka": FAMILIES["gaussian"]})
    study = Study(tried, tmp_path / "results.jsonl", workers=3)
    study.results.add(row(tried.job("gka", "small", 1, 0.3), 2.0) | study.results.protocol)
    heading, *lines, total = study.describe().splitlines()
    cells = [re.split(r" {2,}", line.strip()) for line in lines if "gka" in line]
    assert [line[-9:-4] for line in cells] == [
        ["gka", "small", "1", "0.3", "done"],
        ["gka", "small", "1", "1", "to do"],
        ["gka", "small", "2", "?", "when a rate is chosen"],
    ]
    assert [len(line) for line in cells] == [10, 10, 9]  # a job without its rate has no id
    for line in cells:
        per_token, steps, flops = (float(text.replace(",", "")) for text in line[-3:])
        assert flops == pytest.approx(128 * steps * per_token, rel=1e-4)
        assert flops == pytest.approx(1e9, rel=0.1)
    assert re.sub(r"\S+ FLOPs", "… FLOPs", total) == "3 jobs, 1 done; … FLOPs to do, 3 at a time"
    assert float(total.split()[4]) == pytest.approx(2 * float(cells[1][-1]), rel=1e-4)


def test_jobs_share_out_the_processors_and_take_the_gpus_in_turn(grid, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "visible_gpus", lambda count: ["3", "7"])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(11)), raising=False)
    environments = []

    def start(words, env, **streams):
        environments.append((env.get("CUDA_VISIBLE_DEVICES"), env["OMP_NUM_THREADS"], env["NANOGKA_BASE_DIR"]))
        return Mock(wait=lambda: 5)

    monkeypatch.setattr(runner.subprocess, "Popen", start)
    study = Study(grid, tmp_path / "results.jsonl")
    (study.folder / "logs").mkdir(parents=True)
    codes = [study._call(grid.job("gaussian", "small", 1), slot, ["scripts.base_train"]) for slot in (0, 1, 2)]
    assert codes == [5, 5, 5]
    assert environments == [(gpu, "5", str(study.folder)) for gpu in ("3", "7", "3")]
    assert (study.workers, Study(grid, tmp_path / "results.jsonl", workers=20).threads) == (2, 1)
    grid.settings["device"] = "cpu"
    on_cpu = Study(grid, tmp_path / "results.jsonl")
    assert (on_cpu.gpus, on_cpu.workers, on_cpu.threads) == ([], 11, 1)
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS has none
    for cores, workers in ((7, 7), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert Study(grid, tmp_path / "results.jsonl").workers == workers


def test_a_family_whose_mixer_declares_wrong_flops_is_refused_before_anything_is_trained(study, monkeypatch):
    monkeypatch.setattr(DotProductMixer, "flops_per_token", lambda self: 0)
    with pytest.raises(ValueError, match="mixer dot_product, layer 0: declares"):
        study()


def test_a_failed_job_stops_no_other_and_is_tried_again(study, tmp_path, capsys):
    code, _ = study(lambda settings: int(settings["attention"] == "dot_product" and settings["seed"] == 2))
    assert code == 1
    assert len(read_results(tmp_path / "results.jsonl")) == 3
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED dot_product small"))
    assert "exit code 1" in line
    assert line.endswith(": the last word")
    assert study() == (0, [("dot_product", 2)])


def test_a_run_whose_loss_is_not_finite_is_a_result(study, tmp_path):
    code, _ = study(lambda settings: 3 if settings["seed"] == 2 else 0)
    assert code == 0
    rows = read_results(tmp_path / "results.jsonl")
    assert sorted((row["seed"], row["val_bpb"]) for row in rows if row["seed"] == 2) == [(2, None)] * 2


def test_lines_that_are_no_rows_are_skipped_with_a_note(tmp_path, capsys):
    path, good = tmp_path / "results.jsonl", {"settings": {}, "val_bpb": 1}
    path.write_text("\n".join(["[]", "5", "{}", '{"settings": 3}', "[" * 100_000, json.dumps(good)]))
    assert read_results(path) == [good]
    assert [line.partition(": ")[2].partition(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"skipped line {number}" for number in range(1, 6)
    ]


def test_a_row_has_the_facts_of_its_run(tmp_path):
    machine = {"device": "cpu", "compiled": True, "hardware": "Example CPU"}
    found = describe_run(write_run(tmp_path / "one", steps=4, facts=machine))
    # W_O and an MLP are 9 · 128² weights in each of two layers; the head and the embedding have 300 · 128 each.
    assert (found["parameters"], found["steps"], found["tokens"]) == (2 * 9 * 128**2 + 2 * 300 * 128 + 6, 4, 4096)
    assert found["flops"] == 4096 * found["flops_per_token"]
    assert (found["curve"], found["tokens_per_second"]) == ([(0, 5.0), (4, 1.25)], 3050.0)
    assert {name: found[name] for name in machine} == machine
    metrics = tmp_path / "one" / "metrics.jsonl"  # of a run that diverged before its first step was done
    metrics.write_text(metrics.read_text().splitlines()[0] + '\n{"kind": "eval", "step": 0, "val_bpb": NaN}\n')
    empty = describe_run(tmp_path / "one")
    assert (empty["steps"], empty["tokens"], empty["flops"], empty["curve"]) == (0, 0, 0, [(0, None)])
