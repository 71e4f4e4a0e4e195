"""Stopping and going on, with however many ranks: the same result to the last bit, and never a stale one."""

import dataclasses

import pytest
import torch
from evaluate_fakes import FakeModel, FakeTokenizer, make_items

from nanogka.distributed import Ranks
from nanogka.evaluate import Task, TaskData, evaluate_tasks, in_context
from nanogka.evaluate.results_cache import ResultsCache, task_key
from nanogka.evaluate.task import TYPES

TASKS = [TaskData(Task(f"task_{type_}", type_, shots=2), make_items(type_, 30)) for type_ in TYPES]
SETTINGS = {"weights": "abc"}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(in_context, "ITEMS_PER_CHUNK", 7)


def run(model=None, **options):
    """Results without their times, and predictions."""
    done = evaluate_tasks(model or FakeModel(), FakeTokenizer(), TASKS, **options)
    return [(dataclasses.replace(result, seconds=0), predictions) for result, predictions in done]


class LonelyRanks(Ranks):
    """One of several ranks, whose others send nothing."""

    def gather(self, value):
        return [value, {}]


class KilledError(BaseException):
    """The end of the process, as far as the evaluation is concerned."""


@pytest.mark.parametrize("damage", ["none", "cut short", "flipped byte"])
def test_a_stopped_evaluation_goes_on_and_notices_damage(tmp_path, monkeypatch, damage):
    expected, calls, chunk = run(), [], in_context.evaluate_chunk

    def dies_at_the_ninth(*args, **kwargs):
        calls.append(args[2].task.name)
        if len(calls) == 9:
            raise KilledError
        return chunk(*args, **kwargs)

    monkeypatch.setattr(in_context, "evaluate_chunk", dies_at_the_ninth)
    with pytest.raises(KilledError):
        run(cache=ResultsCache(tmp_path, SETTINGS))
    (file,) = tmp_path.glob("*/rank0.jsonl")
    content = bytearray(file.read_bytes())
    if damage == "cut short":  # killed in the middle of a line
        del content[-40:]
    elif damage == "flipped byte":
        content[content.index(b"0.") + 3] ^= 1  # a digit of a loss: still good JSON
    file.write_bytes(content)
    cache = ResultsCache(tmp_path, SETTINGS)
    assert run(cache=cache) == expected
    repeated = int(damage != "none")
    assert cache.damaged == int(damage == "flipped byte")
    assert cache.reused == 8 - repeated
    assert len(calls) == 9 + 15 - 8 + repeated
    assert run(cache=ResultsCache(tmp_path, SETTINGS)) == expected
    assert len(calls) == 9 + 15 - 8 + repeated


def test_the_chunks_of_several_ranks_serve_one(tmp_path):
    for rank in (0, 1):
        cache = ResultsCache(tmp_path, SETTINGS, rank)
        with pytest.raises(KeyError):  # the other rank's part never came
            run(ranks=LonelyRanks(rank, rank, 2), cache=cache)
    cache = ResultsCache(tmp_path, SETTINGS)
    assert run(cache=cache) == run()
    assert cache.reused == 15


def test_nothing_stale_is_ever_found(tmp_path):
    data = TASKS[0]
    run(cache=ResultsCache(tmp_path, SETTINGS))
    other_items = dataclasses.replace(data, items=[*data.items[:-1], data.items[0]])
    other_shots = dataclasses.replace(data, task=dataclasses.replace(data.task, shots=3))
    cache = ResultsCache(tmp_path, SETTINGS)
    keys = {task_key(data, 30), task_key(data, 29), task_key(other_items, 30), task_key(other_shots, 30)}
    assert len(keys) == 4
    assert [cache.find(key, 0) is not None for key in keys].count(True) == 1
    assert ResultsCache(tmp_path, {"weights": "abd"}).find(task_key(data, 30), 0) is None
    assert ResultsCache(tmp_path, SETTINGS, anew=True).find(task_key(data, 30), 0) is None


def test_losses_that_are_not_finite_survive_the_cache(tmp_path):
    model = FakeModel()
    model.head.weight.data.fill_(torch.nan)
    first = evaluate_tasks(model, FakeTokenizer(), TASKS[:1], cache=ResultsCache(tmp_path, SETTINGS))
    cache = ResultsCache(tmp_path, SETTINGS)
    second = evaluate_tasks(model, FakeTokenizer(), TASKS[:1], cache=cache)
    assert cache.reused == 5
    assert repr(first[0][1]) == repr(second[0][1])
