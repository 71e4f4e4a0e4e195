"""Each of CORE's 22 tasks: naive evaluator, guessing, oracle, on made-up items and on the real bundle's.

The real bundle is used if `NANOGKA_TEST_DATA` names the folder that has `eval_bundle/`.
"""

import dataclasses
import os
from pathlib import Path

import pytest
import torch
from evaluate_fakes import FakeTokenizer, OracleModel, RandomModel, WideTokenizer, make_items, make_network
from naive_evaluator import naive_evaluate

from nanogka.evaluate import TaskData, evaluate_task, open_bundle
from nanogka.evaluate.in_context import make_questions
from nanogka.evaluate.prompts import item_order
from tasks import CORE, TASKS

DATA = os.environ.get("NANOGKA_TEST_DATA")
LENGTH = 256
SOURCES = ["made up", pytest.param("bundle", marks=pytest.mark.skipif(not DATA, reason="no NANOGKA_TEST_DATA"))]


@pytest.fixture(scope="module")
def bundle():
    return open_bundle(Path(DATA) / "eval_bundle", TASKS)


@pytest.fixture
def load(request):
    """`load(name, source)` gives a task's data."""

    def load(name, source, **changes):
        if source == "bundle":
            return request.getfixturevalue("bundle").load(name)
        items = make_items(TASKS[name].type, 12, seed=len(name))
        return TaskData(dataclasses.replace(TASKS[name], **changes), items)

    return load


@pytest.fixture(scope="module")
def networks():
    return make_network(LENGTH), make_network(LENGTH, torch.float64)


@pytest.mark.skipif(not DATA, reason="no NANOGKA_TEST_DATA")
def test_the_bundle_has_core_and_agrees_with_the_declarations(bundle):
    assert set(bundle.tasks) == set(CORE)
    assert dict(bundle.tasks) == {name: TASKS[name] for name in CORE}
    for name in CORE:
        data = bundle.load(name)
        assert len(data.items) >= 32
        assert data.chance == TASKS[name].chance


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", CORE)
def test_same_predictions_and_losses_as_the_naive_evaluator(name, source, networks, load):
    data, (model, exact) = load(name, source), networks
    task = data.task
    _, predictions = evaluate_task(model, FakeTokenizer(), data, max_items=12)
    expected = naive_evaluate(exact, FakeTokenizer(), task.type, data.items, task.shots, task.delimiter, 12, LENGTH)
    assert [p.prediction for p in predictions] == [prediction for prediction, _ in expected]
    for prediction, (_, losses) in zip(predictions, expected):
        assert prediction.losses == pytest.approx(losses, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", CORE)
def test_an_oracle_scores_one(name, source, load):
    data = load(name, source)
    order = item_order(len(data.items), 12)
    questions = make_questions(WideTokenizer(), data, order, range(12), 4096)
    right = [q.candidates[data.items[i].get("gold", 0)].tokens for i, q in zip(order, questions)]
    model = OracleModel(right, sequence_len=4096, vocab_size=2**16, width=1)
    result, _ = evaluate_task(model, WideTokenizer(), data, max_items=12)
    assert result.centered == 1.0
    assert result.unscorable == result.unaligned == 0


@pytest.mark.parametrize("name", ["copa", "winograd", "jeopardy", "bigbench_language_identification"])
def test_guessing_scores_zero_within_its_standard_error(name):
    # chance of these items: what the bundle says of three tasks is not what guessing gives, see docs/evaluation.md
    task = dataclasses.replace(TASKS[name], chance=None, shots=1)
    data = TaskData(task, make_items(task.type, 400))
    result, _ = evaluate_task(RandomModel(sequence_len=LENGTH), FakeTokenizer(), data)
    assert abs(result.centered) <= 3 * result.centered_stderr + 1e-9
