"""ARC: science questions of school exams (Clark et al., 2018).

2 376 easy items and 1 172 hard ones, from the evaluation bundle or the hub.
"""

from nanogka.evaluate import HubSource, Task


def from_hub(row: dict) -> dict:
    """A row of allenai/ai2_arc as an item."""
    choices = row["choices"]
    gold = choices["label"].index(row["answerKey"])
    return {"query": f"Question: {row['question']}", "choices": list(choices["text"]), "gold": gold}


TASKS = (
    Task(
        "arc_easy",
        "multiple_choice",
        shots=10,
        chance=0.25,
        path="world_knowledge/arc_easy.jsonl",
        delimiter="\nAnswer: ",
        measures="science questions of school exams",
        hub=HubSource("allenai/ai2_arc", "ARC-Easy", "test", from_hub),
    ),
    Task(
        "arc_challenge",
        "multiple_choice",
        shots=10,
        chance=0.25,
        path="world_knowledge/arc_challenge.jsonl",
        delimiter="\nAnswer: ",
        measures="science questions that retrieval and word co-occurrence get wrong",
        hub=HubSource("allenai/ai2_arc", "ARC-Challenge", "test", from_hub),
    ),
)
