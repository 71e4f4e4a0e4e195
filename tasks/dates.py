"""Questions on the calendar and on units of measurement.

What can be computed is computed with the calculator: years, days between two dates of a month, conversions. The months,
their lengths and the weekdays are facts that the model must know.
"""

import random

from nanogka.generate.calculator import calculate
from tasks.items import Item, Wordings

MONTHS = {
    **{"January": 31, "February": 28, "March": 31, "April": 30, "May": 31, "June": 30},
    **{"July": 31, "August": 31, "September": 30, "October": 31, "November": 30, "December": 31},
}
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
LENGTH = Wordings(
    known=(
        "how many days are in {text}?",
        "how many days has {text}?",
        "how many days does {text} have?",
        "how many days in {text}?",
        "how long is {text}?",
        "number of days in {text}.",
    ),
    new=("how many days are there in {text}?", "tell me how many days {text} has."),
)
LEAP = Wordings(
    known=(
        "is {text} a leap year?",
        "is {text} a leap year?",
        "was {text} a leap year?",
        "is the year {text} a leap year?",
        "{text}, leap year?",
    ),
    new=("will {text} be a leap year?", "is {text} leap year"),
)
BETWEEN = Wordings(
    known=(
        "how many days from {month} {first} to {month} {second}?",
        "how many days are between {month} {first} and {month} {second}?",
        "how many days between {month} {first} and {month} {second}?",
        "how many days are from {month} {first} to {second}?",
        "days from {month} {first} to {month} {second}?",
        "how many days are there from {first} {month} to {second} {month}?",
    ),
    new=(
        "how many days is it from {month} {first} to {month} {second}?",
        "count the days from {month} {first} to {month} {second}.",
    ),
)
AFTER = Wordings(
    known=(
        "what {kind} comes after {text}?",
        "which {kind} comes after {text}?",
        "what {kind} is after {text}?",
        "which {kind} follows {text}?",
        "what comes after {text}?",
    ),
    new=("what is the {kind} after {text}?", "which {kind} is next after {text}?"),
)
BEFORE = Wordings(
    known=(
        "what {kind} comes before {text}?",
        "which {kind} comes before {text}?",
        "what {kind} is before {text}?",
        "what comes before {text}?",
    ),
    new=("what is the {kind} before {text}?",),
)
CONVERT = Wordings(
    known=(
        "how many {to} are in {count} {unit}?",
        "how many {to} are in {count} {unit}?",
        "how many {to} in {count} {unit}?",
        "how many {to} are {count} {unit}?",
        "how many {to} is {count} {unit}?",
        "how many {to} has {count} {unit}?",
        "convert {count} {unit} to {to}.",
        "convert {count} {unit} into {to}.",
        "what is {count} {unit} in {to}?",
        "{count} {unit} in {to}?",
        "{count} {unit} to {to}.",
    ),
    new=(
        "how many {to} do {count} {unit} have?",
        "how much is {count} {unit} in {to}?",
        "change {count} {unit} to {to}.",
        "{count} {unit} is how many {to}?",
    ),
)
# larger unit, smaller unit, how many of it: each with the names that people use; the first is that of the answer
UNITS = (
    (("hours", "hours", "h"), ("minutes", "minutes", "min"), 60),
    (("minutes", "minutes", "min"), ("seconds", "seconds", "sec"), 60),
    (("days",), ("hours", "hours", "h"), 24),
    (("weeks",), ("days",), 7),
    (("years",), ("months",), 12),
    (("years",), ("weeks",), 52),
    (("kilometers", "km", "kilometres"), ("meters", "meters", "m", "metres"), 1000),
    (("meters", "m", "metres"), ("centimeters", "cm", "centimetres"), 100),
    (("centimeters", "cm"), ("millimeters", "mm"), 10),
    (("kilograms", "kg", "kilos"), ("grams", "g"), 1000),
    (("liters", "l", "litres"), ("milliliters", "ml"), 1000),
    (("feet", "ft"), ("inches", "in"), 12),
    (("yards",), ("feet", "ft"), 3),
    (("dollars", "euros"), ("cents",), 100),
)  # fmt: skip
ONE = {"hours": "an hour", "minutes": "a minute", "days": "a day", "weeks": "a week", "years": "a year"}


def dates(rng: random.Random) -> Item:
    """A question on the calendar."""
    kind = rng.randrange(6)
    if kind == 0:
        month = rng.choice(list(MONTHS))
        days = "28, or 29 in a leap year." if month == "February" else f"{MONTHS[month]}."
        return Item(f"length of {month}", LENGTH, days, {"text": _typed(month, rng)}, closed=True)
    if kind in (1, 2):
        year = rng.choice((rng.randint(1990, 2040), rng.randint(1600, 2400), 100 * rng.randint(16, 24)))
        code = f"{year}%{400 if year % 100 == 0 else 4}"  # the rule of the Gregorian calendar
        answer = "Yes." if calculate(code) == "0" else "No."
        return Item(f"leap year {year}", LEAP, answer, {"text": str(year)}, code)
    if kind == 3:
        month = rng.choice(list(MONTHS))
        first, second = sorted(rng.sample(range(1, MONTHS[month] + 1), 2))
        code = f"{second}-{first}"
        slots = {"month": _typed(month, rng), "first": str(first), "second": str(second)}
        return Item(f"days from {first} to {second}", BETWEEN, f"{calculate(code)} days.", slots, code)
    names, what = rng.choice(((list(MONTHS), "month"), (WEEKDAYS, "day")))
    place, (step, wordings) = rng.randrange(len(names)), rng.choice(((1, AFTER), (1, AFTER), (-1, BEFORE)))
    answer = names[(place + step) % len(names)] + "."
    return Item(
        f"{step} {names[place]}", wordings, answer, {"text": _typed(names[place], rng), "kind": what}, closed=True
    )


def units(rng: random.Random) -> Item:
    """A conversion, mostly to the smaller unit."""
    larger, smaller, factor = rng.choice(UNITS)
    count, sign = rng.choice((rng.randint(2, 12), rng.randint(2, 99), rng.randint(2, 500))), "*"
    source, target, number = larger, smaller, str(count)
    if rng.random() < 0.2 and len(larger[0]) + factor < 1010:
        source, target, number, sign = smaller, larger, str(factor * rng.randint(1, 9)), "/"
    unit = rng.choice(source)
    code = f"{number}{sign}{factor}"
    if sign == "*" and larger[0] in ONE and rng.random() < 0.15:
        number, unit, code = "", ONE[larger[0]], f"1*{factor}"
        to = rng.choice(target)
        wordings = Wordings(
            tuple(w.replace("{count} ", "") for w in CONVERT.known),
            tuple(w.replace("{count} ", "") for w in CONVERT.new),
        )
        return Item(
            f"1 {larger[0]} in {target[0]}",
            wordings,
            f"{calculate(code)} {target[0]}.",
            {"unit": unit, "to": to},
            code,
            closed=True,
        )
    slots = {"count": number, "unit": unit, "to": rng.choice(target)}
    return Item(f"{number} {source[0]} in {target[0]}", CONVERT, f"{calculate(code)} {target[0]}.", slots, code)


def _typed(name: str, rng: random.Random) -> str:
    return name.lower() if rng.random() < 0.3 else name
