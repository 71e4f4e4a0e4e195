"""A calculator that a model calls while it generates: `<|python_start|>12 * 3<|python_end|>`.

It knows numbers, + - * / // %, parentheses, `"text".count("t")` and `" ".join("text")`, which spells. The expression is
parsed, never run as Python.
Nothing in it can take long: without powers and repeated strings, a number is no longer than the expression, whose
length is limited, as that of a spelled text is.
"""

import ast
import math
import operator
import warnings
from collections import deque
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from nanogka.data.conversation import MARKS, OUTPUT, PYTHON, TEXT
from nanogka.tokenizer import Tokenizer

MAX_CHARACTERS = 200  # of an expression
DECIMALS = 4  # of a result that is not whole
EXACT = 1e15  # floats below have digits to round
BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculate(expression: str) -> str | None:
    """Return the value of an expression, or None if it is not one that is allowed.

    Whole numbers and texts are as Python prints them. Other numbers are rounded to `DECIMALS`, and 7.0 is 7, so that a
    small model can copy them. Commas between the digits of a number are ignored, as in nanochat: 1,000 + 1 is 1001.
    """
    if len(expression) > MAX_CHARACTERS:
        return None
    if not any(quote in expression for quote in "\"'"):
        expression = expression.replace(",", "")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, about odd escapes in strings
            tree = ast.parse(expression.strip(), mode="eval")
        if joined := _called(tree.body, "join"):
            separator, text = joined
            spelled = separator.join(text)
            return spelled if len(spelled) <= 2 * MAX_CHARACTERS else None
        value = _value(tree.body)
        return _printed(value) if math.isfinite(value) else None
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def calculated(expression: str) -> str:
    """`calculate` of an expression that is allowed."""
    value = calculate(expression)
    assert value is not None, f"{expression} is not allowed"
    return value


def _printed(value: int | float) -> str:
    if isinstance(value, int) or abs(value) >= EXACT:
        return str(value)
    rounded = float(Decimal(value).quantize(Decimal(1).scaleb(-DECIMALS), ROUND_HALF_UP))
    if value and not rounded:
        return str(float(f"{value:.{DECIMALS}g}"))
    return str(int(rounded)) if rounded.is_integer() else str(rounded)


def _value(node: ast.expr) -> int | float:
    """Evaluate a number, an operation or a call of `count`. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        return UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        return BINARY[type(node.op)](_value(node.left), _value(node.right))
    if counted := _called(node, "count"):
        text, sought = counted
        return text.count(sought)
    raise ValueError("not an expression that is allowed")


def _called(node: ast.expr, method: str) -> tuple[str, str] | None:
    """The text whose method is called, and the one argument; None if the node is no call of it."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    if not isinstance(node.func, ast.Attribute) or node.func.attr != method:
        return None
    return _text(node.func.value), _text(node.args[0])


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and type(node.value) is str:
        return node.value
    raise ValueError("not a string")


class ToolCalls:
    """The calls in one text, followed token by token. `forced` holds the tokens of a result, which must come next."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.part, self.forced = tokenizer, TEXT, deque()
        self._code: list[int] = []
        code, output = ([tokenizer.special_tokens[name] for name in MARKS[kind]] for kind in (PYTHON, OUTPUT))
        self._begins = {code[0]: PYTHON, code[1]: TEXT, output[0]: OUTPUT, output[1]: TEXT}  # the part after each mark
        self._output_marks = output

    def push(self, token: int) -> bool:
        """Follow a token. Returns whether it is a mark, which ends the part before it.

        The mark that ends a call runs the calculator, and the tokens of its result are added to `forced`.
        """
        before = self.part
        self.part = self._begins.get(token, before)
        if token not in self._begins:
            if before == PYTHON:
                self._code.append(token)
            return False
        if before == PYTHON and self.part == TEXT:
            result = calculate(self.tokenizer.decode(self._code))
            if result is not None:  # otherwise the model continues without a result, as in nanochat
                start, end = self._output_marks
                self.forced.extend([start, *self.tokenizer.encode(result), end])
        self._code = []
        return True
