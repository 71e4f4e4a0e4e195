"""The declarations: CORE is the 22 tasks, asked and centered as nanochat does."""

from nanogka.evaluate.scores import PAPER_TASKS
from tasks import CHAT_TASKS, CORE, TASKS

MULTIPLE_CHOICE = {  # examples in the prompt, chance level
    "hellaswag_zeroshot": (0, 0.25), "hellaswag": (10, 0.25), "arc_easy": (10, 0.25), "arc_challenge": (10, 0.25),
    "copa": (0, 0.5), "commonsense_qa": (10, 0.2), "piqa": (10, 0.5), "openbook_qa": (0, 0.25),
    "agi_eval_lsat_ar": (3, 0.2), "boolq": (10, 0.62), "bigbench_language_identification": (10, 0.091),
}  # fmt: skip
SCHEMA = {"winograd": (0, 0.5), "winogrande": (0, 0.5)}
TEN_SHOT = "jeopardy squad bigbench_qa_wikidata bigbench_dyck_languages bigbench_cs_algorithms bigbench_operators"
LANGUAGE_MODELING = dict.fromkeys([*TEN_SHOT.split(), "bigbench_repeat_copy_logic"], (10, 0))
LANGUAGE_MODELING |= {"lambada_openai": (0, 0), "coqa": (0, 0)}


def test_core_is_22_tasks_with_their_kinds_examples_and_chance_levels():
    assert len(CORE) == len(set(CORE)) == 22
    kinds = {"multiple_choice": MULTIPLE_CHOICE, "schema": SCHEMA, "language_modeling": LANGUAGE_MODELING}
    found = {kind: {} for kind in kinds}
    for name in CORE:
        found[TASKS[name].type][name] = (TASKS[name].shots, TASKS[name].chance)
    assert found == kinds
    assert set(PAPER_TASKS) <= set(CORE)


def test_every_task_says_what_it_measures_and_where_its_data_lie():
    for name, task in (TASKS | CHAT_TASKS).items():
        assert task.name == name
        assert task.measures
        assert task.make_items or task.path.endswith(".jsonl")
