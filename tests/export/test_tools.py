"""The tool parser of vLLM turns the model's call of the calculator into `tool_calls`, whole and streamed.

They run over a stand-in, and with vLLM's own classes where it is installed.
"""

import json
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest

from nanogka.export.vllm import register

REPLIES = {
    "a call": ("<|python_start|>2 + 4<|python_end|>", "", "2 + 4"),
    "a text and a call": ("It is <|python_start|>'a\"é'.count('a')<|python_end|>", "It is ", "'a\"é'.count('a')"),
    "a text": (" 9 < 10<|assistant_end|>", " 9 < 10", None),
    "a call that is cut": ("It is <|python_start|>2 +", "It is ", None),
    "a call that another token ends": ("<|python_start|>2 +<|output_start|>", "", None),
    "an unfinished text": ("9 and", "9 and", None),
    "nothing": ("<|assistant_end|>", "", None),
}


@pytest.fixture(params=["vllm.entrypoints.generate.base", "vllm.entrypoints.openai.engine", "installed"])
def parser(request, monkeypatch):
    """A parser over a stand-in of vLLM, whose message classes have moved once, or over the installed vLLM."""
    if request.param == "installed":
        pytest.importorskip("vllm")
        from vllm.tool_parsers import ToolParserManager

        register()
        return ToolParserManager.get_tool_parser("nanogka")(None, None)

    class ToolParser:
        def __init__(self, tokenizer, tools):
            self.prev_tool_call_arr, self.streamed_args_for_tool = [], []

    kinds = ("ToolCall", "FunctionCall", "DeltaToolCall", "DeltaFunctionCall", "DeltaMessage")
    protocol = SimpleNamespace(**dict.fromkeys((*kinds, "ExtractedToolCallInformation"), SimpleNamespace))
    names = [request.param.rsplit(".", count)[0] for count in range(request.param.count(".") + 1)]
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[request.param].protocol = protocol
    monkeypatch.setitem(sys.modules, "vllm.tool_parsers", SimpleNamespace(ToolParser=ToolParser))
    monkeypatch.setitem(sys.modules, "nanogka.export.vllm.tools", None)
    del sys.modules["nanogka.export.vllm.tools"]
    return import_module("nanogka.export.vllm.tools").CalculatorToolParser(None, None)


@pytest.mark.parametrize("case", REPLIES)
def test_a_reply_has_its_text_and_a_complete_call(parser, case):
    generated, content, expression = REPLIES[case]
    found = parser.extract_tool_calls(generated, None)
    content_given = found.content if found.tools_called else generated  # as vLLM takes it
    assert (content_given or "") == content
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls]
    assert calls == ([] if expression is None else [("calculator", {"expression": expression})])


@pytest.mark.parametrize("case", REPLIES)
def test_a_stream_gives_the_same_text_in_pieces_and_the_call_once(parser, case):
    generated, content, expression = REPLIES[case]
    pieces = generated.replace("<|", "\0<|").replace("|>", "|>\0").replace(" ", " \0").split("\0")
    text, said, calls = "", [], []
    for piece in [*filter(None, pieces), ""]:
        before, text = text, text + piece
        delta = parser.extract_tool_calls_streaming(before, text, piece, (), (), (), None)
        if delta is not None:
            assert getattr(delta, "content", None) or getattr(delta, "tool_calls", None)
            said.append(getattr(delta, "content", None) or "")
            calls += getattr(delta, "tool_calls", None) or []
    assert "".join(said) == content
    assert [json.loads(call.function.arguments) for call in calls] == (
        [] if expression is None else [{"expression": expression}]
    )
    assert parser.streamed_args_for_tool == [call.function.arguments for call in calls]  # nothing is left to send


@pytest.mark.parametrize("tools,choice,kept", [([{}], "auto", True), ([{}], "none", False), (None, "none", False)])
def test_a_request_with_tools_keeps_the_special_tokens_of_its_text(parser, tools, choice, kept):
    request = SimpleNamespace(
        tools=tools, tool_choice=choice, skip_special_tokens=True, include_stop_str_in_output=False
    )
    request = parser.adjust_request(request)
    assert (request.skip_special_tokens, request.include_stop_str_in_output) == (not kept, kept)
