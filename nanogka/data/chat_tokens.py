"""Conversations as tokens with a loss mask, in one flat array that all ranks of a machine share.

Tokenizing half a million conversations takes minutes. So it is done once: the first rank that needs the tokens writes
them to `NANOGKA_BASE_DIR/conversations`. Every rank maps the file into memory, now and at each resume, so eight ranks
hold one copy.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanogka.common.files import base_dir, build_once, read_json
from nanogka.common.formatting import one_line
from nanogka.data.chat_sources import ConversationSource, Entry
from nanogka.data.conversation import ChatFormat, Conversation, ConversationError
from nanogka.data.permutation import hash_text
from nanogka.data.sharding import VAL_SHARE

FORMAT = 6  # raise when the same conversations would give other tokens or files
LOSS_BIT = np.uint32(1 << 31)  # set in a token to be learned, so that mask and id share four bytes
CHUNK = 512  # conversations to tokenize together
PLACES_SHOWN = 3
TOO_LONG = "longer than the context"  # a kind of fault
SPLITS = ("train", "val")


class Rejection(NamedTuple):
    """A conversation that cannot be used."""

    place: str  # "talk.jsonl, line 12"
    kind: str  # faults are counted by kind
    text: str


class TokenizedConversations:
    """Conversations in one flat array of tokens."""

    def __init__(self, flat: np.ndarray, ends: np.ndarray) -> None:
        self.flat = flat  # (N,) uint32, with `LOSS_BIT` set in the tokens to be learned
        self.ends = ends  # (n,) int64: where each conversation ends in `flat`
        self.lengths = np.diff(ends, prepend=0)  # (n,) int64
        self.n_tokens = len(flat)
        self.loss_tokens = int((flat >= LOSS_BIT).sum())  # number of tokens to be learned
        digest = hashlib.sha256(flat.data)
        digest.update(ends.data)
        self.fingerprint = digest.hexdigest()

    @staticmethod
    def of(rows: Sequence[np.ndarray]) -> "TokenizedConversations":
        """Join conversations, each (length,) uint32."""
        ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
        return TokenizedConversations(np.concatenate([np.zeros(0, np.uint32), *rows]), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> np.ndarray:
        """The tokens (n,) uint32 of a conversation."""
        end = int(self.ends[number])
        return self.flat[end - int(self.lengths[number]) : end]


@dataclass(frozen=True)
class TokenizedSource:
    """A source as tokens."""

    name: str
    train: TokenizedConversations
    val: TokenizedConversations
    rejected: list[Rejection]


def tokenize_source(
    source: ConversationSource, template: ChatFormat, max_tokens: int, max_conversations: int | None = None
) -> TokenizedSource:
    """Read, check and tokenize a source, or open its tokens on disk.

    Conversations of more than `max_tokens` are rejected. Only the first `max_conversations` of each split are read.
    Raises ValueError if a split has no usable conversation.
    """
    arguments = (source, template, max_tokens, max_conversations)
    if not source.identity:
        return _tokenize_source(*arguments)
    deciding = repr((FORMAT, source.identity, template.tokenizer.fingerprint, max_tokens, max_conversations))
    folder = base_dir() / "conversations" / hashlib.sha256(deciding.encode()).hexdigest()[:24]
    save = lambda partial: _save(_tokenize_source(*arguments), partial)  # noqa: E731
    return _load(source.name, build_once(folder, save, private=True))


def _save(source: TokenizedSource, folder: Path) -> None:
    for split in SPLITS:
        part = getattr(source, split)
        np.save(folder / f"{split}.npy", part.flat)
        np.save(folder / f"{split}_ends.npy", part.ends)
    (folder / "rejected.json").write_text(json.dumps({"rejected": source.rejected}), encoding="utf-8")


def _load(name: str, folder: Path) -> TokenizedSource:
    train, val = (
        TokenizedConversations(_array(folder / f"{split}.npy"), np.load(folder / f"{split}_ends.npy"))
        for split in SPLITS
    )
    rejected = read_json(folder / "rejected.json")["rejected"]
    return TokenizedSource(name, train, val, [Rejection(*one) for one in rejected])


def _array(file: Path) -> np.ndarray:
    """The array in a .npy file, which stays there where the file system can map files into memory."""
    try:
        return np.load(file, mmap_mode="r")
    except OSError:
        return np.load(file)


def _tokenize_source(
    source: ConversationSource, template: ChatFormat, max_tokens: int, max_conversations: int | None
) -> TokenizedSource:
    rejected: list[Rejection] = []

    def tokenize(entries: Iterator[Entry]) -> tuple[list[np.ndarray], np.ndarray]:
        return _tokenize(source, islice(entries, max_conversations), template, max_tokens, rejected)

    train, hashes = tokenize(source.train())
    if source.val is None:
        is_val = _choose_validation(hashes).tolist()
        train, val = ([row for row, chosen in zip(train, is_val) if chosen == wanted] for wanted in (False, True))
    else:
        val, _ = tokenize(source.val())
    if not train or not val:
        faults = f" ({'; '.join(summarize(rejected))})" if rejected else ""
        found = f"{len(train) + len(val)} usable conversations{faults}"
        expected = "at least two different ones, since one is validation"
        raise ValueError(f"data: got {source.name!r} with {found}, expected {expected}")
    return TokenizedSource(source.name, TokenizedConversations.of(train), TokenizedConversations.of(val), rejected)


def _choose_validation(hashes: np.ndarray) -> np.ndarray:
    """The mask (n,) bool of the validation conversations, by their hashes (n,) uint64.

    Only the hash of a conversation decides, so adding others moves none to another split, and copies stay together.
    """
    is_val = hashes < np.uint64(int(VAL_SHARE * 2**64))
    if len(hashes) and not is_val.any():
        is_val = hashes == hashes.min()
    if is_val.all():
        is_val = hashes != hashes.max(initial=0)
    return is_val


def _tokenize(
    source: ConversationSource,
    entries: Iterator[Entry],
    template: ChatFormat,
    max_tokens: int,
    rejected: list[Rejection],
) -> tuple[list[np.ndarray], np.ndarray]:
    """The usable conversations, each (length,) uint32, and their hashes (n,). The others are added to `rejected`."""
    rows, hashes = [], []
    # No conversation with more bytes fits, however it is tokenized. Tokenizing it to find out would take gigabytes.
    most_bytes = max_tokens * int(template.tokenizer.token_bytes().max())
    while chunk := list(islice(entries, CHUNK)):
        converted = [(place, _convert(source, entry, most_bytes)) for place, entry in chunk]
        rendered = iter(template.render_many(found for _, found in converted if isinstance(found, Conversation)))
        for place, found in converted:
            if isinstance(found, Conversation):
                ids, mask = next(rendered)
                if len(ids) <= max_tokens:
                    rows.append(np.array(ids, np.uint32) | np.where(mask, LOSS_BIT, np.uint32(0)))
                    hashes.append(hash_text(repr(found.messages)))
                    continue
                # A cut conversation would teach replies to half of a question, or replies that never end.
                got = f"got {len(ids):,} tokens, expected at most {max_tokens:,}"
                found = ConversationError(TOO_LONG, got)
            rejected.append(Rejection(place, found.kind, str(found)))
    return rows, np.array(hashes, np.uint64)


def _convert(source: ConversationSource, entry: object, most_bytes: int) -> Conversation | ConversationError:
    try:
        conversation = source.convert(entry)
        size = sum(len(part.text.encode()) for message in conversation.messages for part in message.parts)
        if size > most_bytes:
            return ConversationError(TOO_LONG, f"got {size:,} bytes of text, expected at most {most_bytes:,}")
        return conversation
    except ConversationError as error:
        return error
    except ValueError as error:
        return ConversationError("wrong JSON", str(error))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        return ConversationError("unexpected row", f"{type(error).__name__} {error}")


def summarize(rejected: Sequence[Rejection]) -> list[str]:
    """One line per kind of fault, with the first few places."""
    lines = []
    for kind, count in Counter(one.kind for one in rejected).most_common():
        shown = [f"{one.place}: {one.text}" for one in rejected if one.kind == kind][:PLACES_SHOWN]
        more = f"; and {count - PLACES_SHOWN:,} more" if count > PLACES_SHOWN else ""
        lines.append(one_line(f"{count:,} × {kind}: {'; '.join(shown)}{more}"))  # places are names of files
    return lines
