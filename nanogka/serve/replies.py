"""Replies of OpenAI's protocol, made of the tokens of a job: whole, or in chunks as they come."""

import secrets
import time
from collections.abc import Iterator, Sequence

from nanogka.generate.continuous import Token
from nanogka.serve.requests import Request, Served
from nanogka.tokenizer import Tokenizer

FINISH = {"stop": "stop", "length": "length", "context": "length"}


class Reply:
    """The reply to one request.

    Args:
        request: what was asked for.
        served: the model.
    """

    def __init__(self, request: Request, served: Served) -> None:
        self.request, self.served = request, served
        rows = request.job.rows
        self._texts = ["" for _ in range(rows)]
        self._tokens: list[list[Token]] = [[] for _ in range(rows)]
        self._counts, self._finish = [0] * rows, [None] * rows
        kind = "chat.completion" if request.chat else "text_completion"
        if request.stream and request.chat:
            kind += ".chunk"
        self._head = {
            "id": f"{'chatcmpl' if request.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": served.name,
        }

    @property
    def complete(self) -> bool:
        """True if every text has ended."""
        return None not in self._finish

    def usage(self) -> dict:
        """Tokens read and generated; a token that ended a text counts."""
        prompt, generated = sum(map(len, self.request.job.prompts)), sum(self._counts)
        return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}

    def first_chunks(self) -> Iterator[dict]:
        """The events that begin a stream: of a chat, who speaks."""
        if self.request.chat:
            for index in range(self.request.job.rows):
                yield self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def chunks(self, tokens: Sequence[Token]) -> Iterator[dict]:
        """Take in tokens; what they add to a stream."""
        for token in tokens:
            index, text = token.event.sample, token.event.text
            offset = len(self._texts[index])
            shown = self.take(token)
            if text or shown:
                logprobs = self._logprobs([token], offset) if shown else None
                yield self._chunk(index, {"content": text}, logprobs, None)
            if token.event.finish is not None:
                yield self._chunk(index, {}, None, FINISH[token.event.finish])

    def last_chunks(self) -> Iterator[dict]:
        """The events that end a stream: the costs, if they were asked for."""
        if self.request.include_usage:
            yield {**self._head, "choices": [], "usage": self.usage()}

    def take(self, token: Token) -> bool:
        """Take in a token; returns whether its log-probability is to be reported: a special one is no text."""
        event = token.event
        self._texts[event.sample] += event.text
        self._counts[event.sample] += 1
        self._finish[event.sample] = event.finish
        special = self.served.engine.tokenizer.special_tokens.values()
        shown = self.request.logprobs and event.token not in special
        if shown and not self.request.stream:
            self._tokens[event.sample].append(token)
        return shown

    def whole(self) -> dict:
        """The reply at once."""
        choices = []
        for index, text in enumerate(self._texts):
            logprobs = self._logprobs(self._tokens[index], 0) if self.request.logprobs else None
            said = {"message": {"role": "assistant", "content": text}} if self.request.chat else {"text": text}
            finish = FINISH[self._finish[index]]
            choices.append({"index": index, **said, "logprobs": logprobs, "finish_reason": finish})
        return {**self._head, "choices": choices, "usage": self.usage()}

    def _chunk(self, index: int, delta: dict, logprobs: dict | None, finish: str | None) -> dict:
        said = {"delta": delta} if self.request.chat else {"text": delta.get("content", "")}
        choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head, "choices": [choice]}

    def _logprobs(self, tokens: Sequence[Token], offset: int) -> dict:
        """Log-probabilities of tokens of one text, the first of which begins at character `offset` of it."""
        tokenizer = self.served.engine.tokenizer
        if self.request.chat:
            content = [
                {
                    **_described(tokenizer, token.event.token, token.event.log_probability),
                    "top_logprobs": [_described(tokenizer, *other) for other in token.alternatives],
                }
                for token in tokens
            ]
            return {"content": content, "refusal": None}
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token.event.text)
        return {
            "tokens": [tokenizer.decode([token.event.token]) for token in tokens],
            "token_logprobs": [token.event.log_probability for token in tokens],
            "top_logprobs": [
                {tokenizer.decode([other]): value for other, value in reversed(token.alternatives)} for token in tokens
            ],
            "text_offset": offsets,
        }


def _described(tokenizer: Tokenizer, token: int, value: float) -> dict:
    data = tokenizer.decode_bytes([token])
    return {"token": data.decode("utf-8", errors="replace"), "logprob": value, "bytes": list(data)}
