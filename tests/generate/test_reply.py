"""A reply that is collected has the parts that the model wrote: session, parts and exports agree on its calls."""

import pytest
from generate_models import byte_tokenizer, reciting_model

from nanogka.data.conversation import ChatFormat, Conversation, Part
from nanogka.data.tool_calls import read_reply
from nanogka.generate.calculator import calculate
from nanogka.generate.engine import Engine
from nanogka.generate.session import Session
from nanogka.generate.settings import SessionSettings

TOKENIZER = byte_tokenizer()
SPECIAL = TOKENIZER.special_tokens
START, END, OUTPUT, OUTPUT_END, STOP = (
    SPECIAL[f"<|{name}|>"] for name in ("python_start", "python_end", "output_start", "output_end", "assistant_end")
)
FAILED, SUM, RESULT = [START, *b"1/0", END], [START, *b"2+2", END], [OUTPUT, *b"4", OUTPUT_END]


@pytest.mark.parametrize(
    "ids, calls, text",
    [
        ([*FAILED, *SUM, *RESULT, *b"ok"], [("1/0", ""), ("2+2", "4")], "ok"),
        ([*b"a", *SUM, *RESULT, *SUM, *RESULT, *b"b"], [("2+2", "4"), ("2+2", "4")], "ab"),
        ([*b"a", *FAILED, *b"b", *SUM, *RESULT, *b"c"], [("1/0", ""), ("2+2", "4")], "abc"),
        ([*FAILED, *FAILED, *FAILED, *b"no"], [("1/0", "")] * 3, "no"),
    ],
)
def test_calls_in_a_row_stay_apart_and_their_parts_are_the_ids_that_were_generated(ids, calls, text):
    session = Session(Engine(reciting_model([*ids, STOP]), TOKENIZER), SessionSettings(temperature=0), chat=True)
    assert "".join(session.reply("Hi")) == text
    assert (session.last.text, session.last.calls, session.last.ids) == (text, calls, ids)
    parts = session.last.reply.parts
    assert ChatFormat(TOKENIZER).render(Conversation.of("Hi", parts))[0][-len(ids) - 1 : -1] == ids

    # An export stops at each call, and its reader runs the calculator: the same parts.
    found, rest = [], "".join(TOKENIZER.decode([token]) for token in ids)
    while rest:
        said, expression = read_reply(rest)
        found += [Part("text", said)] * bool(said)
        _, mark, rest = rest.partition("<|python_end|>")
        if expression is not None:
            result = calculate(expression)
            found += [Part("python", expression), *([Part("python_output", result)] if result else [])]
            rest = rest.removeprefix(f"<|output_start|>{result}<|output_end|>")
    assert found == parts
