"""Responses of OpenAI's protocol, built from tokens: whole, or in chunks as the tokens come."""

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from nanogka.data.conversation import PYTHON, TEXT
from nanogka.data.tool_calls import tool_call
from nanogka.generate.continuous import Request, TokenOutput
from nanogka.generate.reply import Reply
from nanogka.serve.protocol import ApiRequest, ChatRequest, Served

FINISH_REASONS = {"stop": "stop", "length": "length", "context": "length", "tool_calls": "tool_calls", None: None}


@dataclass
class _Choice:
    """One text of a reply, as far as it came."""

    reply: Reply = field(default_factory=Reply)
    call: dict | None = None  # a call at the end, which the client is to make
    pending: list[TokenOutput] = field(default_factory=list)  # their log-probabilities cannot be reported yet
    reported: list[TokenOutput] = field(default_factory=list)
    finish_reason: str | None = None
    streams_parts: bool = False  # a stream has begun to send the parts of the message

    def new_parts(self, output: TokenOutput) -> list[dict]:
        """Return what a token adds to the parts of a streamed message, in a form that clients merge by index.

        With the first call come all parts so far, because a message without a call has no parts.
        """
        if self.streams_parts:
            return [{"index": len(self.reply.parts) - 1, "type": output.part, "text": output.text}]
        self.streams_parts = True
        return [{"index": index, **asdict(part)} for index, part in enumerate(self.reply.parts)]


