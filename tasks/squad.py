"""SQuAD: the answer to a question, word for word from a passage (Rajpurkar et al., 2016).

From the evaluation bundle or the hub.
"""

from nanogka.evaluate import HubSource, Task


def from_hub(row: dict) -> dict:
    """A row of rajpurkar/squad as an item; of several right answers the first."""
    context = f"Context: {row['context']}\nQuestion: {row['question'].strip()}\nAnswer:"
    return {"context": context, "continuation": row["answers"]["text"][0]}


TASKS = (
    Task(
        "squad",
        "language_modeling",
        shots=10,
        chance=0.0,
        path="reading_comprehension/squad.jsonl",
        measures="finding an answer in a passage",
        hub=HubSource("rajpurkar/squad", "", "validation", from_hub),
    ),
)
