"""Each of the 22 tasks as `tasks/` declares it, on made-up items: naive evaluator, guessing, oracle.

The same on the real items is in `test_core_bundle` and `test_core_trained`, where the bundle is at hand.
"""

import dataclasses

import pytest
import torch
from evaluate_fakes import FakeTokenizer, OracleModel, RandomModel, make_items, make_network
from naive_evaluator import naive_evaluate

from nanogka.evaluate import TaskData, evaluate_task
from nanogka.evaluate.in_context import make_questions
from nanogka.evaluate.prompts import item_order
from nanogka.model.kv_cache import DecodeCache
from tasks import CORE, TASKS

LENGTH = 512


def made_up(name, count, **changes):
    """The task with made-up items of its type."""
    return TaskData(dataclasses.replace(TASKS[name], **changes), make_items(TASKS[name].type, count, seed=len(name)))


@pytest.fixture(scope="module")
def networks():
    return make_network(LENGTH), make_network(LENGTH, torch.float64)


@pytest.mark.parametrize("name", CORE)
def test_same_predictions_and_losses_as_the_naive_evaluator(name, networks):
    data, (model, exact) = made_up(name, 12), networks
    _, predictions = evaluate_task(model, FakeTokenizer(), data, new_cache=DecodeCache)
    task = data.task
    expected = naive_evaluate(exact, FakeTokenizer(), task.type, data.items, task.shots, task.delimiter, None, LENGTH)
    assert [p.prediction for p in predictions] == [prediction for prediction, _ in expected]
    for prediction, (_, losses) in zip(predictions, expected):
        assert prediction.losses == pytest.approx(losses, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", CORE)
def test_guessing_scores_zero_within_its_standard_error(name):
    # chance of these items: what the bundle says of three tasks is not what guessing gives, see docs/evaluation.md
    data = made_up(name, 600, chance=None, shots=min(TASKS[name].shots, 1))
    result, _ = evaluate_task(RandomModel(sequence_len=LENGTH), FakeTokenizer(), data)
    assert abs(result.centered) <= 3 * result.centered_stderr + 1e-9


@pytest.mark.parametrize("name", CORE)
def test_an_oracle_scores_one(name):
    data = made_up(name, 20)
    order = item_order(20)
    questions = make_questions(FakeTokenizer(), data, order, range(20), LENGTH)
    right = [q.candidates[data.items[i].get("gold", 0)].tokens for i, q in zip(order, questions)]
    result, _ = evaluate_task(OracleModel(right, sequence_len=LENGTH), FakeTokenizer(), data)
    assert result.centered == 1.0
