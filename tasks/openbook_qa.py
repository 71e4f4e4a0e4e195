"""OpenBookQA: elementary science, four answers a question (Mihaylov et al., 2018).

500 items, from the evaluation bundle.
"""

from nanogka.evaluate.task import Task

TASKS = (
    Task(
        "openbook_qa",
        "multiple_choice",
        shots=0,
        chance=0.25,
        path="commonsense_reasoning/openbook_qa.jsonl",
        measures="elementary science facts put to use",
    ),
)
