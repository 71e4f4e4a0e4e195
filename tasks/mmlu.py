"""MMLU: questions of 57 subjects, from school to profession (Hendrycks et al., 2021).

The hub's test split has 14,042 questions.
"""

from nanogka.data.hub import Hub
from nanogka.evaluate.bundle import Bundle
from nanogka.evaluate.chat import ChatItem, ChatTask, letter_item, letter_task
from tasks.common import items_of

DATASET = "cais/mmlu"


def from_row(row: dict) -> ChatItem:
    """The question in a row of the hub."""
    return letter_item(row["question"], row["choices"], int(row["answer"]))


def load(source: Hub | Bundle) -> ChatTask | None:
    """The test questions."""
    if not isinstance(source, Hub):
        return None
    measures = "questions of 57 subjects, from school to profession"
    return letter_task("mmlu", items_of(source, DATASET, "all", "test", from_row), measures)
