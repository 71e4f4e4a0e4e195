"""The conversations of a source as tokens, checked once before any training.

    tokenized = tokenize_source(source, ChatFormat(tokenizer), max_tokens=513)
    tokenized.train.row(0)       the first conversation, with what of it is to be learned
    tokenized.bad                each conversation that is left out, with its place and the reason

A token is kept as a uint32 whose highest bit says whether it is to be learned: half a gigabyte for 130 million tokens.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from nanogka.data.chat_sources import ConversationSource, Entry
from nanogka.data.conversation import TOO_LONG, ChatFormat, Conversation, ConversationError
from nanogka.data.order import hash_text
from nanogka.data.text import choose_validation

LEARNED = np.uint32(1 << 31)
CHUNK = 512  # conversations tokenised together
PLACES_SHOWN = 3


@dataclass(frozen=True)
class BadConversation:
    """One that is not used: where it stands, the kind of its fault, and what is wrong."""

    place: str
    kind: str
    text: str


class TokenizedConversations:
    """Conversations as tokens, one after the other; `len` of them.

    Attributes:
        tokens: (N,) uint32 of all, `LEARNED` set in what is to be learned.
        ends: (n,) int64: where each ends.
        places: (n,) where each stands, for people.
    """

    def __init__(self, tokens: np.ndarray, ends: np.ndarray, places: list[str]) -> None:
        self.tokens, self.ends, self.places = tokens, ends, places

    def __len__(self) -> int:
        return len(self.ends)

    def row(self, index: int) -> np.ndarray:
        """The tokens of one conversation, (n,) uint32, a view."""
        return self.tokens[self.ends[index - 1] if index else 0 : self.ends[index]]

    @property
    def lengths(self) -> np.ndarray:
        """(n,) int64: tokens of each."""
        return np.diff(self.ends, prepend=0)

    @property
    def learned(self) -> int:
        """How many tokens are to be learned."""
        return int((self.tokens >= LEARNED).sum())

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of all of it."""
        return hashlib.sha256(self.tokens.tobytes() + self.ends.tobytes()).hexdigest()

    def select(self, indices: np.ndarray) -> "TokenizedConversations":
        """Some of them."""
        rows = [self.row(int(i)) for i in indices]
        tokens = np.concatenate(rows) if rows else np.zeros(0, np.uint32)
        ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
        return TokenizedConversations(tokens, ends, [self.places[int(i)] for i in indices])


@dataclass(frozen=True)
class TokenizedSource:
    """A source as tokens, with the conversations of it that are not used."""

    name: str
    train: TokenizedConversations
    val: TokenizedConversations
    bad: list[BadConversation]


def tokenize_source(
    source: ConversationSource, form: ChatFormat, max_tokens: int, max_conversations: int | None = None
) -> TokenizedSource:
    """Read, check and tokenise a source.

    Args:
        form: of the tokenizer.
        max_tokens: a conversation of more is left out as too long.
        max_conversations: take the first so many of each split; None for all.

    Raises:
        ValueError: if there is nothing to learn from, or nothing to validate with.
    """
    bad: list[BadConversation] = []
    entries = islice(source.train(), max_conversations)
    train, hashes = _tokenize(entries, form, max_tokens, bad)
    if source.val is not None:
        val, _ = _tokenize(islice(source.val(), max_conversations), form, max_tokens, bad)
    elif len(set(hashes.tolist())) >= 2:
        is_val = choose_validation(hashes)
        train, val = train.select(np.flatnonzero(~is_val)), train.select(np.flatnonzero(is_val))
    else:
        val = train.select(np.zeros(0, np.int64))
    if not len(train) or not len(val):
        found = f"{len(train) or len(hashes)} usable conversations" + (f" ({summary(bad)})" if bad else "")
        takes = "at least two different ones, since one is validation"
        raise ValueError(f"--data: got {source.name!r} with {found}, takes {takes}")
    return TokenizedSource(source.name, train, val, bad)


def _tokenize(
    entries: Iterator[Entry], form: ChatFormat, max_tokens: int, bad: list[BadConversation]
) -> tuple[TokenizedConversations, np.ndarray]:
    """The usable conversations of `entries`, and a hash (n,) uint64 of what each says; faults are appended to `bad`."""
    tokens, ends, hashes, places = array("I"), array("q"), array("Q"), []
    assert tokens.itemsize == 4
    while chunk := list(islice(entries, CHUNK)):
        good = [(place, found) for place, found in chunk if isinstance(found, Conversation)]
        rendered = iter(form.render_many([conversation for _, conversation in good]))
        for place, found in chunk:
            if isinstance(found, ConversationError):
                bad.append(BadConversation(place, found.kind, str(found)))
                continue
            ids, mask = next(rendered)
            if len(ids) > max_tokens:
                text = f"got {len(ids):,} tokens, takes at most {max_tokens:,}"
                bad.append(BadConversation(place, TOO_LONG, text))
                continue
            row = np.array(ids, np.uint32) | np.where(mask, LEARNED, np.uint32(0))
            tokens.frombytes(row.tobytes())
            ends.append(len(tokens))
            hashes.append(hash_text(repr(found.messages)))
            places.append(place)
    return TokenizedConversations(np.asarray(tokens), np.asarray(ends), places), np.asarray(hashes)


def summary(bad: Sequence[BadConversation]) -> str:
    """How many of which kind, in one line."""
    kinds = Counter(one.kind for one in bad)
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())


def report(bad: Sequence[BadConversation]) -> list[str]:
    """The left-out conversations for people: a line a kind, with the first few places."""
    lines = []
    for kind, count in Counter(one.kind for one in bad).most_common():
        of_kind = [one for one in bad if one.kind == kind]
        shown = "; ".join(f"{one.place}: {one.text}" for one in of_kind[:PLACES_SHOWN])
        more = f"; and {count - PLACES_SHOWN:,} more" if count > PLACES_SHOWN else ""
        lines.append(f"{count:,} × {kind}: {shown}{more}")
    return lines
