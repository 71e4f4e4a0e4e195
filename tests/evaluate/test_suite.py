"""Sharing items over ranks, stopping and going on: the same result to the last bit, and never a stale one."""

import dataclasses
import threading

import pytest
import torch
from evaluate_fakes import FakeModel, FakeTokenizer, make_items

from nanogka.evaluate import Task, TaskData, evaluate_tasks, suite
from nanogka.evaluate.journal import Journal, task_key
from nanogka.evaluate.task import TYPES

TASKS = [TaskData(Task(f"task_{type_}", type_, shots=2), make_items(type_, 30)) for type_ in TYPES]
SETTINGS = {"weights": "abc"}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(suite, "ITEMS_PER_CHUNK", 7)


def run(model=None, **options):
    """Results without their times, and predictions."""
    done = evaluate_tasks(model or FakeModel(), FakeTokenizer(), TASKS, **options)
    return [(dataclasses.replace(result, seconds=0), predictions) for result, predictions in done]


class ThreadRanks:
    """Ranks that are threads of this process."""

    def __init__(self, rank, world_size, barrier, values):
        self.rank, self.world_size, self._barrier, self._values = rank, world_size, barrier, values

    def gather(self, value):
        self._values[self.rank] = value
        self._barrier.wait(timeout=60)
        return list(self._values)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_give_exactly_the_result_of_one(world_size):
    computed = [0] * world_size
    barrier, values, found = threading.Barrier(world_size), [None] * world_size, [None] * world_size

    models = [FakeModel() for _ in range(world_size)]  # made one by one: their seed is the whole process's

    def work(rank):
        found[rank] = run(models[rank], ranks=ThreadRanks(rank, world_size, barrier, values))
        computed[rank] = sum(len(predictions) for predictions, _ in values[rank].values())

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = run()
    assert all(one == expected for one in found)
    assert sum(computed) == 90
    assert min(computed) >= 90 // world_size - 7


class Killed(BaseException):
    """The end of the process, as far as the evaluation is concerned."""


@pytest.mark.parametrize("cut", [None, -40])
def test_a_stopped_evaluation_goes_on_without_repeating_anything(tmp_path, monkeypatch, cut):
    expected, calls, chunk = run(), [], suite.evaluate_chunk

    def dies_at_the_ninth(*args, **kwargs):
        calls.append(args[2].task.name)
        if len(calls) == 9:
            raise Killed
        return chunk(*args, **kwargs)

    monkeypatch.setattr(suite, "evaluate_chunk", dies_at_the_ninth)
    with pytest.raises(Killed):
        run(journal=Journal(tmp_path, SETTINGS))
    (file,) = tmp_path.glob("*/rank0.jsonl")
    if cut:  # killed in the middle of a line
        file.write_bytes(file.read_bytes()[:cut])
    journal = Journal(tmp_path, SETTINGS)
    assert run(journal=journal) == expected
    repeated = 1 if cut else 0
    assert journal.reused == 8 - repeated
    assert len(calls) == 9 + 15 - 8 + repeated
    assert "task_multiple_choice" not in calls[9:]
    assert run(journal=Journal(tmp_path, SETTINGS)) == expected
    assert len(calls) == 9 + 15 - 8 + repeated


def test_what_one_rank_left_serves_two_and_the_other_way_round(tmp_path):
    expected = run(journal=Journal(tmp_path, SETTINGS))
    for rank in (0, 1):
        journal = Journal(tmp_path, SETTINGS, rank)
        barrier, values = threading.Barrier(1), [{}, {}]
        ranks = ThreadRanks(rank, 2, barrier, values)
        with pytest.raises(KeyError):  # the other rank's part never came
            evaluate_tasks(FakeModel(), FakeTokenizer(), TASKS, ranks=ranks, journal=journal)
        assert journal.reused == len(values[rank]) > 6
    journal = Journal(tmp_path, SETTINGS)
    assert run(journal=journal) == expected
    assert journal.reused == 15


def test_nothing_stale_is_ever_found(tmp_path):
    data = TASKS[0]
    run(journal=Journal(tmp_path, SETTINGS))
    other_items = dataclasses.replace(data, items=[*data.items[:-1], data.items[0]])
    other_shots = dataclasses.replace(data, task=dataclasses.replace(data.task, shots=3))
    journal = Journal(tmp_path, SETTINGS)
    keys = {task_key(data, 30), task_key(data, 29), task_key(other_items, 30), task_key(other_shots, 30)}
    assert len(keys) == 4
    assert [journal.find(key, 0) is not None for key in keys].count(True) == 1
    assert Journal(tmp_path, {"weights": "abd"}).find(task_key(data, 30), 0) is None
    assert Journal(tmp_path, SETTINGS, anew=True).find(task_key(data, 30), 0) is None


def test_losses_that_are_not_finite_survive_the_journal(tmp_path):
    model = FakeModel()
    model.head.weight.data.fill_(torch.nan)
    first = evaluate_tasks(model, FakeTokenizer(), TASKS[:1], journal=Journal(tmp_path, SETTINGS))
    journal = Journal(tmp_path, SETTINGS)
    second = evaluate_tasks(model, FakeTokenizer(), TASKS[:1], journal=journal)
    assert journal.reused == 5
    assert repr(first[0][1]) == repr(second[0][1])
