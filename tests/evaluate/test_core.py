"""CORE: each of its 22 tasks on the real bundle (if `NANOGKA_TEST_DATA` names the folder that has `eval_bundle/`), and
its mean as training measures it."""

import os
from pathlib import Path

import pytest
import torch
from evaluate_fakes import FakeModel, FakeTokenizer, make_network, write_core_bundle
from naive_evaluator import check_against_naive

from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.evaluate.bundle import open_bundle
from nanogka.evaluate.in_context import core_evaluation, evaluate_task
from nanogka.evaluate.sources import open_core_tasks
from tasks import CORE, TASKS

DATA = os.environ.get("NANOGKA_TEST_DATA")
LENGTH = 256
needs_bundle = pytest.mark.skipif(not DATA, reason="no NANOGKA_TEST_DATA")


@pytest.fixture(scope="module")
def bundle():
    return open_bundle(Path(DATA) / "eval_bundle", TASKS)


@pytest.fixture(scope="module")
def networks():
    return make_network(LENGTH), make_network(LENGTH, torch.float64)


@needs_bundle
def test_the_bundle_has_core_and_agrees_with_the_declarations(bundle):
    assert dict(bundle.tasks) == {name: TASKS[name] for name in CORE}
    for name in CORE:
        data = bundle.load(name)
        assert len(data.items) >= 32
        assert data.chance == TASKS[name].chance


@needs_bundle
@pytest.mark.parametrize("name", CORE)
def test_same_predictions_and_losses_as_the_naive_evaluator(name, networks, bundle):
    data, (model, exact) = bundle.load(name), networks
    _, predictions = evaluate_task(model, FakeTokenizer(), data, max_items=12)
    check_against_naive(predictions, exact, FakeTokenizer(), data, 1e-5, 12, LENGTH)


@pytest.mark.parametrize("name,having", [("core", CORE), ("core_partial", ("copa", "winograd"))])
def test_the_mean_in_training_is_over_all_tasks_or_over_those_there_are(tmp_path, name, having):
    errors, model, tokenizer = Errors(), FakeModel(), FakeTokenizer()
    bundle = write_core_bundle(tmp_path, having, TASKS)
    tasks = open_core_tasks(str(bundle), TASKS, CORE, None, errors)
    assert {data.task.name for data in tasks} == set(having)
    centered = [evaluate_task(model, tokenizer, data)[0].centered for data in tasks]
    measured = core_evaluation(tasks, CORE, tokenizer, Ranks())(model)
    assert measured == {name: pytest.approx(sum(centered) / len(having))}
    assert not errors.lines


def test_too_few_items_and_a_missing_bundle_are_problems(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    monkeypatch.delenv("NANOGKA_EVAL_BUNDLE_URL", raising=False)
    errors = Errors()
    open_core_tasks(str(write_core_bundle(tmp_path, CORE, TASKS)), TASKS, CORE, 5, errors)
    assert any("task piqa" in line and "got 5 items, expected at least 11" in line for line in errors.lines)
    assert open_core_tasks("auto", TASKS, CORE, None, errors) == []
    assert "--eval-bundle: got 'auto', but core takes a bundle: a folder, a .zip or download" in errors.lines
