"""Sums, differences, products, quotients and short expressions, all computed with the calculator.

Numbers have up to seven digits, with or without decimals. The call is the expression of the question with the signs
of Python, so the model copies the numbers.
"""

import random
import re

from nanogka.generate.calculator import calculate
from tasks.items import Item, Wordings
from tasks.promise import REFUSAL

ASKED = (
    "{expression}",
    "{expression}",
    "{expression}",
    "what is {expression}?",
    "[||what is |what's |whats |how much is ]{expression}[?| = ?| =|=|=?]",
    "[please |can you |could you |now |][calculate|compute|solve|work out][|:] {expression}[|.| for me.]",
    "[tell me |give me ][the result of |the answer to |what is |]{expression}.",
    "[what is|what's] the [result of|answer to] {expression}?",
    "what [does|do] {expression} [equal|make|give]?",
    "[how much|what] [do you get for|do i get for|is] {expression}?",
    "[tell me|do you know|can you tell me] [what|how much] {expression} is.",
    "[quick|math question|my question|question|next|the sum]: {expression}",
    "i [want|need] you to [calculate|compute] {expression}.",
)
EXPRESSION = Wordings(ASKED)
SUM = Wordings(
    (
        *ASKED,
        "add {joined}.",
        "[please |can you |could you |now |]add {joined}[|| together| for me].",
        "[please |can you |could you |now |][add|add up|sum|sum up|total] {list}[|| together| for me].",
        "[what is |what's |tell me |find |calculate |compute |give me |]the [sum|total] of {list}?",
        "what do you get if you add {joined}?",
        "what [do|does] {list} [add up to|make together|sum to]?",
    )
)
DIFFERENCE = Wordings(
    (
        *ASKED,
        "[please |can you |could you |now |][subtract|take|deduct] {second} from {first}[|| for me].",
        "[what is |what's |tell me |find |calculate |compute |give me |]the difference [of|between] {first} "
        "and {second}?",
        "[|what is |how much is ]{first} [less|take away|minus] {second}?",
        "what [is left|remains] [of|from] {first} [after taking|if i take|if you take] {second}?",
        "what do you get if you [subtract|take] {second} from {first}?",
    )
)
PRODUCT = Wordings(
    (
        *ASKED,
        "multiply {joined}.",
        "[please |can you |could you |now |]multiply {joined}[|| together| for me].",
        "[what is |what's |tell me |find |calculate |compute |give me |]the product of {list}?",
        "what do you get if you multiply {joined}?",
    )
)
QUOTIENT = Wordings(
    (
        *ASKED,
        "divide {first} by {second}.",
        "[please |can you |could you |now |][divide|split] {first} by {second}[|| for me].",
        "[what is |what's |tell me |find |calculate |compute |give me |]the quotient of {first} and {second}?",
        "what do you get if you divide {first} by {second}?",
    )
)
SIGNS = {
    "+": (" + ", " + ", " + ", "+", "+", " plus ", " and "),
    "-": (" - ", " - ", " - ", "-", "-", " minus "),
    "*": (" * ", " * ", "*", "*", " x ", "x", " times ", " multiplied by "),
    "/": (" / ", " / ", "/", "/", " divided by "),
}
# before the last number of a list
LAST = (" and ", " and ", ", ")
JOIN = {"+": (" to ", " and "), "*": (" by ", " by ", " and ")}  # the same of two numbers, after a verb
LONGEST, PROMISED = 7, 4  # digits of a number, numbers of a sum
RUN = re.compile(r"([1-9])\1{5}")  # six equal digits: a copy may lose count
LENGTHS = (1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7)


def addition(rng: random.Random) -> Item:
    """A sum of two to five numbers. Up to four are promised."""
    if rng.random() < 0.07:
        result = _repeated(rng)
        first = rng.randint(1, result - 1)
        return _chain(rng, "+", SUM, [str(first), str(result - first)])
    return _chain(rng, "+", SUM, _numbers(rng, rng.choice((2, 2, 2, 2, 2, 3, 3, 4, 5))))


def arithmetic(rng: random.Random) -> Item:
    """A difference, a product, a quotient, or an expression of several operations."""
    sign = rng.choice("---***///m")
    if sign == "-" and rng.random() < 0.08:
        result, second = _repeated(rng), rng.randint(1, 10 ** rng.randint(1, 6))
        return _chain(rng, sign, DIFFERENCE, [str(result + second), str(second)])
    if sign == "-":
        numbers = _numbers(rng, 2)
        return _chain(rng, sign, DIFFERENCE, sorted(numbers, key=_value, reverse=rng.random() < 0.9))
    if sign == "*":
        return _chain(rng, sign, PRODUCT, _numbers(rng, rng.choice((2, 2, 2, 2, 3))))
    if sign == "/":
        divisor = rng.randint(1, 12)
        exact = [str(divisor * rng.randint(1, 10 ** rng.randint(1, 5))), str(divisor)]
        return _chain(rng, sign, QUOTIENT, exact if rng.random() < 0.6 else _divisible(rng))
    return _expression(rng)


