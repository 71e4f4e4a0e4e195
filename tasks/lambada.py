"""LAMBADA: the last word of a passage from a book, guessable only from the whole passage (Paperno et al., 2016).

5 153 items in the form OpenAI prepared, from the evaluation bundle or the hub.
"""

from nanogka.evaluate import HubSource, Task


def from_hub(row: dict) -> dict:
    """A row of EleutherAI/lambada_openai as an item: all but the last word, and that."""
    context, continuation = row["text"].strip().rsplit(" ", 1)
    return {"context": context, "continuation": continuation}


TASKS = (
    Task(
        "lambada_openai",
        "language_modeling",
        chance=0.0,
        path="language_understanding/lambada_openai.jsonl",
        measures="the last word of a passage, from its wide context",
        hub=HubSource("EleutherAI/lambada_openai", "default", "test", from_hub),
    ),
)
