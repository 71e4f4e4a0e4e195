"""Command lines of nanochat's README and scripts: they work here, or a sentence says what to do instead."""

import subprocess
import sys
from pathlib import Path

import pytest

from nanogka.common import nanochat
from nanogka.common.cli import parse
from nanogka.common.errors import Errors
from nanogka.evaluate.settings import ChatEvalSettings, EvalSettings
from nanogka.generate.settings import ChatSettings as TerminalSettings
from nanogka.train.chat import ChatSettings
from nanogka.train.rl import RLSettings
from nanogka.train.settings import TrainSettings


def read(settings, line):
    errors = Errors()
    return parse(settings, line.split(), "x", "", errors), errors.lines


@pytest.mark.parametrize(
    "settings,line,expected",
    [
        (
            TrainSettings,
            "--depth=12 --run=d12 --model-tag=d12 --core-metric-every=999999 --sample-every=-1 --save-every=-1",
            {"depth": 12, "run": "d12", "core_every": 999999, "sample_every": 0, "save_every": 0},
        ),
        (TrainSettings, "--core-metric-every -1 --eval-every -1 --save-every 7", {"core_every": 0, "save_every": 7}),
        (TrainSettings, "--target-param-data-ratio=-1 --num-iterations 20", {"target_param_data_ratio": None}),
        (TrainSettings, "--core-metric-max-per-task=-1 --max-seq-len 64", {"core_max_per_task": 10**9}),
        (ChatSettings, "--model-tag d12 --model-step 5 --run=sft", {"base": "d12", "base_step": 5, "run": "sft"}),
        (RLSettings, "-g d12 --examples-per-step=16 --num-samples=4 --eval-examples 9", {"base": "d12", "samples": 4}),
        (ChatEvalSettings, "-i sft -a ARC-Easy|MMLU -x 100", {"tasks": "arc_easy,mmlu", "max_per_task": 100}),
        (TerminalSettings, "-i sft -g d12 -t 0.5 -k 9 -p hi", {"run": "d12", "temperature": 0.5, "prompt": "hi"}),
        (EvalSettings, "--model-tag d12 --max-per-task=-1", {"run": "d12", "max_per_task": None}),
    ],
)
def test_a_line_of_nanochat_with_a_counterpart_works(settings, line, expected):
    read_settings, errors = read(settings, line)
    assert errors == []
    assert {name: getattr(read_settings, name) for name in expected} == expected


@pytest.mark.parametrize(
    "settings,line,flag,said",
    [
        (TrainSettings, "--fp8 --fp8-recipe=rowwise --depth 3", "--fp8-recipe", "one recipe"),
        (ChatSettings, "--init-lr-frac=0.8", "--init-lr-frac", "--lr-scale"),
        (ChatSettings, "--mmlu-epochs 3", "--mmlu-epochs", "--data smoltalk"),
        (ChatEvalSettings, "-t 0.5", "-t", "greedy"),
        (EvalSettings, "--device-batch-size=16", "--device-batch-size", "--batch-tokens"),
    ],
)
def test_a_flag_without_a_counterpart_is_one_sentence_and_no_guess(settings, line, flag, said):
    _, errors = read(settings, line)
    (line,) = errors
    assert line.startswith(f"{flag}: nanochat's flag has no counterpart here: ")
    assert said in line
    assert "did you mean" not in line


def test_a_script_of_nanochat_with_another_name_is_one_sentence():
    root = Path(__file__).parents[2]
    for name in nanochat.SCRIPTS:
        assert not (root / "scripts" / f"{name}.py").exists()
    for words in (
        ["-m", "scripts.chat_web", "-i", "sft"],
        ["-u", "-m", "scripts.mid_train"],
        ["-m", "nanogka", "base_loss"],
    ):
        done = subprocess.run([sys.executable, *words], cwd=root, capture_output=True, text=True)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "nanochat's script has another name here: `python -m scripts." in line


def test_a_negative_value_that_means_nothing_is_still_an_error():
    for line in ("--keep -1", "--save-every -2", "--core-metric-every=-3"):
        assert len(read(TrainSettings, line)[1]) == 1


def test_variables_of_nanochat_get_one_line(monkeypatch, capsys):
    monkeypatch.setenv("NANOCHAT_DTYPE", "float32")
    monkeypatch.setenv("NANOCHAT_BASE_DIR", "/x")
    monkeypatch.delenv("NANOGKA_BASE_DIR", raising=False)
    assert read(TrainSettings, "")[1] == []
    assert capsys.readouterr().err.splitlines() == [
        "x: NANOCHAT_BASE_DIR is nanochat's and has no effect; use NANOGKA_BASE_DIR",
        "x: NANOCHAT_DTYPE is nanochat's and has no effect; use --dtype",
    ]
    monkeypatch.setenv("LOCAL_RANK", "3")
    read(TrainSettings, "")
    assert capsys.readouterr().err == ""


def test_the_table_of_the_documents_is_the_parsers():
    assert nanochat.table() in (Path(__file__).parents[2] / "docs" / "training.md").read_text()
