"""Trackers get the numbers of metrics.jsonl, and a resumed run keeps its id."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
from training import train

from nanogka.runs import read_metrics


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_resumed_run_keeps_its_id_and_a_new_run_gets_another(tracker, base, flags, interrupted, monkeypatch):
    fake = Mock()  # the module, and the runs that it opens
    fake.init.return_value = fake
    monkeypatch.setitem(sys.modules, tracker, fake)
    words = [*flags, "--num-iterations", "6", "--run", "a", "--save-every", "2", "--tracker", tracker]
    interrupted(3, *words)
    assert train(*words, "--resume", "auto") == 0
    assert train(*words, "--overwrite") == 0
    name = "id" if tracker == "wandb" else "name"
    first, resumed, second = (one.kwargs for one in fake.init.call_args_list)
    assert first[name] == resumed[name] != second[name]
    assert first["config"]["settings"]["num_iterations"] == 6
    assert fake.finish.call_count == 3
    # wandb's own count of steps cannot go back to a checkpoint. Trackio has no such call.
    assert fake.define_metric.call_args_list == [call("*", step_metric="step")] * (3 if tracker == "wandb" else 0)
    logged = [line for line in read_metrics(base / "runs" / "a" / "metrics.jsonl") if line["kind"] == "train"]
    sent = [one.args[0] for one in fake.log.call_args_list if "train/loss" in one.args[0]][-6:]
    assert [(line["step"], line["loss"]) for line in logged] == [(v["step"], v["train/loss"]) for v in sent]


def test_tensorboard_writes_into_the_runs_folder_and_hides_what_is_trained_again(base, flags, interrupted, monkeypatch):
    scalars = []

    @contextmanager
    def open_writer(folder, purge_step):
        yield SimpleNamespace(add_scalar=lambda name, value, step: scalars.append((folder, purge_step, name, step)))

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=open_writer))
    words = [*flags, "--run", "a", "--save-every", "4", "--tracker", "tensorboard"]
    interrupted(7, *words)
    stopped = len(scalars)
    assert train(*words, "--resume", "auto") == 0
    # The checkpoint to resume from is that of step 4.
    for part, purge, steps in ((scalars[:stopped], 0, [0, 5]), (scalars[stopped:], 5, [5, 10, 12])):
        assert {scalar[:2] for scalar in part} == {(base / "runs" / "a" / "tensorboard", purge)}
        assert [step for *_, name, step in part if name == "eval/val_bpb"] == steps


def test_a_missing_package_is_named_before_anything_is_trained(base, flags, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "trackio", None)
    assert train(*flags, "--run", "a", "--tracker", "trackio") == 2
    error = capsys.readouterr().err
    assert "--tracker: got 'trackio'" in error
    assert "pip install -e '.[trackio]'" in error
    assert not (base / "runs").exists()
