"""MMLU: multiple-choice questions on 57 subjects, from school to professional exams (Hendrycks et al., 2021).

The hub's test split has 14,042 questions. Its auxiliary_train split has about 100,000 questions from other exams and
teaches a model to answer with letters.
"""

from nanogka.data.chat_sources import ConversationSource, hub_source
from nanogka.data.conversation import Conversation
from nanogka.data.hub import Hub
from nanogka.evaluate.bundle import Bundle
from nanogka.evaluate.chat import ChatItem, ChatTask, letter_item, letter_task

DATASET = "cais/mmlu"


def from_row(row: dict) -> ChatItem:
    """Convert a row of the hub."""
    return letter_item(row["question"], row["choices"], int(row["answer"]))


def conversation(row: dict) -> Conversation:
    """Return the question and the letter of its answer."""
    item = from_row(row)
    return Conversation.of(item.prompt, item.answer)


def source() -> ConversationSource:
    """Return the auxiliary questions for training and the validation split for validation."""
    return hub_source(DATASET, "all", convert=conversation, train="auxiliary_train", val="validation")


def load(source: Hub | Bundle) -> ChatTask | None:
    """Return the test questions."""
    if not isinstance(source, Hub):
        return None
    measures = "questions on 57 subjects, from school to professional exams"
    return letter_task("mmlu", source.items(DATASET, "all", "test", from_row), measures)
