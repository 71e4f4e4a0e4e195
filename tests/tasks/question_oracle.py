"""The right answer to a generated question, read from its text alone: what a person would make of it.

It shares nothing with tasks/ but the promise. `read` gives None for a question that no skill answers.
"""

import calendar
import datetime
import re
from fractions import Fraction

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
LISTED = rf"{NUMBER}(?:(?:,| and| to| by)\s+{NUMBER})+"
OPENING = re.compile(r"^(?:please |hey, |hi, |hello, |hello! |ok, |now |so |and |well, )+", re.I)
CALCULATE = re.compile(
    r"^(?:what(?: is|'s|s| does) |calculate:? |how much is |solve |can you (?:compute|calculate) |tell me |work out "
    r"|compute )?(?P<sum>[^a-wyz]+?)(?: equal| make| =|=)?[ ?=.!]*$",
    re.I,
)
SPELLED = re.compile(
    r"^(?:(?:can you |please |i want you to )?spell(?: the word| the name| out|:)? |how (?:do|would) (?:you|i) spell "
    r"|how does one spell |how is |what are the letters of |what letters are in |which letters does "
    r"|(?:what is the )?spelling of |my word is |give me the letters of |letter by letter: )"
    r"(?P<word>\S+?)(?: for me| please| letter by letter| spelled| have|, spell it)?[ ?.!]*$",
    re.I,
)
COUNTED = re.compile(
    r"^(?:how many (?:letters |times (?:is|does) (?:the letter )?)?|how often is |count (?:how many |the letter |the )?"
    r"|number of )(?P<letter>\"?[a-z]\"?)(?:'s|s)?(?: (?:are there|are|appear|occur|is))? ?(?:in |does |has )"
    r"(?:the word )?(?P<word>\S+?)(?: have)?[ ?.!]*$",
    re.I,
)
CONTAINED = re.compile(r"^how often does (?P<word>\S+) contain (?P<letter>\S+?)[ ?.!]*$", re.I)
REPEATED = re.compile(
    r"^(?:repeat(?: after me:| this:| the words?|:)?|say:?|write|type|copy(?: this:)?|echo|print"
    r"|can you (?:say|repeat)) (?P<text>.+?)(?: please)?[ ?.!]*$",
    re.I,
)
GREETING = r"(?:(?:hello|hi|hey|good morning|good evening)(?: there)?[,!]? )*"
NAMED = re.compile(
    rf"^{GREETING}(?:i am called|you can call me|people call me|the name is|my name is|my name's|call me|this is|it is"
    r"|it's|i am|i'm|im) (?P<name>\w+)(?: speaking)?(?:[.,] (?:who are you|nice to meet you|and you))?[ ?.!]*$"
    rf"|^{GREETING}(?P<before>\w+) here[ ?.!]*$",
    re.I,
)
UNIT_NAMES = {
    **{"hour": "hours h", "minute": "minutes min", "second": "seconds sec", "day": "days", "week": "weeks"},
    **{"month": "months", "year": "years", "kilometer": "kilometers km kilometres", "meter": "meters m metres"},
    **{"centimeter": "centimeters cm centimetres", "millimeter": "millimeters mm", "inch": "inches in"},
    **{"foot": "feet ft", "yard": "yards", "kilogram": "kilograms kg kilos", "gram": "grams g"},
    **{"liter": "liters l litres", "milliliter": "milliliters ml", "dollar": "dollars", "cent": "cents"},
}
PER_UNIT = {
    **{("hour", "minute"): 60, ("minute", "second"): 60, ("day", "hour"): 24, ("week", "day"): 7},
    **{("year", "month"): 12, ("year", "week"): 52, ("kilometer", "meter"): 1000, ("meter", "centimeter"): 100},
    **{("centimeter", "millimeter"): 10, ("kilogram", "gram"): 1000, ("liter", "milliliter"): 1000},
    **{("foot", "inch"): 12, ("yard", "foot"): 3, ("dollar", "cent"): 100},
}
UNIT_OF = {name: unit for unit, names in UNIT_NAMES.items() for name in (unit, *names.split())}
UNIT = "|".join(sorted(UNIT_OF, key=len, reverse=True))
COUNTED_UNIT = rf"(?P<count>{NUMBER}|an?|one) (?P<unit>{UNIT})"
CONVERTED = (
    rf"^how many (?P<to>{UNIT}) (?:are there in|are in|in|are|is|has|do) {COUNTED_UNIT}(?: have)?$",
    rf"^(?:convert |change |what is |what's |how much is )?{COUNTED_UNIT} (?:to|into|in) (?P<to>{UNIT})$",
    rf"^{COUNTED_UNIT} is how many (?P<to>{UNIT})$",
)
MONTHS, DAYS = list(calendar.month_name)[1:], list(calendar.day_name)
NEXT = re.compile(
    r"^(?:what|which)(?: is the)?(?: (?P<kind>month|day))?(?: is)?(?: comes| follows| next| right)* ?"
    r"(?P<way>after|before|) ?(?P<name>[a-z]+)$",
    re.I,
)
LENGTH = re.compile(
    r"^(?:how many days|number of days|how long is|tell me how many days)\W?(?:are there|are|has|does|in| )*"
    r"(?P<name>a year|\w+)"
)


def plain(question: str) -> str:
    """The question without an opening."""
    return OPENING.sub("", question)


