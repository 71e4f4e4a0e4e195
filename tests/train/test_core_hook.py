"""CORE on a schedule: after the checkpoint is saved, logged, and refused in time where it cannot be."""

import json

import pytest

from nanogka.train.metrics import read_metrics
from scripts import base_train
from tasks import CORE, TASKS


@pytest.fixture
def bundle(tmp_path):
    """All 22 tasks, with a dozen made-up items each, in the places that `tasks/` declares."""
    root = tmp_path / "bundle"
    for name in CORE:
        file = root / "eval_data" / TASKS[name].path
        file.parent.mkdir(parents=True, exist_ok=True)
        made = {
            "multiple_choice": {"query": "the cat sees", "choices": ["the dog", "a red house"]},
            "schema": {"context_options": ["the cat", "the dog"], "continuation": "sees a house"},
            "language_modeling": {"context": "the cat sees", "continuation": "the dog"},
        }[TASKS[name].type]
        items = [made | {"gold": i % 2} for i in range(12)]
        file.write_text("".join(json.dumps(item) + "\n" for item in items))
    return root


def train(*words):
    return base_train.main([str(word) for word in words])


def test_core_is_logged_after_the_checkpoint_it_belongs_to(base, flags, bundle, monkeypatch):
    saved = []
    run = base_train.core

    def watched(*args):
        (evaluation,) = run(*args)
        checkpoints = base / "runs" / "core" / "checkpoints"
        inner = evaluation.run
        object.__setattr__(
            evaluation,
            "run",
            lambda model: (saved.append([path.name for path in checkpoints.iterdir()]), inner(model))[1],
        )
        return [evaluation]

    monkeypatch.setattr(base_train, "core", watched)
    options = ["--core-every", 6, "--core-max-per-task", 11, "--save-every", 6, "--eval-bundle", bundle]
    assert train(*flags, "--run", "core", *options) == 0
    lines = [line for line in read_metrics(base / "runs/core/metrics.jsonl") if line["kind"] == "eval"]
    core = {line["step"]: line["core"] for line in lines if "core" in line}
    assert set(core) == {0, 6, 12}
    assert all(-1 < value < 1 for value in core.values())
    assert [sorted(names) for names in saved[1:]] == [["step_000006"], ["step_000006", "step_000012"]]
    assert "val_bpb" in lines[-1]  # what reads the last evaluation wants the validation


def test_a_bundle_that_lacks_tasks_gives_the_mean_of_those_it_has(base, flags, bundle):
    for name in CORE:
        if name not in ("copa", "winograd"):
            (bundle / "eval_data" / TASKS[name].path).unlink(missing_ok=True)
    options = ["--core-every", 12, "--eval-bundle", bundle]
    assert train(*flags, "--run", "part", *options) == 0
    lines = read_metrics(base / "runs/part/metrics.jsonl")
    assert [line["step"] for line in lines if "core_partial" in line] == [0, 12]
    assert not any("core" in line for line in lines)


def test_what_core_lacks_is_said_before_anything_is_created(base, flags, capsys):
    code = train(*flags, "--core-every", 5, "--core-max-per-task", 3, "--run", "none")
    assert code == 2
    err = capsys.readouterr().err
    assert "--core-max-per-task: got 3, takes an integer of at least 11" in err
    assert "--eval-bundle: got 'auto', but core takes a bundle" in err
    assert not (base / "runs").exists()
