"""The right answer to a generated question, read from its text alone: what a person would make of it.

It shares nothing with tasks/ but the promise. `read` gives None for a question that no skill answers.
"""

import calendar
import datetime
import re
from fractions import Fraction

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
LISTED = rf"{NUMBER}(?:(?:,| and| to| by)\s+{NUMBER})+"
OPENING = re.compile(r"^(?:hey, |hi, |hello, |hello! |ok, |now |so |and |well, )+", re.I)
ASKED = re.compile(
    r"^(?:(?:please|now|just|(?:can|could|would|will) you|i (?:want|need|would like|'d like) you to) )+", re.I
)
POLITE = re.compile(r"(?: please| for me| back to me)$", re.I)
NAMING = r"(?: the word| the name| this word:| this:)?"
WORD = r"(?P<word>\"?[^\W\d]+\"?)"
SPELLED = (
    rf"(?:spell(?: out|:)?|how (?:do|would|should|can) (?:you|i|we) spell(?: out)?){NAMING} {WORD}(?: letter "
    rf"by letter)?",
    rf"how (?:does one spell|to spell|is it you spell) {WORD}",
    rf"how is{NAMING} {WORD} (?:spelled|written)",
    rf"(?:(?:what is|what's|tell me|give me|show me) )?(?:the |correct )?spelling of{NAMING} {WORD}",
    rf"(?:what are|tell me|give me|show me|list|write) (?:all )?the letters (?:of|in){NAMING} {WORD}",
    rf"(?:what|which) letters (?:are in|make up){NAMING} {WORD}",
    rf"(?:what|which) letters does{NAMING} {WORD} have",
    rf"(?:spelling|letter by letter|the word to spell is|(?:spell )?my name|spell this word): {WORD}",
    rf"(?:my word|the word|my name|the next word) is {WORD}[,.] (?:please |how do you )?spell it",
    rf"i (?:(?:want|need|would like|'d like) (?:to know how to|help to)|do not know how to|don't know how to) "
    rf"spell {WORD}",
)
LETTER = r"(?:letters? |the letters? )?(?P<letter>\"?[a-z]\"?)(?:'s|s)?"
COUNTED = (
    rf"(?:how many|count how many(?: times)?|(?:tell me|do you know|say) how many) {LETTER}"
    rf"(?: (?:are there|are|appear|occur|do you see|can you find|are found))? in{NAMING} {WORD}",
    rf"how many {LETTER} (?:does|do){NAMING} {WORD} (?:have|contain)",
    rf"how many {LETTER} has{NAMING} {WORD}",
    rf"how (?:often|many times) (?:is|do you see|can i find|do i find) {LETTER} in{NAMING} {WORD}",
    rf"how (?:often|many times) does {LETTER} (?:appear|occur|come up|show up) in{NAMING} {WORD}",
    rf"how (?:often|many times) does{NAMING} {WORD} (?:contain|have|use) {LETTER}",
    rf"count (?:the |all the |how many )?{LETTER} in{NAMING} {WORD}",
    rf"(?:(?:what is |tell me |give me )?the )?(?:number|count) of {LETTER} in{NAMING} {WORD}",
    rf"in{NAMING} {WORD}, how many {LETTER} are there",
)
REPEATED = (
    r"(?:repeat this text|copy this text|say this after me|say after me|repeat exactly|write down"
    r"|say back|type this): (?P<text>.+)",
    r"(?:repeat|say|write|type|copy|echo|print|output)(?: the following:| this:| after me:?| the words?|:)? "
    r"(?P<text>.+)",
)
HELLO = r"(?:(?:hello|hi|hey|good morning|good evening)(?: there)?[,!.]? )*"
NAME = r"(?P<name>[^\W\d]+)"
CHAT = (
    r"(?: speaking| here)?(?:[.,!]? (?:who are you|nice to meet you|and you|what about you|how are you|what "
    r"can you do))?"
)
NAMED = (
    rf"{HELLO}(?:(?:my friends|people|they|you can|you may|please|just) )?call me {NAME}",
    rf"{HELLO}(?:i am|i'm) (?:called|named) {NAME}",
    rf"{HELLO}(?:the name is|my name is|my name's|my names|this is|it is|it's|its|i am|i'm|im) {NAME}{CHAT}",
    rf"{HELLO}(?!what ){NAME} (?:here|speaking|is my name)",
)
FEELINGS = set(
    "sad tired happy hungry bored sick angry lonely sleepy cold scared lost fine ok confused late busy thirsty rich old"
    " young great funny boring wrong raining over nothing feeling what bad true ready back sorry good well new hot"
    " nervous excited curious lucky fun"
    " monday tuesday wednesday thursday friday saturday sunday".split()
)
FRAME = set(
    "what is what's whats how much does do would please can could you now calculate compute solve work out "
    "evaluate find"
    " tell me give i need know the result value answer solution of to get for we want like help with quick "
    "math question"
    " my next sum equal make come equals".split()
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
    **{("hour", "second"): 60 * 60, ("day", "minute"): 24 * 60, ("day", "second"): 24 * 60 * 60},
    **{("week", "hour"): 7 * 24},
    **{("year", "month"): 12, ("year", "week"): 52, ("kilometer", "meter"): 1000, ("meter", "centimeter"): 100},
    **{("centimeter", "millimeter"): 10, ("kilogram", "gram"): 1000, ("liter", "milliliter"): 1000},
    **{("foot", "inch"): 12, ("yard", "foot"): 3, ("dollar", "cent"): 100},
}
UNIT_OF = {name: unit for unit, names in UNIT_NAMES.items() for name in (unit, *names.split())}
UNIT = "|".join(sorted(UNIT_OF, key=len, reverse=True))
COUNTED_UNIT = rf"(?P<count>{NUMBER}|an?|one) (?P<unit>{UNIT})"
CONVERTED = (
    rf"(?:(?:tell me|do you know|can you tell me|i need to know) )?how many (?P<to>{UNIT})"
    rf" (?:are there in|are in|fit in|in|are|is|has|make|equal) {COUNTED_UNIT}",
    rf"how many (?P<to>{UNIT}) (?:do|does) {COUNTED_UNIT} (?:have|make|equal)",
    rf"(?:(?:convert|change|turn|transform|what is|what's|whats|how much is|how much are|express|give me|tell me) )?"
    rf"{COUNTED_UNIT} (?:to|into|in|as|=) (?P<to>{UNIT})",
    rf"{COUNTED_UNIT} (?:is|are|equals|makes) how many (?P<to>{UNIT})",
    rf"in (?P<to>{UNIT}), (?:what is|how much is|how long is) {COUNTED_UNIT}",
)
MONTHS, DAYS = list(calendar.month_name)[1:], list(calendar.day_name)
TELL = r"(?:tell me|do you know|can you tell me|say)"
NEXT = (
    r"(?:what|which)(?: (?P<kind>month|day))? (?:is followed by|follows|precedes|is|was|comes)(?: right| next| just)? ?"
    r"(?P<way>after|before|) ?(?P<name>[a-z]+)",
    r"(?:what is|what's|name) the (?:next |last )?(?P<kind>month|day) (?P<way>after|before) (?P<name>[a-z]+)",
    rf"{TELL} (?:what|which) (?P<kind>month|day) (?:comes |is |follows|precedes)?(?P<way>after|before|) ?"
    r"(?P<name>[a-z]+)",
)
BACK = re.compile(r"before|precedes|is followed by")
LEAP = (
    r"(?:is|was|will|would)(?: the year)? (?P<year>\d+)(?: be)? (?:(?:a )?leap(?: year)?|one of the leap years)",
    r"(?:the )?(?:year )?(?P<year>\d+)(?:,|:| -)(?: a| is it a)? leap year",
    rf"{TELL} (?:if|whether) (?:the year )?(?P<year>\d+) (?:is|was) a leap year",
    r"does (?:the year )?(?P<year>\d+) have a leap day",
)
SPAN = r"(?:the month (?:of )?)?(?P<name>a year|[a-z]+)"
LENGTH = (
    rf"how many days (?:are in|are there in|in|has|make|make up) {SPAN}",
    rf"how many days does {SPAN} (?:have|contain)",
    rf"how (?:long|many days long) is {SPAN}",
    rf"(?:(?:what is |tell me |give me )?the )?number of days (?:in|of) {SPAN}",
    rf"{TELL} how many days (?:are in |there are in )?{SPAN}(?: has)?",
)


