"""The tasks of scripts.induction: copying is always right, guessing is at chance; models learn them."""

import json

import pytest
import torch
import yaml
from study_fakes import GRID

from nanogka.study.induction import accuracy, draw_recall, draw_repeats
from nanogka.study.induction_run import Induction
from scripts import induction

TASKS = {
    "repeat": lambda rows, generator: draw_repeats(rows, 12, 20, generator),
    "recall": lambda rows, generator: draw_recall(rows, 5, 20, generator),
}


def copy(ids):
    """The token that followed the current one when it came before."""
    predicted = torch.zeros_like(ids)
    for row, tokens in enumerate(ids.tolist()):
        followed = {}
        for at, token in enumerate(tokens):
            predicted[row, at] = followed.get(token, 0)
            if at + 1 < len(tokens):
                followed[token] = tokens[at + 1]
    return predicted


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("task", TASKS)
def test_copying_is_always_right(task, generator):
    assert accuracy(copy, TASKS[task](200, generator)) == 1.0


@pytest.mark.parametrize("task", TASKS)
def test_guessing_among_what_is_possible_is_at_chance(task, generator):
    batch = TASKS[task](4000, generator)
    scored = batch.targets >= 0
    possible = [set(row[mask].tolist()) for row, mask in zip(batch.targets, scored)]

    def guess(ids):
        predicted = torch.zeros_like(ids)
        for row, tokens in enumerate(possible):
            choices = torch.tensor(sorted(tokens))
            predicted[row] = choices[torch.randint(len(choices), ids.shape[1:], generator=generator)]
        return predicted

    assert accuracy(guess, batch) == pytest.approx(batch.chance, rel=0.05)


SMALL = "--length 4 --pairs 2,4 --vocab-size 16 --width 32 --head-dim 32 --batch-tokens 256 --lr-scales 1"
SMALL += " --seeds 1 --device cpu --dtype float32"


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump(GRID))
    return str(path)


def test_families_are_tried_once_and_shown(grid, tmp_path, capsys, monkeypatch):
    words = [grid, *SMALL.split(), "--depths", "2", "--steps", "40", "--only", "baseline", "--vocab-size", "41"]
    assert induction.main(words) == 0
    printed = capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "grid-induction.jsonl").read_text().splitlines()]
    assert [(row["task"], row["family"], list(row["accuracy"])) for row in rows] == [
        ("repeat", "baseline", ["4"]),
        ("recall", "baseline", ["2", "4"]),
    ]
    assert rows[0]["accuracy"]["4"] > 1.5 * rows[0]["chance"]["4"]  # it has learned something
    assert f"| repeat | dot product | 2 | 4 | {100 * rows[0]['accuracy']['4']:.1f} (" in printed
    assert all((tmp_path / f"grid-induction-{task}.png").stat().st_size > 10_000 for task in TASKS)
    monkeypatch.setattr("nanogka.study.induction_run.run_trial", None)  # nothing is tried any more
    assert induction.main(words) == 0


COSTS = {"flops_per_token": 1, "step_seconds": 0.0}
RATES = {"baseline": 1, "gka": 3, "wide": 0.3}  # the last has its own


def test_the_best_rate_at_the_greatest_depth_is_taken(grid, tmp_path, monkeypatch):
    def run_trial(trial, device):
        right = trial.settings.lr_scale == (3 if trial.settings.attention == "gaussian" else 1)
        values = {size: float(right) for size in trial.sizes}
        return {"accuracy": values, "chance": values, "loss": 1.0, "seconds": 0.0} | COSTS

    monkeypatch.setattr("nanogka.study.induction_run.run_trial", run_trial)
    words = [grid, *SMALL.split(), "--lr-scales", "1,3", "--depths", "1,2", "--tasks", "repeat"]
    seen = []
    run = Induction.run
    monkeypatch.setattr(Induction, "run", lambda self: seen.extend(run(self)) or seen)
    assert induction.main(words) == 0
    rates = {(row["family"], row["depth"]): row["lr_scale"] for row in seen}
    assert rates == {(name, depth): rate for name, rate in RATES.items() for depth in (1, 2)}


def test_settings_that_do_not_fit_together_are_named(grid, capsys):
    assert induction.main([grid, "--pairs", "4,400"]) == 2
    assert "--pairs: got 400, expected integers from 1 to half the vocabulary, 64" in capsys.readouterr().err
