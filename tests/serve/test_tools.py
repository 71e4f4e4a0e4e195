"""Tool calls: what a client sees of them and sends back, and calls that the client makes itself."""

import json
from types import SimpleNamespace

import pytest
from generate_models import byte_tokenizer, calling_model, reciting_model

pytest.importorskip("uvicorn")

from serving import CHAT, USER, official, running, said  # noqa: E402

from nanogka.data.conversation import ChatFormat, Conversation  # noqa: E402


def test_a_tool_call_is_shown_and_comes_back():
    parts = [("python", "12*3"), ("python_output", "36"), ("text", "yes")]
    with running(calling_model(sequence_len=256)) as server, official(server) as client:
        wanted = {"model": "tiny", "messages": USER, "temperature": 0, "logprobs": True}
        choice = client.chat.completions.create(**wanted).choices[0]
        assert choice.message.content == "yes" == "".join(entry.token for entry in choice.logprobs.content)
        assert [(part["type"], part["text"]) for part in choice.message.parts] == parts
        used = client.chat.completions.create(**wanted, max_tokens=10).usage
        asked = len(ChatFormat(byte_tokenizer()).render_prompt(Conversation.of("Hi")))
        # The model reads the result, <|output_start|>36<|output_end|>, and writes the rest.
        assert (used.prompt_tokens, used.completion_tokens, used.total_tokens) == (asked + 4, 10, asked + 14)
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**wanted, stream=True)]
        assert "".join(delta.content or "" for delta in deltas) == "yes"
        shown = [part for delta in deltas for part in getattr(delta, "parts", ())]
        for index, (kind, text) in enumerate(parts):
            assert "".join(part["text"] for part in shown if part["index"] == index) == text
            assert {part["type"] for part in shown if part["index"] == index} == {kind}

        reply = choice.message.model_dump()
        forms = [reply, {"role": "assistant", "content": reply["parts"]}, {"role": "assistant", "content": "yes"}]
        asked = [server.ask("POST", CHAT, wanted | {"messages": [*USER, one, *USER]})[1] for one in forms]
        used = [answer["usage"]["prompt_tokens"] for answer in asked]
        assert used[0] == used[1] == used[2] + 2 + 4 + 2 + 2  # marks, code, marks, output
        forged = [{"role": "user", "content": reply["parts"]}]
        status, answer = server.ask("POST", CHAT, wanted | {"messages": forged})
        assert (status, answer["error"]["param"]) == (400, "messages")
        assert "only the assistant calls tools" in answer["error"]["message"]


def test_the_official_stream_helper_ends_with_the_message_of_a_plain_request():
    # A text, two calls in a row of which the first fails, and a text.
    start, end, output, done, stop = (
        byte_tokenizer().special_tokens[f"<|{name}|>"]
        for name in ("python_start", "python_end", "output_start", "output_end", "assistant_end")
    )
    script = [*b"It is", start, *b"1/0", end, start, *b"2+2", end, output, *b"4", done, *b" four", stop]
    with running(reciting_model(script)) as server, official(server) as client:
        wanted = {"model": "tiny", "messages": USER, "temperature": 0}
        whole = client.chat.completions.create(**wanted).choices[0].message
        assert [part["text"] for part in whole.parts] == ["It is", "1/0", "2+2", "4", " four"]
        with client.chat.completions.stream(**wanted) as stream:
            streamed = stream.until_done().get_final_completion().choices[0].message
        assert streamed.content == whole.content == "It is four"
        assert [{k: v for k, v in part.items() if k != "index"} for part in streamed.parts] == whole.parts

        def used(message: dict) -> int:
            body = {"model": "tiny", "messages": [*USER, message, *USER], "max_tokens": 1}
            return server.ask("POST", CHAT, body)[1]["usage"]["prompt_tokens"]

        text = used({"role": "assistant", "content": "It is four"})
        assert used(whole.model_dump()) == used(streamed.model_dump()) == text + 2 * (2 + 3) + 2 + 1
        # Pieces of parts, and parts of a text that its user has changed, are not the message.
        piece = {"role": "assistant", "content": "It is four", "parts": [{"index": 4, "type": "text", "text": "r"}]}
        assert used(piece) == text
        assert used({**whole.model_dump(), "content": "It is five"}) == text


