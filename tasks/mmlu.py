"""MMLU: questions of 57 subjects, from school to profession (Hendrycks et al., 2021).

14 042 items of the hub's test split; asked in conversations (scripts.chat_eval).
"""

from nanogka.evaluate import HubSource, Task


def from_hub(row: dict) -> dict:
    """A row of cais/mmlu as an item."""
    return {"query": row["question"].strip(), "choices": list(row["choices"]), "gold": int(row["answer"])}


TASKS = (
    Task(
        "mmlu",
        "multiple_choice",
        chance=0.25,
        path="world_knowledge/mmlu.jsonl",
        measures="questions of 57 subjects, from school to profession",
        hub=HubSource("cais/mmlu", "all", "test", from_hub),
    ),
)
