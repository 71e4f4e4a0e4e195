"""Finished tasks on disk: never a stale one.

`tests/scripts/test_base_eval.py` repeats an evaluation, alone and after two ranks; `tests/attack` kills it.
"""

import dataclasses

import pytest
import torch
from evaluate_fakes import FakeModel, FakeTokenizer, make_items

from nanogka.evaluate import in_context
from nanogka.evaluate.in_context import ResultsCache, evaluate_tasks
from nanogka.evaluate.task import TYPES, Task, TaskData

TASKS = [TaskData(Task(f"task/{type_}", type_, shots=2), make_items(type_, 30)) for type_ in TYPES]
SETTINGS = {"weights": "abc"}


@pytest.fixture(autouse=True)
def five_chunks_per_task(monkeypatch):
    monkeypatch.setattr(in_context, "ITEMS_PER_CHUNK", 7)


def run(tasks=TASKS, model=None, **options):
    """Results without their times, and predictions."""
    done = evaluate_tasks(model or FakeModel(), FakeTokenizer(), tasks, **options)
    return [(dataclasses.replace(result, seconds=0), predictions) for result, predictions in done]


def test_nothing_stale_is_ever_found(tmp_path):
    data = TASKS[0]
    run([data], cache=ResultsCache(tmp_path, SETTINGS))
    others = [
        dataclasses.replace(data, items=[*data.items[:-1], data.items[0]]),
        dataclasses.replace(data, task=dataclasses.replace(data.task, shots=3)),
        dataclasses.replace(data, lines=range(2, 32)),
    ]
    cache = ResultsCache(tmp_path, SETTINGS)
    assert len(cache.load(data, 30)) == 5
    assert not cache.load(data, 29)
    assert not any(cache.load(other, 30) for other in others)
    assert not ResultsCache(tmp_path, {"weights": "abd"}).load(data, 30)
    assert not ResultsCache(tmp_path, SETTINGS, read=False).load(data, 30)


def test_losses_that_are_not_finite_survive_the_cache(tmp_path, monkeypatch):
    model = FakeModel()
    model.head.weight.data.fill_(torch.nan)
    first = run(TASKS[:1], model, cache=ResultsCache(tmp_path, SETTINGS))
    monkeypatch.setattr(in_context, "evaluate_chunk", None)
    assert repr(run(TASKS[:1], model, cache=ResultsCache(tmp_path, SETTINGS))) == repr(first)
