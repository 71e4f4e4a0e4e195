"""Sources of conversations to learn from: memory, .jsonl files, datasets of the Hugging Face hub."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanogka.common.files import expand_path
from nanogka.data.conversation import Conversation
from nanogka.data.hub import Hub
from nanogka.data.own_text import json_lines, parse_json_line

VAL_SPLITS = ("test", "validation", "val")

Entry = tuple[str, Any]  # a conversation as its source stores it, after its place: "talk.jsonl, line 12"


@dataclass(frozen=True)
class ConversationSource:
    """Conversations of one origin. `train` and `val` give their entries from the beginning on each call."""

    name: str
    train: Callable[[], Iterator[Entry]]
    val: Callable[[], Iterator[Entry]] | None  # None: a share of `train`'s, chosen by their text
    convert: Callable[[Any], Conversation]  # makes a conversation of an entry; raises for a bad one
    identity: str = ""  # equal identities mean equal conversations; empty: unknown, so that nothing is kept on disk


def memory_source(name: str, train: Sequence[Conversation], val: Sequence[Conversation]) -> ConversationSource:
    """Conversations that are already in memory."""

    def entries(conversations: Sequence[Conversation]) -> Iterator[Entry]:
        return ((f"{name}, number {number}", conversation) for number, conversation in enumerate(conversations, 1))

    return ConversationSource(name, lambda: entries(train), lambda: entries(val), lambda conversation: conversation)


def jsonl_source(path: str | Path) -> ConversationSource:
    """A `.jsonl` file, or all `.jsonl` files of a folder by name; each line is an object with `messages`."""
    path = expand_path(path)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files or not all(file.is_file() and file.suffix == ".jsonl" for file in files):
        raise ValueError(f"--data: got {str(path)!r}, expected the name of a source, or .jsonl files")

    def entries() -> Iterator[Entry]:
        return ((f"{file}, line {number}", line) for file in files for number, line in json_lines(file))

    stats = [(os.fsencode(file).hex(), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return ConversationSource(
        str(path), entries, None, lambda line: Conversation.from_json(parse_json_line(line)), repr(stats)
    )


def hub_source(
    dataset: str,
    *configs: str,
    convert: Callable[[dict], Conversation] | None = None,
    train: str = "train",
    val: str | None = "",
) -> ConversationSource:
    """A dataset of the Hugging Face hub, or a local folder that `datasets` reads; several configurations are joined.

    `convert` makes a conversation of a row. Without it, the dataset must have a column `messages`. `val` names the
    split for validation. By default it is the first of `VAL_SPLITS` that exists; None: a share of `train`.
    """
    names = [f"{dataset} {config}".strip() for config in configs or ("",)]
    parts = [Hub().load(dataset, config) for config in configs or ("",)]
    for name, splits in zip(names, parts):
        if train not in splits:
            raise ValueError(f"--data: {name} has the splits {', '.join(splits)}, expected one called {train}")
        if convert is None and "messages" not in splits[train].column_names:
            has = ", ".join(splits[train].column_names)
            raise ValueError(f"--data: {name} has the columns {has}, expected a dataset with messages")
    if val == "":
        val = next((split for split in VAL_SPLITS if split in parts[0]), None)

    def entries(split: str) -> Iterator[Entry]:
        for name, splits in zip(names, parts):
            yield from ((f"{name} {split}, row {number}", row) for number, row in enumerate(splits[split], 1))

    # `datasets` gives a split a fingerprint that follows from its files; the name of `convert` stands for its rules.
    prints = [getattr(splits[split], "_fingerprint", "") for splits in parts for split in (train, val) if split]
    identity = repr((names, prints, convert and f"{convert.__module__}.{convert.__qualname__}")) if all(prints) else ""
    validation = None if val is None else lambda: entries(val)
    convert = convert or Conversation.from_json
    return ConversationSource(", ".join(names), lambda: entries(train), validation, convert, identity)
