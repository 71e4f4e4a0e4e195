"""Files of conversations: /save writes them, /load reads them, `scripts.chat_sft` trains on them.

A `.jsonl` file has one JSON document per line, any other file is one document.
"""

import json
from pathlib import Path

from nanogka.common.files import atomic_write, read_text
from nanogka.data.conversation import Conversation


def write_documents(path: Path, documents: list[dict]) -> None:
    """Write documents to a file, atomically: one per line of a `.jsonl` file, else as one document or a list."""
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    else:
        value = documents[0] if len(documents) == 1 else documents
        text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    try:
        atomic_write(path, text)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from None


def read_conversation(path: Path) -> Conversation:
    """Read a file of one conversation. Raises ValueError naming the file, the line and the fault."""
    try:
        text = read_text(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None
    if not text.strip():
        raise ValueError(f"{path}: is empty, expected a conversation")
    lines = sum(map(bool, map(str.strip, text.split("\n"))))
    if path.suffix == ".jsonl" and lines > 1:
        raise ValueError(f"{path}: has {lines:,} conversations, expected a file of one")
    return parse_conversation(text, str(path))


def parse_conversation(text: str, source: str, complete: bool = True) -> Conversation:
    """Parse a conversation from JSON; unless `complete`, it may end with a prompt. `source` is named in errors."""
    try:
        return Conversation.from_json(json.loads(text), complete)
    except json.JSONDecodeError as error:
        several = "; JSON lines take a name that ends with .jsonl" if error.msg == "Extra data" else ""
        raise ValueError(f"{source}, line {error.lineno}: wrong JSON: {error.msg}{several}") from None
    except RecursionError:
        raise ValueError(f"{source}: wrong JSON: nested too deeply") from None
    except ValueError as error:  # a ConversationError, or an integer of thousands of digits
        raise ValueError(f"{source}: {error}") from None
