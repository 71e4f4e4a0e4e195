"""GSM8K: primary-school word problems whose answer is a number (Cobbe et al., 2021).

The hub's test split has 1,319 problems, its train split 7,473. In a solution, `<<12*3=36>>` marks a calculation. For
training, it becomes a call of the calculator, as in nanochat. A reply is judged by its final number. nanochat also
requires the mark `####` before that number, which models trained on GSM8K write.
"""

import re

from nanogka.data.chat_sources import ConversationSource, hub_source
from nanogka.data.conversation import OUTPUT, PYTHON, TEXT, Conversation, Part
from nanogka.data.hub import Hub
from nanogka.evaluate.bundle import Bundle
from nanogka.evaluate.chat import ChatItem, ChatTask, final_number, majority, same_number

DATASET = "openai/gsm8k"
CALL = re.compile(r"(<<[^>]+>>)")
SOLUTION_TOKENS = 512  # maximum length of a reply; GSM8K's solutions have about 100 tokens


def from_row(row: dict) -> ChatItem:
    """Convert a row of the hub; its solution ends with, for example, `#### 72`."""
    return ChatItem(row["question"], row["answer"], same_number)


def conversation(row: dict) -> Conversation:
    """Return the problem and its solution with calls of the calculator."""
    parts = []
    for piece in CALL.split(row["answer"]):
        if CALL.fullmatch(piece):
            code, equals, result = piece[2:-2].rpartition("=")
            parts += [Part(PYTHON, code if equals else result), Part(OUTPUT, result if equals else "")]
        elif piece:
            parts.append(Part(TEXT, piece))
    return Conversation.of(row["question"], parts)


def source() -> ConversationSource:
    """Return the train split. Part of it is validation, so that the test problems stay unseen."""
    return hub_source(DATASET, "main", convert=conversation, val=None)


def load(source: Hub | Bundle) -> ChatTask | None:
    """Return the test problems."""
    if not isinstance(source, Hub):
        return None
    items = source.items(DATASET, "main", "test", from_row)
    chance = majority([str(final_number(item.answer)) for item in items])
    return ChatTask("gsm8k", items, chance, SOLUTION_TOKENS, "primary-school word problems, judged by the final number")
