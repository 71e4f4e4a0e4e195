"""Tool calls in OpenAI's form are the same conversation as ours, token by token, and bad ones are named."""

import json

import pytest
from generate_models import byte_tokenizer

from nanogka.data.conversation import ChatFormat, Conversation, ConversationError, Part
from nanogka.data.tool_calls import tool_call

USER = {"role": "user", "content": "Add"}


def calling(expression: object, content: object = None, **function: object) -> dict:
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": expression}} | function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def result(text: object) -> dict:
    return {"role": "tool", "content": text, "tool_call_id": "a"}


def test_several_calls_with_text_around_them_are_one_reply():
    messages = [
        {"role": "system", "content": "S", "tool_calls": None},  # as `datasets` fills up rows
        USER,
        calling("1 + 2", "It "),
        result("3"),
        calling(None, [{"type": "text", "text": "is "}], arguments=json.dumps({"expression": "x"})),
        result(""),
        {"role": "assistant", "content": "3"},
        USER,
        {"role": "assistant", "content": "", "tool_calls": [tool_call("b", "é")]},
        result([{"type": "text", "text": "4"}]),
        {"role": "assistant", "content": ""},
    ]
    parts = [("text", "It "), ("python", "1 + 2"), ("python_output", "3"), ("text", "is "), ("python", "x")]
    reply = [Part(*part) for part in [*parts, ("text", "3")]]
    expected = Conversation.of("Add", reply, "Add", [Part("python", "é"), Part("python_output", "4")], system="S")
    found = Conversation.from_json({"messages": messages})
    assert found == expected
    assert Conversation.from_json(found.to_json()) == expected


def test_a_prompt_after_a_result_continues_the_reply():
    form = ChatFormat(byte_tokenizer())
    whole = [USER, calling("1"), result("1"), {"role": "assistant", "content": "one"}]
    begun = Conversation.from_json(whole[:-1], complete=False)
    ids, mask = form.render(Conversation.from_json(whole))
    prompt = form.render_prompt(begun)
    assert [*prompt, *b"one", form.stop_id] == ids
    special = form.tokenizer.special_tokens
    learned = [special["<|python_start|>"], ord("1"), special["<|python_end|>"], *b"one", form.stop_id]
    assert [token for token, learn in zip(ids, mask, strict=True) if learn] == learned
    with pytest.raises(ConversationError, match="the last is a tool's result"):
        Conversation.from_json(whole[:-1])


BAD = [
    ([calling("1")], "message 2: got tool_calls at the end, expected a tool message after it"),
    ([calling("1"), USER], "message 3: got 'user', expected tool after a tool call"),
    ([calling("1"), result("1"), USER], "message 4: got 'user', expected assistant after a tool call"),
    ([result("1")], "message 2: got 'tool', expected it after a message with tool_calls"),
    ([calling(3), result("1")], "message 2: tool_calls: got .* expected a single call of calculator"),
    ([calling("1", name="weather"), result("1")], "message 2: tool_calls: got .* expected a single call of calculator"),
    ([calling("1", arguments="{"), result("1")], "message 2: tool_calls: got"),
    ([calling("1") | {"tool_calls": [{}, {}]}, result("1")], "message 2: tool_calls: got"),
    ([calling("1") | {"tool_calls": "x"}, result("1")], "message 2: tool_calls: got"),
    ([calling("1"), result(3), USER], "message 3: content of tool: got 3, expected text"),
    ([calling("1", 3), result("1"), {"role": "assistant", "content": "a"}], "message 2: content of assistant"),
]


@pytest.mark.parametrize("messages, expected", BAD)
def test_what_is_wrong_with_a_call_is_named_with_its_message(messages, expected):
    with pytest.raises(ConversationError, match=expected):
        Conversation.from_json([USER, *messages], complete=False)
