"""The items of generated questions, the ways to ask for them, and the splits."""

import random
import re
from dataclasses import dataclass, field
from functools import cache

from nanogka.data.conversation import OUTPUT, PYTHON, TEXT, Part
from nanogka.data.permutation import hash_text
from nanogka.generate.calculator import calculate

# KNOWN: training items in known wordings alone. HELD_OUT: held-out items. REWORDED: held-out items in new wordings.
TRAIN, KNOWN, HELD_OUT, REWORDED = SPLITS = ("train", "known", "held_out", "reworded")
NEW_SHARE = 5  # one wording in five is new
OPENINGS = ("hey, ", "hi, ", "hello, ", "hello! ", "ok, ", "now ", "so ", "and ", "well, ")
ENDS = {".": ("", "", "", "!", "..."), "?": ("", "", "", " ?", "??")}  # what people type for a mark


@dataclass(frozen=True)
class Wordings:
    """The ways to ask, as patterns of parts that combine: "[please |can you |]spell [the word |]{text}."

    Brackets list alternatives. One that is listed twice is drawn twice as often. The slots of an item fill the braces.
    A hash of the wording decides whether it is new. The embedded conversations train all wordings. A run on
    `embedded-known` never sees the new ones, so it measures how well a skill carries over to other combinations.
    """

    patterns: tuple[str, ...]

    def draw(self, rng: random.Random) -> str:
        """A random wording."""
        parts = _parts(rng.choice(self.patterns))
        return "".join([part if isinstance(part, str) else rng.choice(part) for part in parts])


@cache
def _parts(pattern: str) -> tuple[str | tuple[str, ...], ...]:
    """The texts of a pattern and, for each pair of brackets, its alternatives."""
    pieces = re.split(r"\[([^]]*)\]", pattern)
    return tuple(tuple(piece.split("|")) if i % 2 else piece for i, piece in enumerate(pieces) if i % 2 or piece)


def is_for(wording: str, split: str) -> bool:
    """Whether a split uses a wording: all do, but `KNOWN` has none of the new ones, and `REWORDED` has no others."""
    return split not in (KNOWN, REWORDED) or _is_new(wording) == (split == REWORDED)


@cache
def _is_new(wording: str) -> bool:
    return hash_text(f"wording: {wording}") % NEW_SHARE == 0


@dataclass(frozen=True)
class Item:
    """A question without its wording.

    `key` identifies it, `slots` fill the braces of a wording, and `answer` is the reply. `code` is the calculator call
    that the answer follows from, or empty if no call is needed. A `closed` item is one of a few facts that cannot be
    inferred from others, so it is trained, too. An item `beyond` what is promised is trained and not measured: what
    lies at the border of the training items is learned worst.
    """

    key: str
    wordings: Wordings
    answer: str
    slots: dict[str, str] = field(default_factory=dict)
    code: str = ""
    closed: bool = False
    beyond: bool = False

    def reply(self, calculator: bool = True) -> str | tuple[Part, ...]:
        """The assistant's reply: the calculator call, if there is one and it is wanted, and the answer."""
        if not self.code or not calculator:
            return self.answer
        result = calculate(self.code)  # a division by zero has none
        output = () if result is None else (Part(OUTPUT, result),)
        return Part(PYTHON, self.code), *output, Part(TEXT, self.answer)


def as_typed(wording: str, rng: random.Random) -> str:
    """The wording as people type it: with or without an opening, a capital letter, and the mark at its end.

    It changes the wording before the slots are filled. The answer belongs to the slots, so nothing may change them.
    """
    if rng.random() < 0.12:
        wording = rng.choice(OPENINGS) + wording
    if rng.random() < 0.5:
        wording = neat(wording)
    if len(wording) > 3 and wording[-1] in ".?" and rng.random() < 0.45:
        wording = wording[:-1] + rng.choice(ENDS[wording[-1]])
    return wording


def neat(wording: str) -> str:
    """The wording with a capital letter, unless it begins with a slot, and with a capital I for the speaker."""
    return re.sub(r"\bi(?=[ '])", "I", wording[:1].upper() + wording[1:])


def name_as_typed(name: str, rng: random.Random) -> str:
    """A name with its capital letter or, in four cases of ten, without."""
    return name.lower() if rng.random() < 0.4 else name
