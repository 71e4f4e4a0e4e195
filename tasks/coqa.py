"""CoQA: the last answer in a conversation about a story (Reddy et al., 2018).

7 983 items, from the evaluation bundle.
"""

from nanogka.evaluate import Task

TASKS = (
    Task(
        "coqa",
        "language_modeling",
        chance=0.0,
        path="reading_comprehension/coqa.jsonl",
        measures="answering the last of a series of questions about a story",
    ),
)
