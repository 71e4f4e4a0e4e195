"""Replies of OpenAI's protocol, from the tokens of a job: whole, or in chunks as they come."""

import secrets
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate

from nanogka.generate.continuous import Event, Job
from nanogka.serve.requests import Request, Served

FINISH = {"stop": "stop", "length": "length", "context": "length"}


class Reply:
    """The reply to one request, which `take` and `chunks` build up."""

    def __init__(self, request: Request, job: Job, served: Served) -> None:
        self.request, self.job, self.tokenizer = request, job, served.engine.tokenizer
        self._special = frozenset(self.tokenizer.special_tokens.values())
        self._reports = request.logprobs is not None and request.logprobs is not False
        self._texts = [""] * job.rows
        self._reported: list[list[Event]] = [[] for _ in range(job.rows)]  # tokens whose log-probabilities to send
        self._finish: list[str | None] = [None] * job.rows
        self._generated = 0
        kind = "chat.completion" if request.chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if request.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": f"{kind}.chunk" if request.stream and request.chat else kind,
            "created": int(time.time()),
            "model": served.name,
        }

    @property
    def complete(self) -> bool:
        """True if every text has ended."""
        return None not in self._finish

    def take(self, event: Event) -> bool:
        """Take in a token; returns whether its log-probability is to be reported: a special token is no text."""
        self._texts[event.sample] += event.text
        self._finish[event.sample] = event.finish
        self._generated += 1
        shown = self._reports and event.token not in self._special
        if shown and not self.request.stream:
            self._reported[event.sample].append(event)
        return shown

    def whole(self) -> dict:
        """The reply at once."""
        choices = []
        for index, text in enumerate(self._texts):
            logprobs = self._logprobs(self._reported[index], 0) if self._reports else None
            content = {"message": {"role": "assistant", "content": text}} if self.request.chat else {"text": text}
            choices.append(self._choice(index, content, logprobs, FINISH[self._finish[index]]))
        return {**self._head, "choices": choices, "usage": self.usage()}

    def usage(self) -> dict:
        """Tokens read and generated; a token that ended a text counts."""
        prompt = sum(map(len, self.job.prompts))
        total = prompt + self._generated
        return {"prompt_tokens": prompt, "completion_tokens": self._generated, "total_tokens": total}

    def first_chunks(self) -> Iterator[dict]:
        """The events that begin a stream: the role, in a chat."""
        for index in range(self.job.rows if self.request.chat else 0):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def chunks(self, events: Sequence[Event]) -> Iterator[dict]:
        """Take in tokens; yields the events that they add to a stream."""
        for event in events:
            index, offset = event.sample, len(self._texts[event.sample])
            shown = self.take(event)
            if event.text or shown:
                yield self._chunk(index, {"content": event.text}, self._logprobs([event], offset) if shown else None)
            if event.finish is not None:
                yield self._chunk(index, {}, None, FINISH[event.finish])

    def last_chunks(self) -> Iterator[dict]:
        """The events that end a stream: token counts, if they were asked for."""
        if self.request.include_usage:
            yield {**self._head, "choices": [], "usage": self.usage()}

    def _chunk(self, index: int, delta: dict, logprobs: dict | None = None, finish: str | None = None) -> dict:
        content = {"delta": delta} if self.request.chat else {"text": delta.get("content", "")}
        return {**self._head, "choices": [self._choice(index, content, logprobs, finish)]}

    @staticmethod
    def _choice(index: int, content: dict, logprobs: dict | None, finish: str | None) -> dict:
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, events: Sequence[Event], offset: int) -> dict:
        """Log-probabilities of tokens of one text, the first of which begins at character `offset` of it."""
        if self.request.chat:
            others = [{"top_logprobs": [self._entry(*other) for other in event.alternatives]} for event in events]
            content = [self._entry(e.token, e.log_probability) | other for e, other in zip(events, others)]
            return {"content": content, "refusal": None}
        decode = self.tokenizer.decode
        offsets = accumulate((len(event.text) for event in events[:-1]), initial=offset)
        return {
            "tokens": [decode([event.token]) for event in events],
            "token_logprobs": [event.log_probability for event in events],
            # Of alternatives that decode to the same text the likeliest stays: it comes last.
            "top_logprobs": [{decode([t]): value for t, value in reversed(e.alternatives)} for e in events],
            "text_offset": list(offsets)[: len(events)],
        }

    def _entry(self, token: int, value: float) -> dict:
        data = self.tokenizer.decode_bytes([token])
        return {"token": data.decode("utf-8", errors="replace"), "logprob": value, "bytes": list(data)}
