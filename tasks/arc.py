"""ARC: science questions of school exams (Clark et al., 2018).

2 376 easy items and 1 172 hard ones, from the evaluation bundle.
"""

from nanogka.evaluate.task import Task

TASKS = (
    Task(
        "arc_easy",
        "multiple_choice",
        shots=10,
        chance=0.25,
        path="world_knowledge/arc_easy.jsonl",
        delimiter="\nAnswer: ",
        measures="science questions of school exams",
    ),
    Task(
        "arc_challenge",
        "multiple_choice",
        shots=10,
        chance=0.25,
        path="world_knowledge/arc_challenge.jsonl",
        delimiter="\nAnswer: ",
        measures="science questions that retrieval and word co-occurrence get wrong",
    ),
)