def division_by_zero(rng: random.Random) -> Item:
    """A call without a result, and then a refusal. So the model need not look for a zero before it calls."""
    return _chain(rng, "/", QUOTIENT, [number(rng), "0"])


def number(rng: random.Random, decimals: bool = False, longest: int = LONGEST) -> str:
    """A number of one to `longest` digits, often a round one or one digit repeated; with `decimals`, up to three."""
    length = min(rng.choice(LENGTHS), longest)
    kind = rng.random()
    if kind < 0.08:
        digits = f"{rng.randint(1, 99)}{'0' * length}"[:length]
    elif kind < 0.13:
        digits = rng.choice("123456789") * length
    elif kind < 0.17:  # equal digits within a number
        digits = f"{rng.randint(1, 99)}{rng.choice('0123456789') * length}"[:length]
    else:
        digits = str(rng.randrange(10 ** (length - 1) if length > 1 else 0, 10**length))
    if decimals:
        places = min(rng.choice((1, 1, 2, 2, 3)), longest - 1)
        fraction = "".join(rng.choice("0123456789") for _ in range(places - 1)) + rng.choice("123456789")
        whole = "0" if rng.random() < 0.15 else digits[: longest - places]
        return f"{whole}.{fraction}"
    # Commas in a number only where none separates numbers.
    return f"{int(digits):,}" if len(digits) > 3 and longest == LONGEST and rng.random() < 0.06 else digits


def long_run(*texts: str) -> bool:
    """Whether one of the numbers has six equal digits in a row, other than zeros."""
    return any(RUN.search(text) for text in texts)


def _repeated(rng: random.Random) -> int:
    """A result of two to seven equal digits. Copying it ends only if the model counts."""
    return int(rng.choice("123456789") * rng.randint(2, LONGEST))


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def _numbers(rng: random.Random, count: int) -> list[str]:
    decimals, longest = rng.random() < 0.25, LONGEST if count == 2 else 4
    numbers = [number(rng, decimals and rng.random() < 0.7, longest) for _ in range(count)]
    if rng.random() < 0.05:
        numbers[rng.randrange(count)] = "0"
    return numbers


def _divisible(rng: random.Random) -> list[str]:
    """Two numbers of which the second is not 0."""
    while True:
        numbers = _numbers(rng, 2)
        if _value(numbers[1]):
            return numbers


def _chain(rng: random.Random, sign: str, wordings: Wordings, numbers: list[str]) -> Item:
    """An item with one sign between all numbers."""
    # The same numbers in another order are the same sum or product.
    key = sign.join(sorted(numbers, key=_value) if sign in "+*" else numbers)
    expression = rng.choice(SIGNS[sign]).join(numbers)
    listed = f"{', '.join(numbers[:-1])}{rng.choice(LAST)}{numbers[-1]}"
    joined = rng.choice(JOIN[sign]).join(numbers) if len(numbers) == 2 and sign in JOIN else listed
    slots = {"expression": expression, "list": listed, "joined": joined, "first": numbers[0], "second": numbers[-1]}
    code = sign.join(numbers)
    answer = calculate(code) or REFUSAL
    beyond = len(numbers) > PROMISED or long_run(code, answer)
    return Item(key.replace(",", ""), wordings, answer, slots, code, beyond=beyond)


def _expression(rng: random.Random) -> Item:
    """Three numbers and two signs, sometimes with parentheses."""
    while True:
        a, b, c = (str(rng.randint(1, 10 ** rng.randint(1, 2))) for _ in range(3))
        first, second = rng.choice("+-*/"), rng.choice("+-*/")
        gap = rng.choice((" ", " ", ""))
        parts = [a, first, b, second, c]
        kind = rng.random()
        if kind < 0.25:
            parts[0], parts[2] = f"({a}", f"{b})"
        elif kind < 0.5:
            parts[2], parts[4] = f"({b}", f"{c})"
        code = "".join(parts)
        result = calculate(code)
        if first != second and result is not None:  # not a division by zero
            return Item(code, EXPRESSION, result, {"expression": gap.join(parts)}, code)
