"""BoolQ: a passage and a yes/no question (Clark et al., 2019); 3 270 items, from the evaluation bundle or the hub.

Chance is the share of the commoner answer, 62 %.
"""

from nanogka.evaluate import HubSource, Task


def from_hub(row: dict) -> dict:
    """A row of google/boolq as an item."""
    query = f"Passage: {row['passage']}\nQuestion: {row['question']}?"
    return {"query": query, "choices": ["no", "yes"], "gold": int(row["answer"])}


TASKS = (
    Task(
        "boolq",
        "multiple_choice",
        shots=10,
        chance=0.62,
        path="reading_comprehension/boolq.jsonl",
        delimiter="\nAnswer: ",
        measures="yes/no questions about a passage",
        hub=HubSource("google/boolq", "", "validation", from_hub),
    ),
)
