"""ARC: science questions from school exams (Clark et al., 2018), with 2,376 easy and 1,172 hard test items.

The items come from the Hugging Face hub, or from the evaluation bundle.
"""

from nanogka.data.chat_sources import ConversationSource, hub_source
from nanogka.data.conversation import Conversation
from nanogka.data.hub import Hub
from nanogka.evaluate.bundle import Bundle
from nanogka.evaluate.chat import ChatItem, ChatTask, letter_item, letter_task

DATASET = "allenai/ai2_arc"


def from_row(row: dict) -> ChatItem:
    """Convert a row of the hub; its choices are labeled A to D or 1 to 4."""
    labels = row["choices"]["label"]
    return letter_item(row["question"], row["choices"]["text"], labels.index(row["answerKey"]), labels)


def from_bundle(item: dict) -> ChatItem:
    """Convert an item of the bundle."""
    return letter_item(item["query"].removeprefix("Question: "), item["choices"], item["gold"])


def easy(source: Hub | Bundle) -> ChatTask | None:
    """Questions that simple methods answer."""
    return _task(source, "arc_easy", "ARC-Easy", "science questions from school exams")


def challenge(source: Hub | Bundle) -> ChatTask | None:
    """Questions that retrieval and word co-occurrence get wrong."""
    return _task(source, "arc_challenge", "ARC-Challenge", "science questions that simple methods get wrong")


def conversation(row: dict) -> Conversation:
    """Return the question and the label of its answer."""
    item = from_row(row)
    return Conversation.of(item.prompt, item.answer)


def source() -> ConversationSource:
    """Return the 3,370 questions of both train splits."""
    return hub_source(DATASET, "ARC-Easy", "ARC-Challenge", convert=conversation, val="validation")


def _task(source: Hub | Bundle, name: str, config: str, measures: str) -> ChatTask | None:
    if isinstance(source, Hub):
        return letter_task(name, source.items(DATASET, config, "test", from_row), measures)
    if name not in source.tasks:
        return None
    return letter_task(name, [from_bundle(item) for item in source.load(name).items], measures)
