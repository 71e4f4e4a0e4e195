"""OpenBookQA: elementary science, four answers per question (Mihaylov et al., 2018).

500 items, from the evaluation bundle or the hub.
"""

from nanogka.evaluate import HubSource, Task


def from_hub(row: dict) -> dict:
    """A row of allenai/openbookqa as an item."""
    choices = row["choices"]
    gold = choices["label"].index(row["answerKey"].strip())
    return {"query": row["question_stem"], "choices": list(choices["text"]), "gold": gold}


TASKS = (
    Task(
        "openbook_qa",
        "multiple_choice",
        chance=0.25,
        path="commonsense_reasoning/openbook_qa.jsonl",
        measures="elementary science facts put to use",
        hub=HubSource("allenai/openbookqa", "main", "test", from_hub),
    ),
)
