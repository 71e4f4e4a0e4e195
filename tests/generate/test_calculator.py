"""Tool calls: the calculator against Python's own evaluation, and results forced into the texts of a batch."""

import random
from decimal import ROUND_HALF_UP, Decimal

import pytest
from generate_models import byte_tokenizer, scripted_model

from nanogka.data.conversation import ChatFormat, Conversation, Part
from nanogka.generate.calculator import MAX_CHARACTERS, calculate
from nanogka.generate.continuous import Request
from nanogka.generate.engine import Engine
from nanogka.generate.prompt import prompt_of
from nanogka.generate.session import Session
from nanogka.generate.settings import SamplingParams, SessionSettings

TOKENIZER = byte_tokenizer()
TEMPLATE, SPECIAL = ChatFormat(TOKENIZER), TOKENIZER.special_tokens
START, END, OUTPUT, OUTPUT_END = (
    SPECIAL[f"<|{name}|>"] for name in ("python_start", "python_end", "output_start", "output_end")
)
STOP = SPECIAL["<|assistant_end|>"]


def expression(rng: random.Random, depth: int) -> str:
    """A random expression that is allowed."""
    kind = rng.choice(("number", "number", "count", "unary", "binary", "binary")) if depth else "number"
    if kind == "number":
        return rng.choice((str(rng.randint(0, 10 ** rng.randint(0, 9))), f"{rng.randint(0, 99)}.{rng.randint(0, 99)}"))
    if kind == "count":
        text = "".join(rng.choice("ab c") for _ in range(rng.randint(0, 6)))
        return f"{text!r}.count({rng.choice(('a', 'ab', ' ', ''))!r})"
    if kind == "unary":
        return f"{rng.choice('+-')}({expression(rng, depth - 1)})"
    operation = rng.choice(("+", "-", "*", "/", "//", "%"))
    return f"({expression(rng, depth - 1)}) {operation} {expression(rng, depth - 1)}"


def rounded(value: int | float) -> str:
    """Python's value with at most four decimals, by decimal arithmetic."""
    if isinstance(value, int) or abs(value) >= 1e15:
        return str(value)
    exact = Decimal(value)
    places = 4 if abs(exact) >= Decimal("0.00005") or not exact else 3 - exact.adjusted()
    text = f"{exact.quantize(Decimal(10) ** -places, ROUND_HALF_UP):f}"
    return text.rstrip("0").rstrip(".").replace("-0", "0") if not float(text) else str(float(text)).removesuffix(".0")


def test_an_allowed_expression_has_pythons_value_with_four_decimals():
    rng, values = random.Random(0), 0
    for _ in range(2000):
        code = expression(rng, rng.randint(0, 4))
        if len(code) <= MAX_CHARACTERS:
            try:
                expected = rounded(eval(code, {"__builtins__": {}}))
            except ZeroDivisionError:
                expected = None
            assert calculate(code) == expected
            values += expected is not None
    assert values > 1200


@pytest.mark.parametrize(
    "code,shown",
    [
        *(("7 / 3", "2.3333"), ("3.5 * 2", "7"), ("0.1 + 0.2", "0.3"), ("1 / 32", "0.0313"), ("-1 / 32", "-0.0313")),
        *(
            ("2 / 3", "0.6667"),
            ("3 / 1000000", "3e-06"),
            ("0 / 5", "0"),
            ("-0.0", "0"),
            ("1e15 * 2", "2000000000000000.0"),
        ),
    ],
)
def test_a_number_that_is_not_whole_has_at_most_four_decimals(code, shown):
    assert calculate(code) == shown


@pytest.mark.parametrize("separator,text", [(" ", " banana"), (" ", "Nut"), ("-", "ab c"), ("", "ab"), (" ", "")])
def test_a_text_is_spelled_as_python_joins_it(separator, text):
    assert calculate(f'"{separator}".join("{text}")') == separator.join(text)


def test_commas_in_numbers_and_blanks_around_the_expression_are_ignored():
    assert calculate(" 1,200 + 34") == "1234"
    assert calculate(' "a,b,c".count(",")') == "2"


