"""GSM8K: word errors of primary school whose answer is a number (Cobbe et al., 2021).

1 319 items of the hub's test split; asked in conversations (scripts.chat_eval), judged by the final number.
"""

from nanogka.evaluate.task import HubSource, Task


def from_hub(row: dict) -> dict:
    """A row of openai/gsm8k; its solution ends with `#### 72`."""
    return {"context": row["question"].strip(), "continuation": row["answer"].strip()}


HUB = HubSource("openai/gsm8k", "main", "test", from_hub)
MEASURES = "word errors of primary school, by the final number"
TASKS = (
    Task("gsm8k", "language_modeling", 0, 0.0, "symbolic_problem_solving/gsm8k.jsonl", measures=MEASURES, hub=HUB),
)
