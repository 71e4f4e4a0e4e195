"""CORE as training measures it: the mean of the centred scores, of all tasks or of those there are."""

import pytest
from evaluate_fakes import FakeModel, FakeTokenizer, write_core_bundle

from nanogka.distributed import Ranks
from nanogka.evaluate import core_evaluation, evaluate_task, open_core_tasks
from nanogka.problems import Problems
from tasks import CORE, TASKS


@pytest.mark.parametrize("name,having", [("core", CORE), ("core_partial", ("copa", "winograd"))])
def test_the_mean_over_all_tasks_or_over_those_there_are(tmp_path, name, having):
    problems, model, tokenizer = Problems(), FakeModel(), FakeTokenizer()
    bundle = write_core_bundle(tmp_path, having, TASKS)
    tasks = open_core_tasks(str(bundle), TASKS, CORE, None, problems)
    assert {data.task.name for data in tasks} == set(having)
    centered = [evaluate_task(model, tokenizer, data)[0].centered for data in tasks]
    measured = core_evaluation(tasks, CORE, tokenizer, Ranks())(model)
    assert measured == {name: pytest.approx(sum(centered) / len(having))}
    assert not problems.lines


def test_too_few_items_and_a_missing_bundle_are_problems(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    monkeypatch.delenv("NANOGKA_EVAL_BUNDLE_URL", raising=False)
    problems = Problems()
    open_core_tasks(str(write_core_bundle(tmp_path, CORE, TASKS)), TASKS, CORE, 5, problems)
    assert any("task piqa" in line and "got 5 items, takes at least 11" in line for line in problems.lines)
    assert open_core_tasks("auto", TASKS, CORE, None, problems) == []
    assert "--eval-bundle: got 'auto', but core takes a bundle: a folder, a .zip, download or hub" in problems.lines