def plain(question: str) -> str:
    """The question without an opening and the mark at its end."""
    return OPENING.sub("", question.rstrip("?.! "))


def request(question: str) -> str:
    """The plain question without words that are only polite."""
    return POLITE.sub("", ASKED.sub("", plain(question)))


def first(patterns: tuple[str, ...], text: str) -> re.Match | None:
    """The match of the first pattern that fits the whole text."""
    return next((found for pattern in patterns if (found := re.fullmatch(pattern, text, re.I))), None)


def spelled(question: str) -> str | None:
    """ "Spell Nut" → "N u t"."""
    found = first(SPELLED, request(question)) or first(SPELLED, plain(question))
    return " ".join(found["word"].strip('"')) if found else None


def counted(question: str) -> str | None:
    """ "How many n are in nut?" → "1"."""
    found = first(COUNTED, request(question))
    if not found:
        return None
    letter, word = (found[name].strip('"').lower() for name in ("letter", "word"))
    return str(len(word.split(letter)) - 1)


def repeated(question: str) -> str | None:
    """ "Say hello!" → "hello"."""
    found = first(REPEATED, request(question))
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
    text = request(question).lower().removesuffix("=").rstrip()
    of = r"(?:(?:(?:what is|what's|tell me|find|calculate|compute|give me) )?the"
    listed = rf"(?P<list>{NUMBER}(?:, {NUMBER})*(?:,| and| to| by|) {NUMBER})"
    a, b = rf"(?P<a>{NUMBER})", rf"(?P<b>{NUMBER})"
    for pattern, sign in (
        (rf"(?:what do you get if you )?(?:add|add up|sum|sum up|total) {listed}(?: together)?", "+"),
        (rf"{of} )(?:sum|total) of {listed}", "+"),
        (rf"what (?:do|does) {listed} (?:add up to|make together|sum to)", "+"),
        (rf"(?:what do you get if you )?multiply {listed}(?: together)?", "*"),
        (rf"{of} )product of {listed}", "*"),
        (rf"(?:what do you get if you )?(?:divide|split) {a} by {b}", "/"),
        (rf"{of} )quotient of {a} and {b}", "/"),
        (rf"how (?:many times|often) does {b} (?:go into|fit into|fit in) {a}", "/"),
        (rf"(?:what do you get if you )?(?:subtract|take|deduct) {b} from {a}", "-"),
        (rf"{of} )difference (?:of|between) {a} and {b}", "-"),
        (rf"(?:what is |how much is )?{a} (?:less|take away|minus) {b}", "-"),
        (rf"what (?:is left|remains) (?:of|from) {a} (?:after taking|if i take|if you take) {b}", "-"),
    ):
        if found := re.fullmatch(pattern, text):
            parts = found.groupdict()
            numbers = re.findall(NUMBER, re.sub(r",(?=\s)", " ", parts["list"])) if "list" in parts else None
            return value(f" {sign} ".join(numbers or [parts["a"], parts["b"]]))
    for words, sign in (("multiplied by|times|x", "*"), ("divided by", "/"), ("plus|and", "+"), ("minus", "-")):
        text = re.sub(rf"(?<=[\d)]) ?(?:{words}) ?(?=[\d(-])", f" {sign} ", text)
    found = re.fullmatch(r"(?P<before>[a-z' ]*[: ]\s*|)(?P<sum>[-+*/().,\d\s]+?)(?P<after>(?: [a-z= ]+)?)", text)
    if not found or not set(re.findall(r"[a-z']+", found["before"] + found["after"])) <= FRAME:
        return None
    return value(found["sum"])


