"""Sums, differences, products and quotients of numbers up to three digits, all computed with the calculator."""

import random

from nanogka.generate.calculator import calculated
from tasks.items import Item, Wordings

ASKED = (
    "what is {}?",
    "what is {}?",
    "what's {}?",
    "{}",
    "{} = ?",
    "{} =",
    "{}=",
    "calculate {}.",
    "how much is {}?",
    "solve {}.",
    "can you compute {}?",
)
ASKED_NEW = ("what does {} make?", "tell me {}.", "work out {}.", "whats {}")
SUM = Wordings(
    known=(
        *(text.replace("{}", "{expression}") for text in ASKED),
        "add {list}.",
        "add up {list}.",
        "what is the sum of {list}?",
        "sum {list}.",
        "add {list} together.",
    ),
    new=(*(text.replace("{}", "{expression}") for text in ASKED_NEW), "the sum of {list}?", "can you add {list}?"),
)
DIFFERENCE = Wordings(
    known=(
        *(text.replace("{}", "{expression}") for text in ASKED),
        "subtract {second} from {first}.",
        "what is the difference of {first} and {second}?",
        "take {second} from {first}.",
        "{first} less {second}.",
    ),
    new=(*(text.replace("{}", "{expression}") for text in ASKED_NEW), "what is left of {first} after taking {second}?"),
)
PRODUCT = Wordings(
    known=(
        *(text.replace("{}", "{expression}") for text in ASKED),
        "multiply {list}.",
        "what is the product of {list}?",
        "multiply {list}.",
    ),
    new=(
        *(text.replace("{}", "{expression}") for text in ASKED_NEW),
        "the product of {list}?",
        "can you multiply {list}?",
    ),
)
QUOTIENT = Wordings(
    known=(*(text.replace("{}", "{expression}") for text in ASKED), "divide {first} by {second}."),
    new=(*(text.replace("{}", "{expression}") for text in ASKED_NEW), "can you divide {first} by {second}?"),
)
SIGNS = {
    "+": (" + ", " + ", "+", " plus ", " and "),
    "-": (" - ", " - ", "-", " minus "),
    "*": (" * ", "*", " x ", "x", " times ", " multiplied by "),
    "/": (" / ", "/", " divided by "),
}
# before the last number of a list; the first only between two numbers
LAST = {
    "+": (" to ", " and ", " and ", ", "),
    "*": (" by ", " and ", " and ", ", "),
    "-": (" and ",) * 2,
    "/": (" by ",) * 2,
}
MANY, LARGE = 3, 999  # more than this many numbers have at most two digits


def addition(rng: random.Random) -> Item:
    """A sum of two to five numbers."""
    return _item(rng, "+", SUM, _numbers(rng, rng.choice((2, 2, 2, 3, 3, 4, 5))))


def arithmetic(rng: random.Random) -> Item:
    """A difference, a product or a quotient."""
    sign = rng.choice("-*/-*")
    if sign == "-":
        numbers = _numbers(rng, 2)
        return _item(rng, sign, DIFFERENCE, sorted(numbers, reverse=True) if rng.random() < 0.8 else numbers)
    if sign == "*":
        return _item(rng, sign, PRODUCT, _numbers(rng, rng.choice((2, 2, 2, 3))))
    divisor = rng.randint(1, 12)
    return _item(rng, sign, QUOTIENT, [divisor * rng.randint(1, 60), divisor])


def _numbers(rng: random.Random, count: int) -> list[int]:
    largest = rng.choice((9, 20, 99, LARGE if count <= MANY else 99))
    return [rng.randint(0, largest) for _ in range(count)]


def _item(rng: random.Random, sign: str, wordings: Wordings, numbers: list[int]) -> Item:
    texts = [str(number) for number in numbers]
    # The same numbers in another order are the same sum or product.
    key = sign.join(map(str, sorted(numbers))) if sign in "+*" else sign.join(texts)
    written = rng.choice(SIGNS[sign])
    last = rng.choice(LAST[sign][len(texts) > 2 :])
    listed = f"{', '.join(texts[:-1])}{last}{texts[-1]}"
    code = sign.join(texts)
    slots = {"expression": written.join(texts), "list": listed, "first": texts[0], "second": texts[-1]}
    return Item(key, wordings, calculated(code), slots, code)
