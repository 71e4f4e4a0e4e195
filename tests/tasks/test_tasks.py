"""The declarations: CORE is the 22 tasks, and chance levels are nanochat's."""

from nanogka.evaluate.scores import PAPER_TASKS
from tasks import CORE, TASKS


def test_core_is_22_tasks_and_holds_the_papers_six():
    assert len(CORE) == len(set(CORE)) == 22
    assert set(PAPER_TASKS) <= set(CORE) <= set(TASKS)


def test_every_task_says_what_it_measures_and_where_its_data_lie():
    for name, task in TASKS.items():
        assert task.name == name
        assert task.measures
        assert task.make_items or task.path.endswith(".jsonl")


def test_chance_levels_are_those_core_is_centred_with():
    assert all(task.chance == 0 for task in TASKS.values() if task.type == "language_modeling")
    odd = {"boolq": 0.62, "commonsense_qa": 0.2, "agi_eval_lsat_ar": 0.2, "bigbench_language_identification": 0.091}
    assert {name: TASKS[name].chance for name in odd} == odd
    assert TASKS["winogrande"].chance == TASKS["piqa"].chance == TASKS["copa"].chance == 0.5
