"""The items of generated questions, the ways to ask for them, and the splits."""

import random
from dataclasses import dataclass, field

from nanogka.data.conversation import OUTPUT, PYTHON, TEXT, Part
from nanogka.generate.calculator import calculated

# KNOWN: training items in known wordings alone. HELD_OUT: held-out items. REWORDED: held-out items in new wordings.
TRAIN, KNOWN, HELD_OUT, REWORDED = SPLITS = ("train", "known", "held_out", "reworded")
OPENINGS = ("please ", "hey, ", "hi, ", "hello, ", "hello! ", "ok, ", "now ", "so ", "and ", "well, ")
ENDS = ("", "", "", "!", " ?", "??", "...")


@dataclass(frozen=True)
class Wordings:
    """The ways to ask. The slots of an item fill their braces.

    The embedded conversations train both kinds. A run on `embedded-known` never sees the `new` ones, so it measures how
    well a skill carries over to other words.
    """

    known: tuple[str, ...]
    new: tuple[str, ...] = ()

    def of(self, split: str) -> tuple[str, ...]:
        """The wordings that a split uses."""
        return {KNOWN: self.known, REWORDED: self.new}.get(split, self.known + self.new)


@dataclass(frozen=True)
class Item:
    """A question without its wording.

    `key` identifies it, `slots` fill the braces of a wording, and `answer` is the reply. `code` is the calculator call
    that the answer follows from, or empty if no call is needed. A `closed` item is one of a few facts that cannot be
    inferred from others, so it is trained, too.
    """

    key: str
    wordings: Wordings
    answer: str
    slots: dict[str, str] = field(default_factory=dict)
    code: str = ""
    closed: bool = False

    def reply(self, calculator: bool = True) -> str | tuple[Part, ...]:
        """The assistant's reply: the calculator call, if there is one and it is wanted, and the answer."""
        if not self.code or not calculator:
            return self.answer
        return Part(PYTHON, self.code), Part(OUTPUT, calculated(self.code)), Part(TEXT, self.answer)


def as_typed(wording: str, rng: random.Random) -> str:
    """The wording as people type it: with or without an opening, a capital letter, and the mark at its end.

    It changes the wording before the slots are filled. The answer belongs to the slots, so nothing may change them.
    """
    if rng.random() < 0.12:
        wording = rng.choice(OPENINGS) + wording
    if rng.random() < 0.5:
        wording = neat(wording)
    if len(wording) > 3 and wording[-1] in ".?" and rng.random() < 0.45:
        wording = wording[:-1] + rng.choice(ENDS)
    return wording


def neat(wording: str) -> str:
    """The wording with a capital letter, unless it begins with a slot."""
    return wording[:1].upper() + wording[1:]


def name_as_typed(name: str, rng: random.Random) -> str:
    """A name with its capital letter or, in three cases of ten, without."""
    return name.lower() if rng.random() < 0.3 else name
