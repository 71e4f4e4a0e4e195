"""LAMBADA: the last word of a passage from a book, guessable only from the whole passage (Paperno et al., 2016).

5 153 items in the form OpenAI prepared, from the evaluation bundle.
"""

from nanogka.evaluate.task import Task

TASKS = (
    Task(
        "lambada_openai",
        "language_modeling",
        shots=0,
        chance=0.0,
        path="language_understanding/lambada_openai.jsonl",
        measures="the last word of a passage, from its wide context",
    ),
)
