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

from nanogka.common.files import base_dir, read_json
from nanogka.common.formatting import one_line
from nanogka.data.chat_sources import ConversationSource, Entry
from nanogka.data.conversation import ChatFormat, Conversation, ConversationError
from nanogka.data.permutation import hash_text
from nanogka.data.sharding import VAL_SHARE, build_once

FORMAT = 2  # raise when the same conversations would give other tokens or files
LOSS_BIT = np.uint32(1 << 31)  # set in a token to be learned, so that mask and id share four bytes
CHUNK = 512  # conversations to tokenize together
PLACES_SHOWN = 3
SPLITS = ("train", "val")


class Rejection(NamedTuple):
    """A conversation that cannot be used."""

    place: str  # "talk.jsonl, line 12"
    kind: str  # faults are counted by kind
    text: str


@dataclass(frozen=True)
class TokenizedConversations:
    """Some conversations of a flat array of tokens."""

    flat: np.ndarray  # (N,) uint32, with `LOSS_BIT` set in the tokens to be learned
    starts: np.ndarray  # (n,) int64: where each conversation starts in `flat`
    lengths: np.ndarray  # (n,) int64
    loss_tokens: int  # number of tokens to be learned
    fingerprint: str  # SHA-256 (hex) of all tokens and where each conversation ends

    @staticmethod
    def of(flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> "TokenizedConversations":
        """The conversations at these places. Reads all their tokens."""
        loss_tokens, digest = 0, hashlib.sha256()
        for start, length in zip(starts.tolist(), lengths.tolist()):
            row = flat[start : start + length]
            loss_tokens += int((row >= LOSS_BIT).sum())
            digest.update(row.tobytes())
        digest.update(np.cumsum(lengths, dtype=np.int64).tobytes())
        return TokenizedConversations(flat, starts, lengths, loss_tokens, digest.hexdigest())

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> np.ndarray:
        """The tokens (n,) uint32 of a conversation."""
        start = int(self.starts[number])
        return self.flat[start : start + int(self.lengths[number])]

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return int(self.lengths.sum())


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
    return _load(source.name, build_once(folder, lambda partial: _save(_tokenize_source(*arguments), partial)))


def _save(source: TokenizedSource, folder: Path) -> None:
    about = {"rejected": source.rejected}
    np.save(folder / "tokens.npy", source.train.flat)
    for split in SPLITS:
        part = getattr(source, split)
        np.save(folder / f"{split}.npy", np.stack([part.starts, part.lengths]))
        about[split] = {"loss_tokens": part.loss_tokens, "fingerprint": part.fingerprint}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")


def _load(name: str, folder: Path) -> TokenizedSource:
    about, flat = read_json(folder / "about.json"), np.load(folder / "tokens.npy", mmap_mode="r")
    parts = [TokenizedConversations(flat, *np.load(folder / f"{split}.npy"), **about[split]) for split in SPLITS]
    return TokenizedSource(name, *parts, [Rejection(*entry) for entry in about["rejected"]])


def _tokenize_source(
    source: ConversationSource, template: ChatFormat, max_tokens: int, max_conversations: int | None
) -> TokenizedSource:
    rejected: list[Rejection] = []

    def tokenize(entries: Iterator[Entry]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _tokenize(source, islice(entries, max_conversations), template, max_tokens, rejected)

    flat, lengths, hashes = tokenize(source.train())
    if source.val is None:
        is_val = _choose_validation(hashes)
    else:
        val_flat, val_lengths, _ = tokenize(source.val())
        is_val = np.repeat([False, True], [len(lengths), len(val_lengths)])
        flat, lengths = np.concatenate([flat, val_flat]), np.concatenate([lengths, val_lengths])
    if is_val.all() or not is_val.any():
        found = f"{len(is_val)} usable conversations" + (f" ({'; '.join(summarize(rejected))})" if rejected else "")
        expected = "at least two different ones, since one is validation"
        raise ValueError(f"--data: got {source.name!r} with {found}, expected {expected}")
    starts = np.cumsum(lengths) - lengths
    parts = [TokenizedConversations.of(flat, starts[mask], lengths[mask]) for mask in (~is_val, is_val)]
    return TokenizedSource(source.name, *parts, rejected)


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
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens (N,), lengths (n,) and hashes (n,) of the usable conversations. The others are added to `rejected`."""
    rows, hashes = [], []
    while chunk := list(islice(entries, CHUNK)):
        converted = [(place, _convert(source, entry)) for place, entry in chunk]
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
                found = ConversationError("longer than the context", got)
            rejected.append(Rejection(place, found.kind, str(found)))
    flat = np.concatenate([np.zeros(0, np.uint32), *rows])
    return flat, np.array([len(row) for row in rows], np.int64), np.array(hashes, np.uint64)


def _convert(source: ConversationSource, entry: object) -> Conversation | ConversationError:
    try:
        return source.convert(entry)
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
