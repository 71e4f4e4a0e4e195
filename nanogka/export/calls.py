"""The calculator as a tool of OpenAI clients, transformers and vLLM: its name, and how a call reads in a text."""

from typing import NamedTuple

FUNCTION, ARGUMENT = "calculator", "expression"
CALL_START, CALL_END = "<|python_start|>", "<|python_end|>"
CALCULATOR = {
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


class Reply(NamedTuple):
    """A generated text: what was said, and the expression that the calculator is asked for, None without a call."""

    text: str
    expression: str | None


def read_reply(generated: str) -> Reply:
    """Read a generated text with its special tokens. A call may lack its last token, at which generation stops."""
    text, mark, call = generated.partition(CALL_START)
    return Reply(text, call.partition(CALL_END)[0] if mark else None)
