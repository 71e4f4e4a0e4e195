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
    (
        "how many days [are in|are there in|in|has|make|make up] [|the month of |the month ]{text}?",
        "how many days does [|the month of |the month ]{text} [have|contain]?",
        "how [long is|many days long is] [|the month of |the month ]{text}?",
        "[|the |what is the |tell me the |give me the ]number of days [in|of] [|the month of |the month ]{text}.",
        "[tell me|do you know|can you tell me|say] how many days [{text} has|are in {text}|there are in {text}].",
    )
)
A_YEAR = Wordings(tuple(pattern.replace("[|the month of |the month ]", "") for pattern in LENGTH.patterns))
LEAP = Wordings(
    (
        "is {text} a leap year?",
        "[is|was] [|the year ]{text} [a leap year|leap|leap year|one of the leap years]?",
        "[will|would] [|the year ]{text} be [a leap year|leap]?",
        "[|year |the year ]{text}[, leap year|, a leap year|: leap year|: is it a leap year| - leap year]?",
        "[tell me|do you know|can you tell me|say] [if|whether] [|the year ]{text} [is|was] a leap year.",
        "does [|the year ]{text} have a leap day?",
    )
)
AFTER = Wordings(
    (
        "[what|which] {kind} [comes|is|comes right|is right|comes next|is next] after {text}?",
        "[what|which] {kind} [follows|follows after] {text}?",
        "what [comes|follows|comes next|is next] after {text}?",
        "[what is|what's|name] the [|next ]{kind} after {text}?",
        "[tell me|do you know|can you tell me|say] [what|which] {kind} [comes after|is after|follows] {text}.",
    )
)
BEFORE = Wordings(
    (
        "[what|which] {kind} [comes|is|comes right|is right|was|comes just] before {text}?",
        "[what|which] {kind} [precedes|is followed by] {text}?",
        "what [comes|is right|was|comes right] before {text}?",
        "[what is|what's|name] the [|last ]{kind} before {text}?",
        "[tell me|do you know|can you tell me|say] [what|which] {kind} [comes before|is before|precedes] {text}.",
    )
)


def dates(rng: random.Random) -> Item:
    """A question on weekdays, months or leap years."""
    # Half of the questions are on the order of weekdays and months: 38 answers to learn by heart, from many wordings.
    kind = rng.randrange(8)
    if kind == 0:
        month = rng.choice([*MONTHS, "a year"])
        days = {"February": "28, or 29 in a leap year.", "a year": "365, or 366 in a leap year."}
        answer = days.get(month) or f"{MONTHS[month]}."
        wordings, slots = LENGTH if month in MONTHS else A_YEAR, {"text": name_as_typed(month, rng)}
        return Item(f"length of {month}", wordings, answer, slots, closed=True)
    if kind in (1, 2, 3):
        year = rng.choice((rng.randint(1990, 2040), rng.randint(1600, 2400), 100 * rng.randint(16, 24)))
        code = f"{year}%{400 if year % 100 == 0 else 4}"  # the rule of the Gregorian calendar
        answer = "Yes." if calculated(code) == "0" else "No."
        return Item(f"leap year {year}", LEAP, answer, {"text": str(year)}, code)
    names, what = rng.choice(((list(MONTHS), "month"), (WEEKDAYS, "day")))
    place, (step, wordings) = rng.randrange(len(names)), rng.choice(((1, AFTER), (-1, BEFORE)))
    slots = {"text": name_as_typed(names[place], rng), "kind": what}
    answer = f"{names[(place + step) % len(names)]}."
    return Item(f"{step} {names[place]}", wordings, answer, slots, closed=True)
