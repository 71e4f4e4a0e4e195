"""Responses of OpenAI's protocol, built from tokens: whole, or in chunks as the tokens come."""

import secrets
import time
from collections.abc import Iterator, Sequence

from nanogka.data.conversation import TEXT
from nanogka.generate.continuous import Request, TokenOutput
from nanogka.serve.protocol import ApiRequest, Served

FINISH_REASONS = {"stop": "stop", "length": "length", "context": "length"}


class Reply:
    """The reply to one request. `add` and `chunks` extend it with tokens."""

    def __init__(self, asked: ApiRequest, request: Request, served: Served) -> None:
        self.asked, self.request, self.tokenizer = asked, request, served.engine.tokenizer
        self._special = frozenset(self.tokenizer.special_tokens.values())
        self._with_logprobs = asked.logprobs is not None and asked.logprobs is not False
        self._texts = [""] * request.rows
        self._parts: list[list[dict]] = [[] for _ in range(request.rows)]  # texts and tool calls, as in a conversation
        self._pending: list[list[TokenOutput]] = [[] for _ in range(request.rows)]  # their text is held back
        self._reported: list[list[TokenOutput]] = [[] for _ in range(request.rows)]
        self._finish_reasons: list[str | None] = [None] * request.rows
        self._completion_tokens = 0
        kind = "chat.completion" if asked.chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if asked.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": f"{kind}.chunk" if asked.stream and asked.chat else kind,
            "created": int(time.time()),
            "model": served.name,
        }

    @property
    def complete(self) -> bool:
        """Whether every text has ended."""
        return None not in self._finish_reasons

    def add(self, output: TokenOutput) -> list[TokenOutput]:
        """Add a token. Returns the tokens whose log-probabilities can be reported now, none unless asked for.

        A token can be reported once its text has begun to appear: a stop string may still cut it away before that. A
        special token has no text and is never reported.
        """
        i = output.sample
        if output.part == TEXT:
            self._texts[i] += output.text
        if output.text:
            if not self._parts[i] or self._parts[i][-1]["type"] != output.part:
                self._parts[i].append({"type": output.part, "text": ""})
            self._parts[i][-1]["text"] += output.text
        self._finish_reasons[i] = output.finish_reason
        self._completion_tokens += 1
        if not self._with_logprobs:
            return []
        if output.part == TEXT and output.token not in self._special:
            self._pending[i].append(output)
        ready = [pending for pending in self._pending[i] if pending.offset < len(self._texts[i])]
        self._pending[i] = self._pending[i][len(ready) :]
        return ready

    def add_all(self, outputs: Sequence[TokenOutput]) -> None:
        """Add tokens to a reply that is sent whole."""
        for output in outputs:
            self._reported[output.sample] += self.add(output)

    def whole(self) -> dict:
        """Return the complete reply."""
        choices = []
        for i, text in enumerate(self._texts):
            logprobs = self._logprobs(self._reported[i]) if self._with_logprobs else None
            message = {"role": "assistant", "content": text}
            if any(part["type"] != TEXT for part in self._parts[i]):
                message["parts"] = self._parts[i]
            content = {"message": message} if self.asked.chat else {"text": text}
            choices.append(self._choice(i, content, logprobs, FINISH_REASONS[self._finish_reasons[i]]))
        return {**self._head, "choices": choices, "usage": self.usage()}

    def usage(self) -> dict:
        """Return the number of prompt and completion tokens. A stop token is counted."""
        prompt = sum(map(len, self.request.prompts))
        total = prompt + self._completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": self._completion_tokens, "total_tokens": total}

    def first_chunks(self) -> Iterator[dict]:
        """Yield the events that start a stream: in a chat, the role."""
        for index in range(self.request.rows if self.asked.chat else 0):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def chunks(self, outputs: Sequence[TokenOutput]) -> Iterator[dict]:
        """Add tokens and yield the events that they add to the stream."""
        for output in outputs:
            ready = self.add(output)
            if output.part != TEXT and output.text:
                yield self._chunk(output.sample, {"content": "", "part": {"type": output.part, "text": output.text}})
            elif output.text or ready:
                logprobs = self._logprobs(ready) if self._with_logprobs else None
                yield self._chunk(output.sample, {"content": output.text}, logprobs)
            if output.finish_reason is not None:
                yield self._chunk(output.sample, {}, None, FINISH_REASONS[output.finish_reason])

    def last_chunks(self) -> Iterator[dict]:
        """Yield the events that end a stream: token counts, if the client asked for them."""
        if self.asked.include_usage:
            yield {**self._head, "choices": [], "usage": self.usage()}

    def _chunk(self, index: int, delta: dict, logprobs: dict | None = None, finish_reason: str | None = None) -> dict:
        content = {"delta": delta} if self.asked.chat else {"text": delta.get("content", "")}
        return {**self._head, "choices": [self._choice(index, content, logprobs, finish_reason)]}

    @staticmethod
    def _choice(index: int, content: dict, logprobs: dict | None, finish_reason: str | None) -> dict:
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, outputs: Sequence[TokenOutput]) -> dict:
        if self.asked.chat:
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
            "top_logprobs": [{decode([t]): value for t, value in reversed(o.top_logprobs)} for o in outputs],
            "text_offset": [output.offset for output in outputs],
        }

    def _entry(self, token: int, logprob: float) -> dict:
        data = self.tokenizer.decode_bytes([token])
        return {"token": data.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(data)}
