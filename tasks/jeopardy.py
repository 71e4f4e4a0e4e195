"""Jeopardy: quiz clues, the answer in full; 2 117 items, from the evaluation bundle."""

from nanogka.evaluate import Task

TASKS = (
    Task(
        "jeopardy",
        "language_modeling",
        shots=10,
        chance=0.0,
        path="world_knowledge/jeopardy_all.jsonl",
        delimiter="\nAnswer: ",
        measures="knowledge of history, literature, words and science",
    ),
)
