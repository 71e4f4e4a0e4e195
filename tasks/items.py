"""The items of generated questions, and the ways to ask for them."""

from dataclasses import dataclass, field

from nanogka.data.conversation import OUTPUT, PYTHON, TEXT, Part
from nanogka.generate.calculator import calculated

TRAIN, HELD_OUT, REWORDED = "train", "held_out", "reworded"  # REWORDED: held-out items in held-out wordings
SPLITS = (TRAIN, HELD_OUT, REWORDED)


@dataclass(frozen=True)
class Wordings:
    """The ways to ask: `known` ones for training, and `new` ones that are held out. The slots of an item fill them."""

    known: tuple[str, ...]
    new: tuple[str, ...] = ()


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
