"""Stopping and going on, with however many ranks: the same result to the last bit, and never a stale one."""

import dataclasses

import pytest
import torch
from evaluate_fakes import FakeModel, FakeTokenizer, make_items

from nanogka.distributed import Ranks
from nanogka.evaluate import Task, TaskData, evaluate_tasks, in_context
from nanogka.evaluate.in_context import ResultsCache
from nanogka.evaluate.task import TYPES

TASKS = [TaskData(Task(f"task/{type_}", type_, shots=2), make_items(type_, 30)) for type_ in TYPES]
SETTINGS = {"weights": "abc"}


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """The tasks of the chunks that were scored; the ninth is interrupted."""
    made, chunk = [], in_context.evaluate_chunk

    def count(*args):
        made.append(args[2].task.name)
        if len(made) == 9:
            raise KeyboardInterrupt
        return chunk(*args)

    monkeypatch.setattr(in_context, "ITEMS_PER_CHUNK", 7)  # five chunks per task
    monkeypatch.setattr(in_context, "evaluate_chunk", count)
    return made


def run(tasks=TASKS, model=None, **options):
    """Results without their times, and predictions."""
    done = evaluate_tasks(model or FakeModel(), FakeTokenizer(), tasks, **options)
    return [(dataclasses.replace(result, seconds=0), predictions) for result, predictions in done]


@pytest.mark.parametrize("damage", [None, "cut short", "another's"])
def test_a_stopped_evaluation_keeps_finished_tasks_and_goes_on(tmp_path, calls, capsys, damage):
    with pytest.raises(KeyboardInterrupt):  # in the second task
        run(cache=ResultsCache(tmp_path, SETTINGS))
    (file,) = tmp_path.iterdir()
    if damage == "cut short":
        file.write_bytes(file.read_bytes()[:-40])
    elif damage:
        file.write_text(file.read_text().replace('"key": "', '"key": "x'))
    assert run(cache=(cache := ResultsCache(tmp_path, SETTINGS))) == run()
    assert cache.reused == ([] if damage else [TASKS[0].task.name])
    assert ("damaged, not used" in capsys.readouterr().out) == bool(damage)
    before = len(calls)
    assert run(cache=ResultsCache(tmp_path, SETTINGS)) == run(cache=ResultsCache(tmp_path, SETTINGS))
    assert len(calls) == before


def test_the_results_of_several_ranks_serve_one(tmp_path, calls):
    class LonelyRanks(Ranks):
        """One of several ranks, whose others send nothing."""

        def gather(self, value):
            return [value, {}]

    calls += [""] * 9  # no interruption
    for rank in (0, 1):
        with pytest.raises(KeyError):  # the other rank's part never came
            run(ranks=LonelyRanks(rank, rank, 2), cache=ResultsCache(tmp_path, SETTINGS, rank))
    assert len(list(tmp_path.iterdir())) == 6
    before = len(calls)
    found = run(cache=ResultsCache(tmp_path, SETTINGS))
    assert len(calls) == before
    assert found == run()


def test_nothing_stale_is_ever_found(tmp_path, calls):
    data = TASKS[0]
    run([data], cache=ResultsCache(tmp_path, SETTINGS))
    shots = dataclasses.replace(data.task, shots=3)
    others = [
        dataclasses.replace(data, items=[*data.items[:-1], data.items[0]]),
        dataclasses.replace(data, task=shots),
        dataclasses.replace(data, lines=range(2, 32)),
    ]
    cache = ResultsCache(tmp_path, SETTINGS)
    assert len(cache.load(data, 30)) == 5
    assert not cache.load(data, 29)
    assert not any(cache.load(other, 30) for other in others)
    assert not ResultsCache(tmp_path, {"weights": "abd"}).load(data, 30)
    assert not ResultsCache(tmp_path, SETTINGS, read=False).load(data, 30)


def test_losses_that_are_not_finite_survive_the_cache(tmp_path):
    model = FakeModel()
    model.head.weight.data.fill_(torch.nan)
    first = run(TASKS[:1], model, cache=ResultsCache(tmp_path, SETTINGS))
    second = run(TASKS[:1], model, cache=(cache := ResultsCache(tmp_path, SETTINGS)))
    assert cache.reused
    assert repr(first) == repr(second)
