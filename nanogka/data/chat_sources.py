"""Sources of conversations to learn from: memory, .jsonl files, datasets of the Hugging Face hub.

A source gives entries: (place, conversation), or (place, error) for one that cannot be used. A place is "talk.jsonl,
line 12".
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from nanogka.common.files import expand_path
from nanogka.data.conversation import Conversation, ConversationError
from nanogka.data.hub import Hub
from nanogka.data.own_text import parse_json_line

VAL_SPLITS = ("test", "validation", "val")

Entry = tuple[str, Conversation | ConversationError]


@dataclass(frozen=True)
class ConversationSource:
    """Conversations of one origin; `train` and `val` give their entries from the beginning on each call."""

    name: str
    train: Callable[[], Iterator[Entry]]
    val: Callable[[], Iterator[Entry]] | None = None  # None: a share of `train`'s, chosen by their text
    identity: str = ""  # equal identities mean equal conversations; empty: unknown, so that nothing is kept on disk


def memory_source(name: str, train: Sequence[Conversation], val: Sequence[Conversation]) -> ConversationSource:
    """Conversations that are already in memory."""

    def entries(conversations: Sequence[Conversation]) -> Iterator[Entry]:
        return ((f"{name}, number {number}", conversation) for number, conversation in enumerate(conversations, 1))

    return ConversationSource(name, lambda: entries(train), lambda: entries(val))


def jsonl_source(path: str | Path) -> ConversationSource:
    """A `.jsonl` file, or all `.jsonl` files of a folder by name; each line is an object with `messages`."""
    path = expand_path(path)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files or not all(file.is_file() and file.suffix == ".jsonl" for file in files):
        raise ValueError(f"--data: got {str(path)!r}, expected the name of a source, or .jsonl files")
    stats = [(os.fsencode(file).hex(), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return ConversationSource(str(path), lambda: _read_jsonl(files), identity=repr(stats))


def _read_jsonl(files: Iterable[Path]) -> Iterator[Entry]:
    for file in files:
        with file.open("rb") as opened:  # a binary file's lines end at \n only: JSON may hold other line separators
            for number, raw in enumerate(opened, 1):
                if raw.strip():
                    yield (
                        f"{file}, line {number}",
                        _attempt(lambda raw=raw: Conversation.from_json(parse_json_line(raw))),
                    )


def _attempt(read: Callable[[], Conversation]) -> Conversation | ConversationError:
    try:
        return read()
    except ConversationError as error:
        return error
    except ValueError as error:
        return ConversationError("wrong JSON", str(error))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        return ConversationError("unexpected row", f"{type(error).__name__} {error}")


def hub_source(
    dataset: str,
    config: str = "",
    *,
    convert: Callable[[dict], Conversation] | None = None,
    train: str = "train",
    val: str | None = "",
) -> ConversationSource:
    """A dataset of the Hugging Face hub, or a local folder that `datasets` reads.

    `convert` makes a conversation of a row; without it, the dataset must have a column `messages`. `val` names the
    split for validation. By default it is the first of `VAL_SPLITS` that exists; None: a share of `train`.
    """
    name = " ".join(filter(None, (dataset, config)))
    splits = Hub().load(dataset, config)
    if train not in splits:
        raise ValueError(f"--data: {name} has the splits {', '.join(splits)}, expected one called {train}")
    if convert is None and "messages" not in splits[train].column_names:
        has = ", ".join(splits[train].column_names)
        raise ValueError(f"--data: {name} has the columns {has}, expected a dataset with messages")
    read = convert or Conversation.from_json

    def entries(split: str) -> Iterator[Entry]:
        for number, row in enumerate(splits[split], 1):
            yield f"{name} {split}, row {number}", _attempt(partial(read, row))

    if val == "":
        val = next((split for split in VAL_SPLITS if split in splits), None)
    # `datasets` gives a split a fingerprint that follows from its files; the name of `convert` stands for its rules.
    prints = [getattr(splits[split], "_fingerprint", "") for split in (train, val) if split]
    identity = repr((name, prints, convert and f"{convert.__module__}.{convert.__qualname__}")) if all(prints) else ""
    validation = None if val is None else lambda: entries(val)
    return ConversationSource(name, lambda: entries(train), validation, identity)


def chain_sources(name: str, sources: Sequence[ConversationSource]) -> ConversationSource:
    """Several sources with validation data as one."""
    return ConversationSource(
        name,
        lambda: chain.from_iterable(source.train() for source in sources),
        lambda: chain.from_iterable(source.val() for source in sources),
        repr([source.identity for source in sources]) if all(source.identity for source in sources) else "",
    )
