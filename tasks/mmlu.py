"""MMLU: questions of 57 subjects, from school to profession (Hendrycks et al., 2021).

14 042 items of the hub's test split; asked in conversations (scripts.chat_eval).
"""

from nanogka.evaluate.task import HubSource, Task


def from_hub(row: dict) -> dict:
    return {"query": row["question"].strip(), "choices": list(row["choices"]), "gold": int(row["answer"])}


HUB = HubSource("cais/mmlu", "all", "test", from_hub)
MEASURES = "questions of 57 subjects, from school to profession"
TASKS = (Task("mmlu", "multiple_choice", 0, 0.25, "world_knowledge/mmlu.jsonl", measures=MEASURES, hub=HUB),)
