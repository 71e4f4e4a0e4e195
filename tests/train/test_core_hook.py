"""CORE during training: measured on its schedule and logged."""

from evaluate_fakes import write_core_bundle

from nanogka.train.metrics import read_metrics
from scripts import base_train
from tasks import CORE, TASKS


def test_core_is_logged_on_its_schedule(base, flags, tmp_path):
    bundle = write_core_bundle(tmp_path / "bundle", CORE, TASKS)
    options = ["--core-every", 6, "--core-max-per-task", 11, "--save-every", 6, "--eval-bundle", bundle]
    assert base_train.main([str(word) for word in (*flags, "--run", "core", *options)]) == 0
    lines = [line for line in read_metrics(base / "runs/core/metrics.jsonl") if line["kind"] == "eval"]
    core = {line["step"]: line["core"] for line in lines if "core" in line}
    assert set(core) == {0, 6, 12}
    assert all(-1 < value < 1 for value in core.values())
    assert "val_bpb" in lines[-1]  # what reads the last evaluation wants the validation


def test_what_core_lacks_is_said_before_anything_is_created(base, flags, capsys):
    options = ["--core-every", 5, "--core-max-per-task", 3, "--run", "none"]
    assert base_train.main([str(word) for word in (*flags, *options)]) == 2
    err = capsys.readouterr().err
    assert "--core-max-per-task: got 3, takes an integer of at least 11" in err
    assert "--eval-bundle: got 'auto', but core takes a bundle" in err
    assert not (base / "runs").exists()