@pytest.mark.parametrize(
    "code",
    [
        *("", "2 +", "1e999", "1e200 * 1e200", "1 / 0", "2 ** 3", "10 ** 9 ** 9", "'a' * 9", "'a'", "True", "1j", "x"),
        *("__import__('os')", "'a'.upper()", "'a'.count('a', 0)", "'a'.count(sub='a')", "'a'.count", "2 & 1", "not 1"),
        *(
            "' '.join(3)",
            "3.join('a')",
            "' '.join('a', 'b')",
            "1 + ' '.join('a')",
            "' '.join",
            "' '.join('a').count('a')",
            f"'{'a' * 90}'.join('{'b' * 90}')",
        ),
        *("\0", "1\n2", "((((" * 45, "9" * 201),
    ],
)
def test_anything_else_has_no_value(code):
    assert calculate(code) is None


OPTIONS = {"params": SamplingParams(0), "stop_tokens": TEMPLATE.stop_ids, "calculator": True}
CALL = [START, *b"12*3", END, OUTPUT_END, *b"yes", STOP]  # what the model writes; the output's end precedes "yes"


def test_a_result_is_forced_into_one_text_of_a_batch():
    engine = Engine(scripted_model({0: CALL, 1: [*b"no", STOP]}), TOKENIZER)
    calling, talking = Request([[9, 0]], **OPTIONS), Request([[9, 1]], **OPTIONS)
    without = Request([[9, 0]], **OPTIONS | {"calculator": False})
    batch, outputs = engine.batch(), {calling: [], talking: [], without: []}
    batch.add([calling])
    for step in range(20):
        if step == 5:  # the output comes next
            batch.add([talking, without])
        for request, output in batch.step():
            outputs[request].append(output)
    assert [o.token for o in outputs[calling]] == [START, *b"12*3", END, OUTPUT, *b"36", OUTPUT_END, *b"yes", STOP]
    assert [o.forced for o in outputs[calling]] == [False] * 6 + [True] * 4 + [False] * 4
    assert [o.token for o in outputs[talking]] == [*b"no", STOP]
    # The model must not write an output itself.
    assert [o.token for o in outputs[without]] == [START, *b"12*3", END, OUTPUT_END]
    parts = {}
    for output in outputs[calling]:
        parts[output.part] = parts.get(output.part, "") + output.text
    assert parts == {"text": "yes", "python": "12*3", "python_output": "36"}


@pytest.mark.parametrize(
    "script, length, reason",
    [
        ([START, *b"4/0", END, *b"no", STOP], 8, "stop"),  # no value: nothing is forced
        ([START, START], 63, "context"),  # code that never ends
    ],
)
def test_a_call_without_a_result_hangs_nothing(script, length, reason):
    engine = Engine(scripted_model({0: script}), TOKENIZER)
    outputs = [output for (output,) in engine.stream([[0]], **OPTIONS)]
    assert len(outputs) == length
    assert not any(output.forced for output in outputs)
    assert outputs[-1].finish_reason == reason


@pytest.mark.parametrize(
    "code, most, written, inserted, reason",
    [
        (b"12*3", 6, 6, 0, "length"),  # before the result
        (b"12*3", 8, 8, 4, "length"),
        (b"12*3", 10, 10, 4, "stop"),
        (b"1/7", 6, 5, 6, "length"),  # of <|output_start|>0.1429<|output_end|>
    ],
)
def test_a_result_does_not_count_but_is_no_longer_than_the_limit(code, most, written, inserted, reason):
    engine = Engine(scripted_model({0: [START, *code, END, OUTPUT_END, *b"yes", STOP]}), TOKENIZER)
    outputs = [output for (output,) in engine.stream([[0]], **OPTIONS, max_tokens=most)]
    forced = [output.forced for output in outputs]
    assert (forced.count(False), forced.count(True), outputs[-1].finish_reason) == (written, inserted, reason)


def test_a_session_lists_a_call_and_keeps_its_ids():
    engine = Engine(scripted_model({TEMPLATE.start_id: CALL}), TOKENIZER)
    session = Session(engine, SessionSettings(temperature=0), chat=True)
    assert "".join(session.reply("Hi")) == "yes"
    assert session.last.calls == [("12*3", "36")]
    parts = [Part("python", "12*3"), Part("python_output", "36"), Part("text", "yes")]
    prompt = TEMPLATE.render_prompt(Conversation.of("Hi", parts, "Ho"))
    list(session.reply("Ho"))
    assert session.last.prompt_tokens == len(prompt)
    assert session.prefix.reused == len(prompt) - 6  # all but the end of the reply and the new turn
    assert prompt_of(TOKENIZER, Conversation.of("Hi", parts, "Ho")).ids == prompt
