"""The calculator as a tool in OpenAI's form, which other programs and their data sets use:

    {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function":
        {"name": "calculator", "arguments": "{\\"expression\\": \\"12 * 3\\"}"}}]}
    {"role": "tool", "content": "36"}
    {"role": "assistant", "content": "It is 36."}

The three messages are one reply of ours, with the parts python, python_output and text. A result without text stands
for a call that failed: then the model continues without a result, as it does when our engine calculates.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from nanogka.common.formatting import shorten
from nanogka.data.chat_forms import marks_of
from nanogka.tokenizer import SPECIAL_TOKENS

FUNCTION, ARGUMENT = "calculator", "expression"  # the only function and its only argument
CALCULATOR = {  # the function as clients declare it in `tools`
    "type": "function",
    "function": {
        "name": FUNCTION,
        "description": "Compute + - * / // % and parentheses of numbers, or count a text in another",
        "parameters": {
            "type": "object",
            "properties": {ARGUMENT: {"type": "string", "description": "such as 2 + 4 or 'banana'.count('a')"}},
            "required": [ARGUMENT],
        },
    },
}
CALL_START, CALL_END = "<|python_start|>", "<|python_end|>"  # around the expression in a generated text
ASSISTANT, TOOL = "assistant", "tool"
_MARKS = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))


def join_tool_calls(messages: Sequence[object]) -> tuple[list[tuple[int, object]], bool]:
    """Join each reply with tool calls into one message with parts.

    Returns the messages with their numbers, from 1, and whether the last reply is to be continued after a result.
    Raises ValueError that names a message.
    """
    joined: list[tuple[int, Any]] = []
    awaits = ""  # what must come after the last message: a "result", the "rest" of the reply, or nothing
    for number, entry in enumerate(messages, 1):
        message = entry if isinstance(entry, dict) else {}
        role = message.get("role")
        calls = message.get("tool_calls") if role == ASSISTANT else None
        expected = {"result": TOOL, "rest": ASSISTANT}.get(awaits, role)
        if role != expected or (role == TOOL and not awaits):
            wanted = (
                f"expected {expected} after a tool call" if awaits else "expected it after a message with tool_calls"
            )
            raise ValueError(f"message {number}: got {shorten(repr(role))}, {wanted}")
        if not (calls or awaits):
            joined.append((number, entry))
            continue
        try:
            if role == TOOL:
                parts, awaits = _result(message.get("content")), "rest"
            else:
                begins = not awaits
                if begins:
                    joined.append((number, message | {"content": [], "tool_calls": None}))
                else:
                    joined[-1][1].update(marks_of(message))  # the reply is learned if all its messages are
                parts, awaits = _texts(message.get("content")), ""
                if calls:
                    parts, awaits = [*parts, {"type": "python", "text": _expression(calls)}], "result"
        except ValueError as error:
            raise ValueError(f"message {number}: {error}") from None
        joined[-1][1]["content"].extend(parts)
    if awaits == "result":
        raise ValueError(f"message {len(messages)}: got tool_calls at the end, expected a tool message after it")
    return joined, awaits == "rest"


def read_reply(generated: str) -> tuple[str, str | None]:
    """Return the text of a generated reply, read with its special tokens, and the expression of its first call.

    The expression is None without a call. What follows the call is dropped, because the model wrote it without the
    result. A call may lack its last token, at which generation stops. Any other special token ends the reply.
    """
    text, mark, call = generated.partition(CALL_START)
    return _MARKS.split(text)[0], _MARKS.split(call)[0] if mark else None


def tool_call(identity: str, expression: str) -> dict:
    """Return a call in OpenAI's form."""
    arguments = json.dumps({ARGUMENT: expression}, ensure_ascii=False)
    return {"id": identity, "type": "function", "function": {"name": FUNCTION, "arguments": arguments}}


def _expression(calls: object) -> str:
    """Return the expression of a message's only call."""
    wanted = f"a single call of {FUNCTION} with a text {ARGUMENT!r} among its arguments"
    call = calls[0] if isinstance(calls, list) and len(calls) == 1 and isinstance(calls[0], dict) else {}
    function = call.get("function", call)
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    expression = arguments.get(ARGUMENT) if isinstance(arguments, dict) else None
    if not isinstance(expression, str) or not isinstance(function, dict) or function.get("name") != FUNCTION:
        raise ValueError(f"tool_calls: got {shorten(repr(calls))}, expected {wanted}")
    return expression


def _texts(content: object) -> list:
    """Return the parts of a message's content. None and empty text have none."""
    if isinstance(content, list):
        return content
    return [] if content is None or content == "" else [{"type": "text", "text": content}]


def _result(content: object) -> list[dict]:
    """Return the part of a tool's result: text, or a list of parts with text."""
    parts = _texts(content)
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if len(texts) < len(parts):
        raise ValueError(f"content of tool: got {shorten(repr(content))}, expected text")
    text = "".join(texts)
    return [{"type": "python_output", "text": text}] if text else []
