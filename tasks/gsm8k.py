"""GSM8K: word problems of primary school whose answer is a number (Cobbe et al., 2021).

The hub's test split has 1,319 problems. A reply is judged by its final number. nanochat requires the mark `####` before
it, which a model that has learned from GSM8K writes.
"""

from nanogka.data.hub import Hub
from nanogka.evaluate.bundle import Bundle
from nanogka.evaluate.chat import ChatItem, ChatTask, final_number, majority, same_number
from tasks.common import items_of

DATASET = "openai/gsm8k"
SOLUTION_TOKENS = 512  # maximum of a reply; GSM8K's solutions have about 100


def from_row(row: dict) -> ChatItem:
    """The problem in a row of the hub; its solution ends with `#### 72`."""
    return ChatItem(row["question"], row["answer"], same_number)


def load(source: Hub | Bundle) -> ChatTask | None:
    """The test problems."""
    if not isinstance(source, Hub):
        return None
    items = items_of(source, DATASET, "main", "test", from_row)
    chance = majority([str(final_number(item.answer)) for item in items])
    return ChatTask("gsm8k", items, chance, SOLUTION_TOKENS, "word problems of primary school, by the final number")
