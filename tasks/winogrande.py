"""Winograd schemas: what a pronoun stands for, which only knowledge of the world decides.

Winograd (Levesque et al., 2012; 273 items) and WinoGrande (Sakaguchi et al., 2019; 1 267 items), from the evaluation
bundle (WinoGrande from the hub too). Two beginnings with the pronoun resolved either way; the shared ending is scored
under each.
"""

from nanogka.evaluate import HubSource, Task


def from_hub(row: dict) -> dict:
    """A row of allenai/winogrande as an item: each option put in the gap, the sentence cut after it."""
    before, after = row["sentence"].split("_")
    options = [before + row[name] for name in ("option1", "option2")]
    return {"context_options": options, "continuation": after.strip(), "gold": int(row["answer"]) - 1}


TASKS = (
    Task(
        "winograd",
        "schema",
        chance=0.5,
        path="language_understanding/winograd_wsc.jsonl",
        measures="what a pronoun stands for, by common sense",
    ),
    Task(
        "winogrande",
        "schema",
        chance=0.5,
        path="language_understanding/winogrande.jsonl",
        measures="what a pronoun stands for, with word association filtered out",
        hub=HubSource("allenai/winogrande", "winogrande_xl", "validation", from_hub),
    ),
)
