"""Questions on the calendar.

Leap years are computed with the calculator. The order and the lengths of months and the order of weekdays are facts
that the model must know.
"""

import random

from nanogka.generate.calculator import calculated
from tasks.items import Item, Wordings, name_as_typed

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
        "is the year {text} leap?",
    ),
    new=("will {text} be a leap year?", "is {text} leap year"),
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
    new=("what is the {kind} before {text}?", "which {kind} is right before {text}?"),
)


def dates(rng: random.Random) -> Item:
    """A question on weekdays, months or leap years."""
    kind = rng.randrange(5)
    if kind == 0:
        month = rng.choice([*MONTHS, "a year"])
        days = {"February": "28, or 29 in a leap year.", "a year": "365, or 366 in a leap year."}
        answer = days.get(month) or f"{MONTHS[month]}."
        return Item(f"length of {month}", LENGTH, answer, {"text": name_as_typed(month, rng)}, closed=True)
    if kind in (1, 2):
        year = rng.choice((rng.randint(1990, 2040), rng.randint(1600, 2400), 100 * rng.randint(16, 24)))
        code = f"{year}%{400 if year % 100 == 0 else 4}"  # the rule of the Gregorian calendar
        answer = "Yes." if calculated(code) == "0" else "No."
        return Item(f"leap year {year}", LEAP, answer, {"text": str(year)}, code)
    names, what = rng.choice(((list(MONTHS), "month"), (WEEKDAYS, "day")))
    place, (step, wordings) = rng.randrange(len(names)), rng.choice(((1, AFTER), (-1, BEFORE)))
    slots = {"text": name_as_typed(names[place], rng), "kind": what}
    answer = f"{names[(place + step) % len(names)]}."
    return Item(f"{step} {names[place]}", wordings, answer, slots, closed=True)
