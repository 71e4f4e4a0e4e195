"""Conversions between 18 pairs of units, with the calculator."""

import random

from nanogka.generate.calculator import calculated
from tasks.items import Item, Wordings
from tasks.sums import long_run, number

CONVERT = Wordings(
    (
        "how many {to} [are in|are in|are there in|in|are|is] {count} {unit}?",
        "how many {to} [do|does] {count} {unit} have?",
        "how many {to} has {count} {unit}?",
        "[||please |can you |could you ]convert {count} {unit} [to|to|into] {to}[|| for me].",
        "[||please |can you ]change {count} {unit} [to|into] {to}.",
        "[what is |what's |how much is |]{count} {unit} in {to}?",
        "{count} {unit} [in|to|into] {to}",
        "{count} {unit} [is|are] how many {to}?",
        "[tell me|do you know|can you tell me] how many {to} [are in|are|is] {count} {unit}.",
    )
)
# larger unit, smaller unit, how many of it: each with the names that people use; the first is that of the answer
TIMES = (
    (("hours",), ("minutes", "minutes", "min"), 60),
    (("minutes", "minutes", "min"), ("seconds", "seconds", "sec"), 60),
    (("days",), ("hours", "hours", "h"), 24),
    (("hours",), ("seconds", "seconds", "sec"), 3600),
    (("days",), ("minutes", "minutes", "min"), 1440),
    (("days",), ("seconds", "seconds", "sec"), 86400),
    (("weeks",), ("days",), 7),
    (("weeks",), ("hours", "hours", "h"), 168),
    (("years",), ("months",), 12),
    (("years",), ("weeks",), 52),
)  # fmt: skip
LENGTHS = (
    (("kilometers", "km", "km", "kilometres"), ("meters", "meters", "m", "m", "metres"), 1000),
    (("meters", "m", "m", "metres"), ("centimeters", "cm", "cm", "centimetres"), 100),
    (("centimeters", "cm", "cm"), ("millimeters", "mm"), 10),
    (("feet", "ft"), ("inches",), 12),
    (("yards",), ("feet", "ft"), 3),
)  # fmt: skip
UNITS = (
    *TIMES,
    *LENGTHS,
    (("kilograms", "kg", "kg", "kilos"), ("grams", "g"), 1000),
    (("liters", "l", "litres"), ("milliliters", "ml"), 1000),
    (("dollars",), ("cents",), 100),
)  # fmt: skip
SINGULAR = {"feet": "foot", "inches": "inch"} | {
    unit: unit[:-1] for pair in UNITS for unit in (pair[0][0], pair[1][0]) if unit not in ("feet", "inches")
}
ARTICLE = {"hour": "an", "inch": "an"}  # a otherwise


def units(rng: random.Random) -> Item:
    """A conversion, mostly to the smaller unit."""
    while True:
        larger, smaller, factor = rng.choice(UNITS)
        source, target, sign = (larger, smaller, "*") if rng.random() < 0.65 else (smaller, larger, "/")
        kind = rng.random()
        if sign == "/" and kind < 0.7:
            count = str(factor * rng.choice((1, 1, 1, *range(1, 13), rng.randint(1, 20))))  # one unit has other names
        elif kind < 0.2:
            count = number(rng, decimals=True)
        else:
            count = rng.choice((str(rng.randint(2, 12)), str(rng.randint(2, 99)), number(rng)))
        unit, code = rng.choice(source), f"{count}{sign}{factor}"
        one = rng.random() < 0.2
        if one:
            unit = SINGULAR[source[0]]
            count = rng.choice((ARTICLE.get(unit, "a"), "one", "1"))
            code = f"1{sign}{factor}"
        result = calculated(code)
        if "e" not in result:  # as in 1e-05 days
            break
    answer = f"{result} {SINGULAR[target[0]] if result == '1' else target[0]}."
    slots = {"count": count, "unit": unit, "to": rng.choice(target)}
    # The name of one unit cannot be inferred from other results.
    item = f"{code} {target[0]}"
    return Item(item, CONVERT, answer, slots, code, closed=one or result == "1", beyond=long_run(code, result))