def converted(question: str) -> str | None:
    """ "how many minutes are in 2 hours" → "120 minutes."."""
    if found := first(CONVERTED, request(question).lower()):
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
    text = plain(question).lower()
    if found := first(LEAP, text):
        year = int(found["year"])
        return "Yes." if (datetime.date(year, 3, 1) - datetime.date(year, 2, 1)).days == 29 else "No."
    if found := first(NEXT, text):
        name = found["name"].capitalize()
        names = MONTHS if name in MONTHS else DAYS if name in DAYS else None
        if names and found["kind"] in (None, "month" if names is MONTHS else "day"):
            step = -1 if BACK.search(text) else 1
            return f"{names[(names.index(name) + step) % len(names)]}."
    if found := first(LENGTH, text):
        if found["name"] == "a year":
            return "365, or 366 in a leap year."
        if (name := found["name"].capitalize()) in MONTHS:
            days = [calendar.monthrange(year, MONTHS.index(name) + 1)[1] for year in (2023, 2024)]
            return f"{days[0]}." if days[0] == days[1] else f"{days[0]}, or {days[1]} in a leap year."
    return None


def greeted(question: str) -> str | None:
    """ "hi im tom" → "Hello, tom!"."""
    found = first(NAMED, plain(question))
    if not found or found["name"].lower() in FEELINGS and "name" not in question and "call" not in question:
        return None
    return f"Hello, {found['name']}!"


def answer_of(question: str) -> str | None:
    """The right answer, in the words of the skill that gives it; None if no skill does."""
    exact = computed(question)
    found = [read(question) for read in (spelled, counted, converted, dated, greeted, repeated)]
    return next((text for text in found if text), None if exact is None else shown(exact))
