"""Finished tasks on disk, with however many ranks: the same result to the last bit, and never a stale one.

`tests/attack/test_kill.py` stops an evaluation at each of its chunks, and damages a file.
"""

import dataclasses

import pytest
import torch
from evaluate_fakes import FakeModel, FakeTokenizer, make_items

from nanogka.distributed import Ranks
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


def test_the_results_of_several_ranks_serve_one(tmp_path, monkeypatch):
    class LonelyRanks(Ranks):
        """One of several ranks, whose others send nothing."""

        def gather(self, value):
            return [value, {}]

    expected = run()
    for rank in (0, 1):
        with pytest.raises(KeyError):  # the other rank's part never came
            run(ranks=LonelyRanks(rank, rank, 2), cache=ResultsCache(tmp_path, SETTINGS, rank))
    assert len(list(tmp_path.iterdir())) == 6
    monkeypatch.setattr(in_context, "evaluate_chunk", None)  # nothing is scored any more
    assert run(cache=(cache := ResultsCache(tmp_path, SETTINGS))) == expected
    assert cache.reused == [data.task.name for data in TASKS]


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
