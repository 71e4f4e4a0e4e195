"""The tool parser `nanogka` of vLLM: a call of the calculator in generated text becomes `tool_calls`."""

import json
from collections.abc import Sequence
from uuid import uuid4

from vllm.tool_parsers import ToolParser

from nanogka.data.tool_calls import ARGUMENT, CALL_END, CALL_START, FUNCTION, read_reply

try:
    from vllm.entrypoints.generate.base import protocol
except ImportError:  # before vLLM 0.31
    from vllm.entrypoints.openai.engine import protocol


class CalculatorToolParser(ToolParser):
    """Reads one call at the end of a reply. Generation stops with the token that ends the call.

    A reply that `max_tokens` cuts within a call has no call.
    """

    supports_required_and_named = False  # a call is no JSON, so the model cannot be forced to make one

    def __init__(self, tokenizer, tools=None) -> None:
        super().__init__(tokenizer, tools)
        self.sent, self.called = 0, False  # number of characters, and whether the call was streamed

    def adjust_request(self, request):
        """Keep the special tokens in the text, the last one included: they mark a call and show that it is complete."""
        if request.tools and request.tool_choice != "none":
            request.skip_special_tokens, request.include_stop_str_in_output = False, True
        return request

    def extract_tool_calls(self, model_output: str, request):
        """The text and the call of a complete reply."""
        said, arguments = _read(model_output)
        calls = []
        if arguments is not None:
            calls = [protocol.ToolCall(function=protocol.FunctionCall(name=FUNCTION, arguments=arguments))]
        # Without `tools_called` vLLM returns the text as it was generated, with its special tokens.
        changed = bool(calls) or said != model_output
        return protocol.ExtractedToolCallInformation(tools_called=changed, tool_calls=calls, content=said or None)

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request,
    ):
        """Return what is new in a reply so far, `current_text`: its text at once, its call when it is complete."""
        said, arguments = _read(current_text)
        new, self.sent = said[self.sent :], max(self.sent, len(said))
        calls = []
        if arguments is not None and not self.called:
            self.called = True
            self.prev_tool_call_arr.append({"name": FUNCTION, "arguments": arguments})
            self.streamed_args_for_tool.append(arguments)
            function = protocol.DeltaFunctionCall(name=FUNCTION, arguments=arguments)
            calls = [protocol.DeltaToolCall(index=0, id=f"call_{uuid4().hex}", type="function", function=function)]
        # A delta takes nothing for absent fields: an empty list would become `"tool_calls": []`.
        delta = ({"content": new} if new else {}) | ({"tool_calls": calls} if calls else {})
        return protocol.DeltaMessage(**delta) if delta else None


def _read(text: str) -> tuple[str, str | None]:
    """The words of the model, and the arguments of its call as JSON, None without a complete one."""
    said, expression = read_reply(text)
    complete = CALL_END in text.partition(CALL_START)[2]
    return said, json.dumps({ARGUMENT: expression}, ensure_ascii=False) if complete else None
