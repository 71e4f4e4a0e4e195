"""HellaSwag: which of four endings follows a description of an everyday scene (Zellers et al., 2019).

10 042 items of the validation set, from the evaluation bundle or the hub; asked without and with ten examples.
"""

import re

from nanogka.evaluate import HubSource, Task

MEASURES = "which of four endings follows a description of an everyday scene"
PATH = "language_understanding/hellaswag.jsonl"


def _clean(text: str) -> str:
    """Without the marks of the WikiHow pages the text was taken from: [header], [title], [step]."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ").strip()


def from_hub(row: dict) -> dict:
    """A row of Rowan/hellaswag as an item."""
    scene = f"{row['ctx_a']} {row['ctx_b'].capitalize()}"
    endings = [_clean(ending) for ending in row["endings"]]
    return {"query": _clean(f"{row['activity_label']}: {scene}"), "choices": endings, "gold": int(row["label"])}


HUB = HubSource("Rowan/hellaswag", "", "validation", from_hub)

TASKS = (
    Task("hellaswag_zeroshot", "multiple_choice", chance=0.25, path=PATH, measures=MEASURES, hub=HUB),
    Task("hellaswag", "multiple_choice", shots=10, chance=0.25, path=PATH, measures=MEASURES, hub=HUB),
)
