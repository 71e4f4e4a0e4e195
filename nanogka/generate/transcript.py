"""Files of conversations: written by /save, read by /load, learned from by `scripts.chat_sft`.

A `.jsonl` file has one JSON document a line, any other one document. A conversation is an object with `messages` (see
`nanogka.data.conversation`); what base models wrote is a list of objects with `prompt` and `continuation`.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from nanogka.data.conversation import Conversation, ConversationError


def write_documents(path: Path, documents: list[dict]) -> None:
    """Write `documents` to a file, whole or not at all.

    Args:
        path: replaced if it exists; of a name that does not end with `.jsonl`, a single document is written as itself
            and several as a list.

    Raises:
        ValueError: if it cannot be written.
    """
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    else:
        value = documents[0] if len(documents) == 1 else documents
        text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from None


def read_conversation(path: Path, number: int | None = None) -> Conversation:
    """The conversation in a file.

    Args:
        path: JSON, or JSON lines.
        number: which, counted from 1; None takes a file with a single one.

    Raises:
        ValueError: if the file cannot be read or has no such conversation, or several and no number is given; what is
            wrong with a conversation is said with its line.
    """
    try:
        found = list(_documents(path)) if number is None else _nth(path, number)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: got a byte that is no UTF-8 ({error.reason}), takes UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None
    if not found:
        raise ValueError(f"{path}: is empty, takes a conversation")
    if len(found) > 1:
        raise ValueError(f"{path}: has {len(found):,} conversations, takes the number of one as well: FILE NUMBER")
    line, text = found[0]
    try:
        return Conversation.from_json(json.loads(text))
    except json.JSONDecodeError as error:
        several = "; JSON lines take a name that ends with .jsonl" if error.msg == "Extra data" else ""
        raise ValueError(f"{path}, line {line + error.lineno - 1}: wrong JSON: {error.msg}{several}") from None
    except RecursionError:
        raise ValueError(f"{path}, line {line}: wrong JSON: nested too deeply") from None
    except ConversationError as error:
        raise ValueError(f"{path}, line {line}: {error}") from None


def _nth(path: Path, number: int) -> list[tuple[int, str]]:
    if number < 1:
        raise ValueError(f"conversation: got number {number}, takes an integer of at least 1")
    count = 0
    for count, document in enumerate(_documents(path), 1):
        if count == number:
            return [document]
    raise ValueError(f"{path}: got number {number}, has {count:,} conversation{'' if count == 1 else 's'}")


def _documents(path: Path) -> Iterator[tuple[int, str]]:
    """(number of the first line, text) of each JSON document of the file."""
    with path.open(encoding="utf-8-sig", newline="\n") as file:  # JSON may hold what else ends a line
        if path.suffix == ".jsonl":
            yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())
        elif (text := file.read()).strip():
            yield 1, text
