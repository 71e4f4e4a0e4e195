"""Where conversations come from: JSONL files of the user's own, datasets of the hub, lists in memory.

A source gives entries: (place, conversation), or (place, error) where there is none that can be learned from; a place
is "talk.jsonl, line 12". Nothing is left out in silence: `nanogka.data.chat_tokens` counts the errors.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanogka.data.conversation import WRONG_JSON, Conversation, ConversationError

Entry = tuple[str, Conversation | ConversationError]

# Names for datasets that are often wanted.
HUB_NAMES = {"smoltalk": "HuggingFaceTB/smol-smoltalk"}
HUB_PREFIX = "hub:"
VAL_SPLITS = ("test", "validation", "val")


@dataclass(frozen=True)
class ConversationSource:
    """Conversations of one origin.

    Attributes:
        name: how reports call it.
        train: gives the entries to learn from, each time anew, lines and rows counted from 1.
        val: likewise those of validation; None: a share of `train`'s, chosen by what they say.
    """

    name: str
    train: Callable[[], Iterator[Entry]]
    val: Callable[[], Iterator[Entry]] | None = None


def memory_source(name: str, train: Sequence[Conversation], val: Sequence[Conversation]) -> ConversationSource:
    """Conversations that are there already."""

    def entries(conversations: Sequence[Conversation]) -> Iterator[Entry]:
        return ((f"{name}, number {number}", conversation) for number, conversation in enumerate(conversations, 1))

    return ConversationSource(name, lambda: entries(train), lambda: entries(val))


def jsonl_source(path: str | Path) -> ConversationSource:
    """A `.jsonl` file, or the `.jsonl` files of a folder as one, by name; each line an object with `messages`.

    Raises:
        ValueError: if there is no such file.
    """
    path = Path(path).expanduser()
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files or not all(file.is_file() and file.suffix == ".jsonl" for file in files):
        takes = f"embedded, {', '.join(HUB_NAMES)}, {HUB_PREFIX}OWNER/NAME, or .jsonl: a file or a folder of them"
        raise ValueError(f"--data: got {str(path)!r}, takes {takes}")
    return ConversationSource(str(path), lambda: read_jsonl(files))


def read_jsonl(files: Iterable[Path]) -> Iterator[Entry]:
    """The entries of JSONL files, one file after the other; blank lines hold none."""
    for file in files:
        with file.open("rb") as opened:  # a binary file's lines end at \n only: JSON may hold what else ends a line
            for number, raw in enumerate(opened, 1):
                if raw.strip():
                    raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                    yield f"{file}, line {number}", _from_line(raw)


def _from_line(raw: bytes) -> Conversation | ConversationError:
    try:
        return Conversation.from_json(json.loads(raw.decode("utf-8").rstrip("\r\n")))
    except ConversationError as error:
        return error
    except UnicodeDecodeError as error:
        return ConversationError(WRONG_JSON, f"no UTF-8 (byte {error.start} of the line)")
    except json.JSONDecodeError as error:
        return ConversationError(WRONG_JSON, f"{error.msg} at column {error.colno}")
    except RecursionError:
        return ConversationError(WRONG_JSON, "nested too deeply")


def hub_source(dataset: str, config: str = "") -> ConversationSource:
    """A dataset of the Hugging Face hub (or a local folder that `datasets` reads) with a column `messages`.

    `train` is what is learned from; validation is its `test` or `validation` split, if it has one.

    Raises:
        OSError: if it cannot be had; one line.
        ValueError: if it has no split `train`, or no column `messages`.
    """
    name = f"{dataset} {config}".strip()
    splits = _load(dataset, config)
    if "train" not in splits:
        raise ValueError(f"--data: {name} has the splits {', '.join(splits)}, takes one called train")
    if "messages" not in splits["train"].column_names:
        has = ", ".join(splits["train"].column_names)
        raise ValueError(f"--data: {name} has the columns {has}, takes a dataset with messages")
    val = next((split for split in VAL_SPLITS if split in splits), None)
    read_val = None if val is None else lambda: read_rows(splits[val], f"{name} {val}")
    return ConversationSource(name, lambda: read_rows(splits["train"], f"{name} train"), read_val)


def _load(dataset: str, config: str):
    import datasets  # a quarter of a second, and only this needs it

    arguments = [dataset, config] if config else [dataset]
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(*arguments)
    except Exception as error:  # the errors of the network, the hub and a dataset's format have no common type
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OSError(f"could not fetch {' '.join(arguments)} from the Hugging Face hub: {reason}") from error


def read_rows(rows: Iterable[dict], name: str) -> Iterator[Entry]:
    """The entries of a dataset's rows."""
    for number, row in enumerate(rows, 1):
        try:
            yield f"{name}, row {number}", Conversation.from_json(row)
        except ConversationError as error:
            yield f"{name}, row {number}", error
