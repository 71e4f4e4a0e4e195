"""BoolQ: a passage and a yes/no question (Clark et al., 2019); 3 270 items, from the evaluation bundle.

Chance is the share of the commoner answer, 62 %.
"""

from nanogka.evaluate.task import Task

TASKS = (
    Task(
        "boolq",
        "multiple_choice",
        shots=10,
        chance=0.62,
        path="reading_comprehension/boolq.jsonl",
        delimiter="\nAnswer: ",
        measures="yes/no questions about a passage",
    ),
)
