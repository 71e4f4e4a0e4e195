"""COPA: the more likely cause or effect of an event, of two (Roemmele et al., 2011).

100 items, from the evaluation bundle or the hub.
"""

from nanogka.evaluate import HubSource, Task


def from_hub(row: dict) -> dict:
    """A row of SuperGLUE's COPA as an item: premise and choice become one sentence."""
    premise = row["premise"].strip().removesuffix(".")
    link = {"cause": "because", "effect": "therefore"}[row["question"]]
    choices = [row[name][:1].lower() + row[name][1:] for name in ("choice1", "choice2")]
    return {"query": f"{premise}, {link}", "choices": choices, "gold": row["label"]}


TASKS = (
    Task(
        "copa",
        "multiple_choice",
        chance=0.5,
        path="commonsense_reasoning/copa.jsonl",
        measures="the likelier cause or effect of an event",
        hub=HubSource("aps/super_glue", "copa", "validation", from_hub),
    ),
)
