"""The fault check: that it holds (slow), and that it would notice if it did not."""

import json
import random
import subprocess
from pathlib import Path

import pytest
import torch

from nanogka.train import faults
from nanogka.train.checkpoint import Checkpoint, list_checkpoints, save_checkpoint
from nanogka.train.faults import KINDS, Kill, Leg, check_faults, compare, damage_each_file, plan_kills
from scripts import fault_check

ROOT = Path(__file__).parents[2]


def run(folder, steps=(5, 10), loss=2.0, weight=1.0, momentum=1.0):
    """What a finished run leaves."""
    lines = [{"kind": "run", "step": 0, "tag": folder.name}]
    lines += [
        {"kind": "train", "step": i, "loss": loss if i == 10 else 3.0, "seconds": random.random()} for i in (9, 10)
    ]
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step in steps:
        weights = {"a": torch.full((4,), weight)}
        optimizer = {"0": {"state": {0: {"momentum": torch.full((4,), momentum)}}}}
        save_checkpoint(folder / "checkpoints", Checkpoint(step, weights, optimizer, {"loader": {"row": step}}))
    return folder


def broken(promises):
    return [promise for promise, problems in promises.items() if problems]


@pytest.mark.slow
def test_a_training_killed_at_twenty_random_moments_loses_nothing(tmp_path):
    report = check_faults(tmp_path, kills=20, seed=1, ranks=2, say=print)
    assert not any(report.promises.values()), report.promises
    assert [leg for leg in report.legs if leg.problems] == []
    assert len(report.legs) == 20
    assert {leg.kill.kind for leg in report.legs} == set(KINDS)
    assert any(leg.partial for leg in report.legs)  # some were struck with a checkpoint half-written


def test_kills_are_of_all_kinds_in_rising_order_and_follow_from_the_seed():
    kills = plan_kills(20, 1)
    assert [kill.kind for kill in kills].count("SIGTERM") == 4
    assert {kill.kind for kill in kills} == set(KINDS)
    assert [kill.step for kill in kills] == sorted(kill.step for kill in kills)
    assert kills == plan_kills(20, 1) != plan_kills(20, 2)


def test_equal_runs_pass_and_each_difference_is_noticed(tmp_path):
    whole = run(tmp_path / "whole")
    assert broken(compare(whole, run(tmp_path / "same"))) == []
    assert broken(compare(whole, run(tmp_path / "b", loss=2.0000001))) == [
        "all 2 logged lines equal the undisturbed run's"
    ]
    assert broken(compare(whole, run(tmp_path / "c", weight=1.0000001))) == ["final weights equal bit for bit"]
    assert broken(compare(whole, run(tmp_path / "d", momentum=2.0))) == ["final optimiser states equal bit for bit"]


def test_damage_that_is_not_noticed_is_reported(tmp_path, monkeypatch):
    folder = run(tmp_path / "run")
    assert damage_each_file(folder) == []
    monkeypatch.setattr("nanogka.train.checkpoint.why_broken", lambda path: None)
    assert len(damage_each_file(folder)) == 12  # three kinds of damage to four files
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == ["step_000005", "step_000010"]


def test_an_unloadable_newest_checkpoint_is_reported(tmp_path):
    folder = run(tmp_path / "run")
    leg = Leg(Kill("SIGTERM", 3, 0.5), logged=11)
    assert faults.look_at_newest(folder, leg) == ["saved step 10, but the last one was 11"]
    (folder / "checkpoints" / "step_000010" / "state.json").write_text("")
    (problem,) = faults.look_at_newest(folder, leg)
    assert "newest checkpoint step_000010: state.json is not what the manifest says" in problem


def test_the_command_exits_with_1_and_keeps_the_folder_where_a_promise_is_broken(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path / "kept"))
    (tmp_path / "kept").mkdir()
    legs = [Leg(Kill("SIGTERM", 3, 0.5))]
    report = faults.Report(legs, {"weights are equal": ["block 0"], "losses are equal": []}, 1.5)
    monkeypatch.setattr(fault_check, "check_faults", lambda *a: report)
    assert fault_check.main([]) == 1
    out = capsys.readouterr().out
    assert "FAIL  weights are equal\n      block 0\nPASS  losses are equal" in out
    assert json.loads(out.splitlines()[-1])["passed"] is False
    assert (tmp_path / "kept").exists()
    report.promises["weights are equal"].clear()
    assert fault_check.main([]) == 0
    assert not (tmp_path / "kept").exists()
    assert fault_check.main(["--kills", "0"]) == 2
    assert "--kills: got 0, takes an integer of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "script", [ROOT / "speedrun.sh", *sorted(ROOT.glob("scripts/*.sh"))], ids=lambda path: path.name
)
def test_shell_scripts_are_well_formed(script):
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_slurm_file_runs_the_command_of_the_documentation():
    script, page = ((ROOT / name).read_text() for name in ("scripts/slurm.sh", "docs/training.md"))
    for words in ("--rdzv_backend=c10d", "-m scripts.base_train -- ", "--resume auto"):
        assert words in script
        assert words in page
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" in script