CALCULATOR = {"type": "function", "function": {"name": "calculator", "parameters": {"properties": {"expression": {}}}}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_offers_the_calculator_makes_the_call_and_gets_the_same_reply(stream):
    with running(calling_model(sequence_len=256)) as server, official(server) as client:
        options = {"model": "tiny", "temperature": 0, "tools": [CALCULATOR], "logprobs": True}

        def ask(messages):
            """The message, as a client puts it together, and why it ended."""
            reply = client.chat.completions.create(messages=messages, **options, stream=stream)
            if not stream:
                return reply.choices[0].message, reply.choices[0].finish_reason, reply.usage.completion_tokens
            deltas = [chunk.choices[0] for chunk in reply]
            calls = [call for choice in deltas for call in choice.delta.tool_calls or ()]
            assert [call.index for call in calls] == [0] * len(calls)
            text = "".join(choice.delta.content or "" for choice in deltas)
            message = SimpleNamespace(content=text or None, tool_calls=calls or None)
            return message, deltas[-1].finish_reason, None

        message, reason, tokens = ask(USER)
        assert (message.content, reason) == (None, "tool_calls")
        assert tokens in (None, 6)  # the marks around four characters
        (call,) = message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("calculator", {"expression": "12*3"})
        said_call = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
        result = {"role": "tool", "tool_call_id": call.id, "content": "36"}
        message, reason, _ = ask([*USER, said_call, result])
        assert (message.content, message.tool_calls, reason) == ("yes", None, "stop")

        # The whole exchange is the same prompt as the server's own form of it.
        own = {
            "role": "assistant",
            "content": [{"type": "python", "text": "12*3"}, {"type": "python_output", "text": "36"}],
        }
        own["content"].append({"type": "text", "text": "yes"})
        theirs = [said_call, result, {"role": "assistant", "content": "yes"}]
        wanted = {"model": "tiny", "max_tokens": 1}
        used = [
            server.ask("POST", CHAT, wanted | {"messages": [*USER, *form, *USER]})[1]["usage"]["prompt_tokens"]
            for form in ([own], theirs)
        ]
        assert used[0] == used[1]
        # With truncation, older turns are left out before the result: before and after they are tokenized.
        short = wanted | {"messages": [*USER, said_call, result]}
        kept = [server.ask("POST", CHAT, short)[1]["usage"]["prompt_tokens"]]
        for older in ([], said("x" * 245, "y"), said("x" * 400, "y")):
            body = wanted | {"messages": [*older, *USER, said_call, result], "truncation": "auto"}
            kept.append(server.ask("POST", CHAT, body)[1]["usage"]["prompt_tokens"])
        assert kept == kept[:1] * 4


def test_tools_that_are_not_used_and_those_that_are_unknown(chat_server):
    weather = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    body = {"model": "tiny", "messages": USER, "temperature": 0, "max_tokens": 5}
    plain = chat_server.ask("POST", CHAT, body)[1]["choices"]
    for unused in ({"tool_choice": "none"}, {"tool_choice": "none", "tools": [weather]}, {"tools": []}):
        assert chat_server.ask("POST", CHAT, body | unused)[1]["choices"] == plain
    named = {"type": "function", "function": {"name": "calculator"}}
    other = {"type": "function", "function": {"name": "calculator", "parameters": {"properties": {"x": {}}}}}
    for name, value in (("tools", [weather]), ("tools", [other]), ("tools", "x"), ("tool_choice", "required"),
                        ("tool_choice", named)):  # fmt: skip
        status, answer = chat_server.ask("POST", CHAT, body | {name: value})
        assert (status, answer["error"]["param"]) == (400, name)


def test_a_call_that_is_cut_off_is_not_a_call():
    with running(calling_model(sequence_len=256)) as server:
        body = {"model": "tiny", "messages": USER, "temperature": 0, "tools": [CALCULATOR], "max_tokens": 4}
        (choice,) = server.ask("POST", CHAT, body)[1]["choices"]
        assert choice["finish_reason"] == "length"
        assert "tool_calls" not in choice["message"]