def spelled(question: str) -> str | None:
    """ "Spell Nut" → "N u t"."""
    found = SPELLED.match(plain(question))
    return " ".join(found["word"].strip('"')) if found else None


def counted(question: str) -> str | None:
    """ "How many n are in nut?" → "1"."""
    found = COUNTED.match(plain(question)) or CONTAINED.match(plain(question))
    if not found:
        return None
    letter, word = (found[name].strip('"').lower() for name in ("letter", "word"))
    return str(len(word.split(letter)) - 1)


def repeated(question: str) -> str | None:
    """ "Say hello!" → "hello"."""
    found = REPEATED.match(plain(question))
    return found["text"].strip('"') if found else None


def value(expression: str) -> Fraction | None:
    """The exact value of an expression with the signs of Python."""
    if (
        "**" in expression
        or not re.fullmatch(r"[-+*/().,\d\s]+", expression)
        or not re.search(r"\d\)?\s*[-+*/]", expression)
    ):
        return None
    try:
        return eval(re.sub(r"\d+(?:\.\d+)?", r"Fraction('\g<0>')", expression.replace(",", "")))
    except (SyntaxError, ZeroDivisionError):
        return None


def computed(question: str) -> Fraction | None:
    """ "Subtract 3 from 10" → 7."""
    text = plain(question).lower().rstrip("?.! ")
    for pattern, sign in (
        (rf"^(?:add(?: up)?|sum|what is the sum of|the sum of|can you add) ({LISTED})(?: together)?$", "+"),
        (rf"^(?:multiply|what is the product of|the product of|can you multiply) ({LISTED})$", "*"),
        (rf"^(?:divide|what is the quotient of|can you divide) ({LISTED})$", "/"),
        (rf"^what is the difference (?:of|between) ({LISTED})$", "-"),
        (rf"^({NUMBER} less {NUMBER})$", "-"),
    ):
        if found := re.match(pattern, text):
            numbers = re.findall(NUMBER, re.sub(r",(?=\s)", " ", found[1]))
            return value(f" {sign} ".join(numbers))
    for pattern in (
        rf"^(?:subtract|take) (?P<b>{NUMBER}) from (?P<a>{NUMBER})$",
        rf"^what is left of (?P<a>{NUMBER}) after taking (?P<b>{NUMBER})$",
    ):
        if found := re.match(pattern, text):
            return value(f"{found['a']} - {found['b']}")
    for words, sign in (("multiplied by|times|x", "*"), ("divided by", "/"), ("plus|and", "+"), ("minus", "-")):
        text = re.sub(rf"(?<=[\d)]) ?(?:{words}) ?(?=[\d(-])", f" {sign} ", text)
    found = CALCULATE.match(text)
    return value(found["sum"]) if found else None


def converted(question: str) -> str | None:
    """ "how many minutes are in 2 hours" → "120 minutes."."""
    text = plain(question).lower().rstrip("?.! ")
    for found in filter(None, (re.match(pattern, text) for pattern in CONVERTED)):
        one, other = UNIT_OF[found["unit"]], UNIT_OF[found["to"]]
        count = Fraction(1 if found["count"] in ("a", "an", "one") else found["count"].replace(",", ""))
        factor = PER_UNIT.get((one, other)) or Fraction(1, PER_UNIT.get((other, one), 1))
        if factor == 1:
            return None
        return f"{shown(count * factor)} {other if count * factor == 1 else UNIT_NAMES[other].split()[0]}."
    return None


def shown(exact: Fraction) -> str:
    """A result with at most four decimals."""
    rounded = Fraction(int(abs(exact) * 10**4 + Fraction(1, 2)), 10**4) * (1 if exact >= 0 else -1)
    return str(int(rounded)) if rounded.denominator == 1 else str(float(rounded))


def dated(question: str) -> str | None:
    """The calendar's answer."""
    text = plain(question).lower().rstrip("?.! ")
    if found := re.match(
        r"^(?:is|was|will)(?: the year)? (\d+)(?: be)?(?: a)? leap(?: year)?$|^(\d+), leap year$", text
    ):
        year = int(found[1] or found[2])
        return "Yes." if (datetime.date(year, 3, 1) - datetime.date(year, 2, 1)).days == 29 else "No."
    if found := NEXT.match(text):
        name = found["name"].capitalize()
        names = MONTHS if name in MONTHS else DAYS if name in DAYS else None
        if names and found["kind"] in (None, "month" if names is MONTHS else "day"):
            step = -1 if found["way"] == "before" else 1
            return f"{names[(names.index(name) + step) % len(names)]}."
    if found := LENGTH.match(text):
        if found["name"] == "a year":
            return "365, or 366 in a leap year."
        if (name := found["name"].capitalize()) in MONTHS:
            days = [calendar.monthrange(year, MONTHS.index(name) + 1)[1] for year in (2023, 2024)]
            return f"{days[0]}." if days[0] == days[1] else f"{days[0]}, or {days[1]} in a leap year."
    return None


def greeted(question: str) -> str | None:
    """ "hi im tom" → "Hello, tom!"."""
    found = NAMED.match(plain(question))
    return f"Hello, {found['name'] or found['before']}!" if found else None


def answer_of(question: str) -> str | None:
    """The right answer, in the words of the skill that gives it; None if no skill does."""
    exact = computed(question)
    found = [read(question) for read in (spelled, counted, converted, dated, greeted)]
    return next((text for text in found if text), None if exact is None else shown(exact))
