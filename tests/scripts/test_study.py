"""`python -m scripts.study` end to end: a training is stopped, resumed, measured and reported."""

import json
import os
import signal
import threading
import time

import pytest
import yaml
from study_fakes import make_data

from nanogka.runs import read_metrics
from nanogka.study import runner
from scripts import study

pytest.importorskip("pandas")


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A grid of one family, with its corpus and tokenizer."""
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    make_data(tmp_path, "text")
    content = {
        "data": str(tmp_path / "text"),
        "tokenizer": "tiny",
        "settings": {"sequence_len": 32, "total_batch_size": 64, "device": "cpu", "dtype": "float32", "lr_scale": 0.3},
        "sizes": {"tiny": {"depth": 1, "budget": 3e9, "seeds": [1]}},
        "families": {"GKA": {"flags": {"attention": "gaussian"}}},
    }
    content["settings"] |= {"eval_every": 20, "eval_tokens": 256, "compile": "off"}
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.slow  # three processes that train
def test_a_study_that_was_stopped_goes_on_and_repeats_nothing(grid, tmp_path, monkeypatch, capsys):
    runs, results = tmp_path / "base" / "studies" / "grid" / "runs", grid.with_suffix(".jsonl")

    def interrupt():
        while not any(line["kind"] == "train" for path in runs.glob("*/metrics.jsonl") for line in read_metrics(path)):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert study.main([str(grid), "--workers", "1"]) == 130
    assert not results.exists()
    (run,) = (path.parent for path in runs.glob("*/config.yaml"))
    (stopped,) = (run / "checkpoints").iterdir()
    assert study.main([str(grid), "--workers", "2"]) == 0
    log = (runs.parent / "logs" / f"{run.name}.log").read_text()
    assert f"resuming from {stopped.name}" in log
    assert not (run / "checkpoints").exists()

    (row,) = map(json.loads, results.read_text().splitlines())
    assert row["flops"] == pytest.approx(3e9, rel=0.04)
    assert row["flops"] == row["flops_per_token"] * row["tokens"]
    assert 0.5 < row["val_bpb"] < row["curve"][0][1]
    assert row["curve"][-1][0] == row["steps"] == row["tokens"] // 64
    assert "| GKA | " in grid.with_suffix(".md").read_text()
    assert (grid.with_suffix("") / "sizes.png").is_file()

    capsys.readouterr()
    monkeypatch.setattr(runner.Study, "_call", None)  # nothing is started any more
    assert study.main([str(grid)]) == 0
    assert study.main([str(grid), "--dry-run"]) == 0
    assert "1 jobs, 1 done; 0.0000e0 FLOPs to do" in capsys.readouterr().out


def test_bad_arguments_are_named_before_anything_is_written(grid, tmp_path, capsys):
    for words, named in (
        ([str(grid), "--only", "none", "--sizes", "huge"], ["--only: got 'none'", "--sizes: got 'huge'"]),
        ([str(grid), "--report"], ["got 0 results, none for a table of this grid"]),
    ):
        assert study.main(words) == 2
        errors = capsys.readouterr().err
        assert [message for message in named if message not in errors] == []
    assert not (tmp_path / "base" / "studies").exists()
