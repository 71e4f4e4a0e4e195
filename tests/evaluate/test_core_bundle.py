"""All 22 tasks of the real bundle, where `NANOGKA_TEST_DATA` names the folder that has `eval_bundle/`."""

import itertools
import os
from pathlib import Path

import pytest
from evaluate_fakes import FakeModel, FakeTokenizer, OracleModel, WideTokenizer
from naive_evaluator import naive_evaluate

from nanogka.evaluate import evaluate_task, open_bundle
from nanogka.evaluate.in_context import make_questions
from nanogka.evaluate.prompts import item_order
from tasks import CORE, TASKS

DATA = os.environ.get("NANOGKA_TEST_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="NANOGKA_TEST_DATA is not set")

ITEMS = 12
SEQUENCE_LEN = 4096


@pytest.fixture(scope="module")
def bundle():
    return open_bundle(Path(DATA) / "eval_bundle", TASKS)


def test_the_bundle_has_core_and_agrees_with_the_declarations(bundle):
    assert set(bundle.tasks) == set(CORE)
    assert dict(bundle.tasks) == TASKS


@pytest.mark.parametrize("name", CORE)
def test_every_item_of_every_task_is_well_formed(bundle, name):
    data = bundle.load(name)
    assert len(data.items) >= 32
    assert data.chance == TASKS[name].chance


@pytest.mark.parametrize("name", CORE)
def test_an_oracle_scores_one(bundle, name):
    data = bundle.load(name)
    order = item_order(len(data.items), ITEMS)
    questions = make_questions(WideTokenizer(), data, order, range(ITEMS), SEQUENCE_LEN)
    right = [q.candidates[data.items[i].get("gold", 0)].tokens for i, q in zip(order, questions)]
    model = OracleModel(right, sequence_len=SEQUENCE_LEN, vocab_size=2**16, width=1)
    result, _ = evaluate_task(model, WideTokenizer(), data, max_items=ITEMS)
    assert result.centered == 1.0
    assert result.unscorable == result.unaligned == 0


@pytest.mark.parametrize("name", CORE)
def test_same_predictions_as_the_naive_evaluator(bundle, name):
    data, task = bundle.load(name), bundle.tasks[name]
    model = FakeModel(sequence_len=256, width=8).double()
    _, predictions = evaluate_task(model, FakeTokenizer(), data, max_items=ITEMS)
    expected = naive_evaluate(model, FakeTokenizer(), task.type, data.items, task.shots, task.delimiter, ITEMS, 256)
    assert [p.prediction for p in predictions] == [prediction for prediction, _ in expected]
    ours = itertools.chain.from_iterable(p.losses for p in predictions)
    theirs = itertools.chain.from_iterable(losses for _, losses in expected)
    assert list(ours) == pytest.approx(list(theirs), abs=1e-10)
