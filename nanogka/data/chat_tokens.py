"""Conversations as tokens with a loss mask, in one flat array that all ranks of a machine share.

Tokenizing half a million conversations takes minutes. So it is done once: the first rank that needs the tokens writes
them to `NANOGKA_BASE_DIR/conversations`, and every rank maps the file into memory, now and at each resume.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from filelock import FileLock

from nanogka.common.files import base_dir, read_json
from nanogka.common.formatting import one_line
from nanogka.data.chat_sources import ConversationSource, Entry
from nanogka.data.conversation import ChatFormat, Conversation, ConversationError
from nanogka.data.order import hash_text
from nanogka.data.own_text import choose_validation
from nanogka.data.sharding import atomic_directory

FORMAT = 1  # raise when the same conversations would give other tokens
LOSS_BIT = np.uint32(1 << 31)  # set in a token to be learned, so that mask and id share four bytes
CHUNK = 512  # conversations to tokenize together
PLACES_SHOWN = 3
SPLITS = ("train", "val")

Fault = tuple[str, ConversationError]  # the entry of a conversation that is left out


@dataclass(frozen=True)
class TokenizedConversations:
    """Some conversations of a flat array of tokens."""

    flat: np.ndarray  # (N,) uint32, with `LOSS_BIT` set in the tokens to be learned
    starts: np.ndarray  # (n,) int64: where each conversation starts in `flat`
    lengths: np.ndarray  # (n,) int64
    learned: int  # number of tokens to be learned
    fingerprint: str  # sha256 (hex) of all tokens and where each conversation ends

    @staticmethod
    def of(flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> "TokenizedConversations":
        """The conversations at these places; reads all their tokens."""
        learned, digest = 0, hashlib.sha256()
        for start, length in zip(starts.tolist(), lengths.tolist()):
            row = flat[start : start + length]
            learned += int((row >= LOSS_BIT).sum())
            digest.update(row.tobytes())
        digest.update(np.cumsum(lengths, dtype=np.int64).tobytes())
        return TokenizedConversations(flat, starts, lengths, learned, digest.hexdigest())

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
    """A source as tokens, with the conversations that were left out."""

    name: str
    train: TokenizedConversations
    val: TokenizedConversations
    bad: list[Fault]


def tokenize_source(
    source: ConversationSource, form: ChatFormat, max_tokens: int, max_conversations: int | None = None
) -> TokenizedSource:
    """Read, check and tokenize a source, or open its tokens on disk. ValueError if a split has no usable conversation.

    Conversations of more than `max_tokens` are left out. Of each split the first `max_conversations` are read.
    """
    if not source.identity:
        return _tokenize_source(source, form, max_tokens, max_conversations)
    deciding = repr((FORMAT, source.identity, form.tokenizer.fingerprint, max_tokens, max_conversations))
    folder = base_dir() / "conversations" / hashlib.sha256(deciding.encode()).hexdigest()[:24]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):  # of the ranks of a machine, one tokenizes
        if not folder.exists():
            _save(_tokenize_source(source, form, max_tokens, max_conversations), folder)
    return _load(source.name, folder)


def _save(source: TokenizedSource, folder: Path) -> None:
    about = {"bad": [(place, error.kind, str(error)) for place, error in source.bad]}
    with atomic_directory(folder) as partial:
        np.save(partial / "tokens.npy", source.train.flat)
        for split in SPLITS:
            part = getattr(source, split)
            np.save(partial / f"{split}.npy", np.stack([part.starts, part.lengths]))
            about[split] = {"learned": part.learned, "fingerprint": part.fingerprint}
        (partial / "about.json").write_text(json.dumps(about), encoding="utf-8")


def _load(name: str, folder: Path) -> TokenizedSource:
    about, flat = read_json(folder / "about.json"), np.load(folder / "tokens.npy", mmap_mode="r")
    parts = [TokenizedConversations(flat, *np.load(folder / f"{split}.npy"), **about[split]) for split in SPLITS]
    return TokenizedSource(name, *parts, [(place, ConversationError(*rest)) for place, *rest in about["bad"]])


def _tokenize_source(
    source: ConversationSource, form: ChatFormat, max_tokens: int, max_conversations: int | None
) -> TokenizedSource:
    bad: list[Fault] = []
    flat, lengths, hashes = _tokenize(islice(source.train(), max_conversations), form, max_tokens, bad)
    if source.val is not None:
        val_flat, val_lengths, _ = _tokenize(islice(source.val(), max_conversations), form, max_tokens, bad)
        is_val = np.arange(len(lengths) + len(val_lengths)) >= len(lengths)
        flat, lengths = np.concatenate([flat, val_flat]), np.concatenate([lengths, val_lengths])
    else:
        several = len(np.unique(hashes)) >= 2
        is_val = choose_validation(hashes) if several else np.zeros(len(hashes), bool)
    if is_val.all() or not is_val.any():
        found = f"{len(is_val)} usable conversations" + (f" ({'; '.join(report(bad))})" if bad else "")
        expected = "at least two different ones, since one is validation"
        raise ValueError(f"--data: got {source.name!r} with {found}, expected {expected}")
    starts = np.cumsum(lengths) - lengths
    parts = [TokenizedConversations.of(flat, starts[mask], lengths[mask]) for mask in (~is_val, is_val)]
    return TokenizedSource(source.name, *parts, bad)


def _tokenize(
    entries: Iterator[Entry], form: ChatFormat, max_tokens: int, bad: list[Fault]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens (N,) of the usable conversations, their lengths (n,) and hashes (n,); the others are appended to `bad`."""
    rows, hashes = [], []
    while chunk := list(islice(entries, CHUNK)):
        rendered = iter(form.render_many(found for _, found in chunk if isinstance(found, Conversation)))
        for place, found in chunk:
            if isinstance(found, Conversation):
                ids, mask = next(rendered)
                if len(ids) > max_tokens:
                    got = f"got {len(ids):,} tokens, expected at most {max_tokens:,}"
                    found = ConversationError("longer than the context", got)
            if isinstance(found, ConversationError):
                bad.append((place, found))
                continue
            rows.append(np.array(ids, np.uint32) | np.where(mask, LOSS_BIT, np.uint32(0)))
            hashes.append(hash_text(repr(found.messages)))
    flat = np.concatenate([np.zeros(0, np.uint32), *rows])
    return flat, np.array([len(row) for row in rows], np.int64), np.array(hashes, np.uint64)


def report(bad: Sequence[Fault]) -> list[str]:
    """One line per kind of fault, with the first few places."""
    lines = []
    for kind, count in Counter(error.kind for _, error in bad).most_common():
        shown = [f"{place}: {error}" for place, error in bad if error.kind == kind][:PLACES_SHOWN]
        more = f"; and {count - PLACES_SHOWN:,} more" if count > PLACES_SHOWN else ""
        lines.append(one_line(f"{count:,} × {kind}: {'; '.join(shown)}{more}"))  # places are names of files
    return lines
