"""Trackers get the numbers of metrics.jsonl, and a resumed run goes on under its id."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from training import train

from nanogka.runs import read_metrics


class FakeTracker:
    """Stands for the modules wandb and trackio, and for the runs they open: remembers what it was sent."""

    def __init__(self):
        self.opened, self.sent, self.finished = [], [], []
        self.define_metric, self.finish = lambda *words, **more: None, lambda: self.finished.append(1)

    def init(self, **words):
        self.opened.append(words)
        return self

    def log(self, values, step=None):
        self.sent.append((values.get("step", step), values))


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_resumed_run_goes_on_under_its_id_and_another_run_has_another(tracker, base, flags, interrupted, monkeypatch):
    fake = FakeTracker()
    monkeypatch.setitem(sys.modules, tracker, fake)
    words = [*flags, "--run", "a", "--save-every", "4", "--tracker", tracker]
    interrupted(7, *words)
    assert train(*words, "--resume", "auto") == 0
    assert train(*words, "--overwrite") == 0
    name = "id" if tracker == "wandb" else "name"
    first, resumed, anew = fake.opened
    assert first[name] == resumed[name] != anew[name]
    assert {run["project"] for run in fake.opened} == {"nanogka"}
    assert first["config"]["settings"]["num_iterations"] == 12
    assert len(fake.finished) == 3
    logged = [line for line in read_metrics(base / "runs" / "a" / "metrics.jsonl") if line["kind"] == "train"]
    last = [(step, values) for step, values in fake.sent if "train/loss" in values][-12:]
    assert [(line["step"], line["loss"]) for line in logged] == [(s, v["train/loss"]) for s, v in last]


def test_tensorboard_writes_into_the_runs_folder(base, flags, monkeypatch):
    scalars = []

    @contextmanager
    def open_writer(folder, purge_step):
        yield SimpleNamespace(add_scalar=lambda name, value, step: scalars.append((folder, purge_step, name, step)))

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=open_writer))
    assert train(*flags, "--run", "a", "--tracker", "tensorboard") == 0
    assert {(folder, purge) for folder, purge, _, _ in scalars} == {(base / "runs" / "a" / "tensorboard", None)}
    assert [step for *_, name, step in scalars if name == "eval/val_bpb"] == [0, 5, 10, 12]


def test_a_missing_package_is_named_before_anything_is_trained(base, flags, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "trackio", None)
    assert train(*flags, "--run", "a", "--tracker", "trackio") == 2
    error = capsys.readouterr().err
    assert "--tracker: got 'trackio'" in error
    assert "pip install 'nanogka[trackio]'" in error
