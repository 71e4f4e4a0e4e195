"""PIQA: which of two ways of doing a household task works (Bisk et al., 2019).

1 838 items, from the evaluation bundle.
"""

from nanogka.evaluate import Task

TASKS = (
    Task(
        "piqa",
        "multiple_choice",
        shots=10,
        chance=0.5,
        path="commonsense_reasoning/piqa.jsonl",
        delimiter="\nAnswer: ",
        measures="which of two ways of doing something works",
    ),
)
