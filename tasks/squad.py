"""SQuAD: the answer to a question, word for word from a passage (Rajpurkar et al., 2016).

From the evaluation bundle.
"""

from nanogka.evaluate.task import Task

TASKS = (
    Task(
        "squad",
        "language_modeling",
        shots=10,
        chance=0.0,
        path="reading_comprehension/squad.jsonl",
        measures="finding an answer in a passage",
    ),
)