class Answer:
    """The answer to one request, with one or more texts. `add` and `chunks` extend it with tokens.

    `echoed` is the scored tokens of each prompt, if the reply repeats its prompts with log-probabilities. All generated
    tokens then have one, too: clients count them to find the prompt's.
    """

    def __init__(
        self,
        api_request: ApiRequest,
        request: Request,
        served: Served,
        echoed: Sequence[Sequence[TokenOutput]] | None = None,
    ) -> None:
        self.api_request, self.request, self.tokenizer = api_request, request, served.engine.tokenizer
        self._special = frozenset(self.tokenizer.special_tokens.values())
        # `logprobs` is a bool in a chat and a number in a completion, where 0 asks for those of the chosen tokens.
        self._client_calls = isinstance(api_request, ChatRequest) and api_request.tools
        self._call_end = self.tokenizer.special_tokens.get("<|python_end|>")
        self._with_logprobs = api_request.logprobs is not None and api_request.logprobs is not False
        ended = "length" if api_request.max_tokens == 0 else None
        self._choices = [_Choice(finish_reason=ended) for _ in range(request.rows)]
        self._echoed = echoed
        self._written = self._inserted = 0  # tokens: by the model, and by the calculator
        chat, kind = api_request.chat, "chat.completion" if api_request.chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": f"{kind}.chunk" if api_request.stream and chat else kind,
            "created": int(time.time()),
            "model": served.name,
        }

    @property
    def complete(self) -> bool:
        """True if every text has ended."""
        return all(choice.finish_reason for choice in self._choices)

    def add(self, output: TokenOutput) -> list[TokenOutput]:
        """Add a token. Returns the tokens whose log-probabilities can be reported now, none unless asked for.

        A token can be reported once its text has begun to appear: a stop string may still cut it away before that. A
        special token has no text and is never reported.
        """
        choice = self._choices[output.sample]
        choice.reply.add(output)
        choice.finish_reason = output.finish_reason
        if self._client_calls and output.part == PYTHON and output.token == self._call_end:
            code = next((code for code, _ in reversed(choice.reply.calls)), "")
            choice.call, choice.finish_reason = tool_call(f"call_{secrets.token_hex(12)}", code), "tool_calls"
        self._written += not output.forced
        self._inserted += output.forced
        if not self._with_logprobs:
            return []
        if self._echoed is not None:
            choice.reported.append(output)
            return []  # is not streamed
        if output.part == TEXT and output.token not in self._special:
            choice.pending.append(output)
        ready = [pending for pending in choice.pending if pending.offset < len(choice.reply.text)]
        choice.pending = choice.pending[len(ready) :]
        choice.reported += ready
        return ready

    def whole(self) -> dict:
        """Return the complete reply."""
        choices = []
        for index, choice in enumerate(self._choices):
            message: dict[str, Any] = {"role": "assistant", "content": choice.reply.text}
            if choice.call is not None:
                message |= {"content": choice.reply.text or None, "tool_calls": [choice.call]}
            elif choice.reply.calls:
                message["parts"] = [asdict(part) for part in choice.reply.parts]
            prompt, reported = self._prompt(index), choice.reported
            if self._echoed is not None:
                generated = (replace(output, offset=output.offset + len(prompt)) for output in reported)
                reported = [*self._echoed[index // self.request.n], *generated]
            content = {"message": message} if self.api_request.chat else {"text": prompt + choice.reply.text}
            choices.append(self._choice(index, content, reported, choice.finish_reason))
        return {**self._head, "choices": choices, "usage": self.usage()}

    def _prompt(self, index: int) -> str:
        """Return the text that comes before text `index`: its prompt, if the client asks for it."""
        if not self.api_request.repeats_prompt:
            return ""
        ids = self.request.prompts[index // self.request.n]
        return self.tokenizer.decode(token for token in ids if token not in self._special)

    def usage(self) -> dict:
        """Return the number of prompt and completion tokens. A stop token is counted.

        The calculator's results count as prompt: the model reads them, and `max_tokens` does not limit them.
        """
        prompt, completion = sum(map(len, self.request.prompts)) + self._inserted, self._written
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def first_chunks(self) -> Iterator[dict]:
        """Yield the events that start a stream: in a chat, the role."""
        for index in range(self.request.rows if self.api_request.chat else 0):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def chunks(self, outputs: Sequence[TokenOutput]) -> Iterator[dict]:
        """Add tokens and yield the events that they add to the stream."""
        for output in outputs:
            ready = self.add(output)
            choice = self._choices[output.sample]
            if self._client_calls and output.part != TEXT:
                if choice.call is not None:  # whole, since a client cannot use a part of it
                    yield self._chunk(output.sample, {"tool_calls": [{"index": 0, **choice.call}]})
            elif output.part != TEXT and output.text:
                yield self._chunk(output.sample, {"content": "", "parts": choice.new_parts(output)})
            elif output.text or ready:
                parts = {"parts": choice.new_parts(output)} if choice.streams_parts and output.text else {}
                yield self._chunk(output.sample, {"content": output.text, **parts}, ready)
            if output.finish_reason is not None:
                yield self._chunk(output.sample, {}, finish_reason=choice.finish_reason)

    def last_chunks(self) -> Iterator[dict]:
        """Yield the events that end a stream: token counts, if the client asked for them."""
        if self.api_request.include_usage:
            yield {**self._head, "choices": [], "usage": self.usage()}

    def _chunk(
        self, index: int, delta: dict, reported: Sequence[TokenOutput] | None = None, finish_reason: str | None = None
    ) -> dict:
        content = {"delta": delta} if self.api_request.chat else {"text": delta.get("content", "")}
        return {**self._head, "choices": [self._choice(index, content, reported, finish_reason)]}

    def _choice(
        self, index: int, content: dict, reported: Sequence[TokenOutput] | None, finish_reason: str | None
    ) -> dict:
        logprobs = self._logprobs(reported) if self._with_logprobs and reported is not None else None
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": FINISH_REASONS[finish_reason]}

    def _logprobs(self, outputs: Sequence[TokenOutput]) -> dict:
        if self.api_request.chat:
            content = [
                self._entry(output.token, output.logprob)
                | {"top_logprobs": [self._entry(*other) for other in output.top_logprobs]}
                for output in outputs
            ]
            return {"content": content, "refusal": None}
        decode = self.tokenizer.decode
        return {
            "tokens": [decode([output.token]) for output in outputs],
            "token_logprobs": [output.logprob for output in outputs],
            # Of several tokens that decode to the same text, the likeliest remains: it comes last.
            "top_logprobs": [
                None if o.logprob is None else {decode([t]): value for t, value in reversed(o.top_logprobs)}
                for o in outputs
            ],
            "text_offset": [output.offset for output in outputs],
        }

    def _entry(self, token: int, logprob: float) -> dict:
        data = self.tokenizer.decode_bytes([token])
        return {"token": data.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(data)}
