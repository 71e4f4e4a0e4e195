"""The benchmark compares like with like: both ways give the same answers, and its numbers add up."""

import pytest
from evaluate_fakes import FakeTokenizer, make_items, make_network

from nanogka.bench.evaluate import compare, table, total
from nanogka.evaluate import Task, TaskData
from nanogka.evaluate.task import TYPES


def test_both_ways_give_the_same_predictions_and_are_summed_up():
    model = make_network(256).eval()
    found = []
    for type_ in TYPES:
        data = TaskData(Task(type_, type_, shots=2), make_items(type_, 9))
        found.append(compare(model, FakeTokenizer(), data, 9, usual_first=len(found) % 2 == 0))
    overall = total(found)
    assert overall["items"] == 27
    assert overall["different"] == 0
    assert overall["largest_gap"] < 1e-5
    assert overall["seconds"] == pytest.approx(sum(c["seconds"] for c in found))
    assert table(found).count("\n") == 4
