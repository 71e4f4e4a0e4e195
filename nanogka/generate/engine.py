"""Batched generation: prompts in, one event per sample and step out.

    engine = Engine(model, tokenizer)
    engine.generate("The with statement", max_tokens=32, temperature=0)

    prompts = [engine.encode("The with statement"), engine.encode("A list")]
    for events in engine.stream(prompts, SamplingSettings(), max_tokens=32):
        for event in events:
            print(event.sample, event.text)

The prompts of a call are prefilled together, padded to the longest and chunk by chunk; then every step decodes one
token for each unfinished sample. Finished samples leave the batch.

Shapes: B samples that are still generated, C model width, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nanogka.generate.sampling import SamplingSettings, sample, sample_generators
from nanogka.generate.text import TextStream
from nanogka.model import GPT, KVCache
from nanogka.problems import Problems
from nanogka.tokenizer import Tokenizer


@dataclass(frozen=True)
class Event:
    """One more token of one sample.

    Attributes:
        sample: number of the sample; prompt p with n samples has numbers p · n to p · n + n − 1.
        token: its id.
        log_probability: of the token under the model itself, in nats (see `sampling.sample`).
        text: the part of the text that became certain with this token; empty, or one or more whole characters.
        finish: None while the sample goes on, else "stop" (a stop token or string), "length" (`max_tokens`) or
            "context" (the context is full).
    """

    sample: int
    token: int
    log_probability: float
    text: str
    finish: str | None


class PrefixCache:
    """The KV cache of one growing text, kept between calls of `Engine.stream`: each call prefills only what is new.

    A cache can be extended but not rewound, since windowed layers overwrite what they no longer see. Where a prompt
    does not begin with everything that is cached, all of it is prefilled again. One stream at a time: the next call
    invalidates the one before, which may have been abandoned at any moment.

    Attributes:
        reused: tokens of the last prompt that were cached already.
    """

    def __init__(self) -> None:
        self.reused = 0
        self._cache: KVCache | None = None
        self._ids: list[int] = []  # the cache holds the first `lengths[0]` of these

    def begin(self, model: GPT, ids: Sequence[int]) -> KVCache:
        """Return a cache for the model's whole context that holds a proper prefix of `ids`."""
        cache = self._cache
        cached = self._ids[: cache.lengths[0]] if cache is not None and cache.whole else []
        # The hidden state of the last token is needed, so at least one token must be new.
        if not cached or len(cached) >= len(ids) or list(ids[: len(cached)]) != cached:
            self._cache = cache = None  # frees the memory before it is allocated anew
            self._cache = cache = KVCache(model, 1, model.config.sequence_len)
        self.reused, self._ids = cache.lengths[0], list(ids)
        return cache

    def append(self, token: int) -> None:
        """Record a generated token, before the model caches it."""
        self._ids.append(token)


@dataclass
class Sample:
    """A sample that is being generated."""

    number: int
    length: int  # tokens of prompt and reply
    remaining: int  # tokens that it may still get
    text: TextStream
    generator: torch.Generator

    def advance(self, token: int, log_probability: float, stop_tokens: frozenset[int], context: int) -> Event:
        """Append a token; returns the event."""
        self.length, self.remaining = self.length + 1, self.remaining - 1
        text, finish = "", None
        if token in stop_tokens:
            finish = "stop"
        else:
            text = self.text.push(token)
            if self.text.stopped:
                finish = "stop"
            elif self.length >= context:
                finish = "context"
            elif self.remaining <= 0:
                finish = "length"
        if finish is not None:
            text += self.text.finish()
            if self.text.stopped:  # the end of the text completed a stop string
                finish = "stop"
        return Event(self.number, token, log_probability, text, finish)


class Engine:
    """Generates with one model.

    Args:
        model: any `GPT`; its context length is `model.config.sequence_len`.
        tokenizer: of the vocabulary it was trained with.
        prefill_chunk: positions of the prompts that pass through the model at once; bounds the memory of long prompts.

    Raises:
        ValueError: if the tokenizer has ids that the model does not know.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, prefill_chunk: int = 512) -> None:
        if tokenizer.vocab_size > model.config.vocab_size:
            raise ValueError(
                f"tokenizer: got {tokenizer.vocab_size} ids, takes at most the model's {model.config.vocab_size}"
            )
        self.model, self.tokenizer, self.prefill_chunk = model, tokenizer, prefill_chunk

    @property
    def context(self) -> int:
        """Tokens of prompt and reply together that the model was trained for."""
        return self.model.config.sequence_len

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt: a document that begins with `text`. Raises ValueError on a lone surrogate."""
        return [self.tokenizer.bos_id, *self.tokenizer.encode(text)]

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int | None = 256,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop_strings: Sequence[str] = (),
    ) -> str:
        """The continuation of `prompt`; arguments and errors as in `stream` and `SamplingSettings`."""
        settings = SamplingSettings(temperature, top_k, top_p, min_p, repetition_penalty, seed)
        steps = self.stream([self.encode(prompt)], settings, max_tokens=max_tokens, stop_strings=stop_strings)
        return "".join(event.text for events in steps for event in events)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        settings: SamplingSettings | None = None,
        *,
        max_tokens: int | None = None,
        samples: int = 1,
        stop_tokens: Iterable[int] | None = None,
        stop_strings: Sequence[str] = (),
        prefix: PrefixCache | None = None,
    ) -> Iterator[list[Event]]:
        """Generate for all prompts at once.

        Args:
            prompts: token ids of each, at least one token.
            settings: of all samples; the defaults of `SamplingSettings` if None.
            max_tokens: of each reply; None for as many as the context takes.
            samples: replies to each prompt, which is prefilled once; they differ by their random numbers.
            stop_tokens: a sample ends with any of them; None for the document token.
            stop_strings: a sample ends where its text first contains one; the string itself is not part of the text.
            prefix: for a single prompt: what of it need not be prefilled again; updated as the reply is generated.

        Yields:
            The events of a step, one for each sample that was not finished before.

        Raises:
            ValueError: at once, naming every argument that is out of range; while running, if logits are not finite.
        """
        settings = settings or SamplingSettings()
        self.check(prompts, max_tokens, samples, stop_strings)
        assert prefix is None or len(prompts) == samples == 1, "a prefix cache holds a single text"
        batch = self.samples(prompts, settings.seed, max_tokens, samples, stop_strings)
        stops = frozenset([self.tokenizer.bos_id] if stop_tokens is None else stop_tokens)
        return self._run(prompts, batch, settings, stops, prefix)

    def samples(
        self,
        prompts: Sequence[Sequence[int]],
        seed: int,
        max_tokens: int | None,
        samples: int,
        stop_strings: Sequence[str],
    ) -> list[Sample]:
        """The samples of prompts at their beginning; arguments as of `stream`."""
        batch = []
        for number, generator in enumerate(sample_generators(seed, range(len(prompts) * samples))):
            length = len(prompts[number // samples])
            remaining = self.context - length if max_tokens is None else max_tokens
            batch.append(Sample(number, length, remaining, TextStream(self.tokenizer, stop_strings), generator))
        return batch

    def check(
        self, prompts: Sequence[Sequence[int]], max_tokens: int | None, samples: int, stop_strings: Sequence[str]
    ) -> None:
        """Raise ValueError naming every argument of `stream` that is out of range."""
        problems, context = Problems(), self.context
        problems.check(len(prompts) > 0, "prompts", len(prompts), "at least one prompt")
        problems.check(max_tokens is None or max_tokens >= 1, "max-tokens", max_tokens, "an integer of at least 1")
        problems.check(samples >= 1, "samples", samples, "an integer of at least 1")
        problems.check("" not in stop_strings, "stop strings", "", "non-empty strings")
        for prompt in prompts:
            if len(prompt) >= context:
                takes = f"at most {context - 1:,}: the context is {context:,} tokens, and the reply needs one of them"
                problems.lines.append(f"prompt: got {len(prompt):,} tokens, takes {takes}")
            elif not prompt:
                problems.lines.append("prompt: got no tokens, takes at least one")
            elif not all(0 <= token < self.tokenizer.vocab_size for token in prompt):
                problems.lines.append(f"prompt: takes ids from 0 to {self.tokenizer.vocab_size - 1} only")
        problems.raise_any()

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        batch: list[Sample],
        settings: SamplingSettings,
        stops: frozenset[int],
        prefix: PrefixCache | None,
    ) -> Iterator[list[Event]]:
        if prefix is not None:
            cache = prefix.begin(self.model, prompts[0])
            hidden, cache = self.prefill([prompts[0][prefix.reused :]], cache=cache)
        else:
            capacity = max(min(s.length + s.remaining, self.context) for s in batch)
            hidden, cache = self.prefill(prompts, capacity)
        seen = self.seen(prompts) if settings.repetition_penalty != 1 else None
        samples = len(batch) // len(prompts)
        if samples > 1:
            cache, hidden = cache.fork(samples), hidden.repeat_interleave(samples, 0)
            seen = None if seen is None else seen.repeat_interleave(samples, 0)
        logits = self.logits(hidden)
        while True:
            tokens, log_probabilities = sample(logits, settings, [s.generator for s in batch], seen)
            chosen = zip(batch, tokens.tolist(), log_probabilities.tolist())
            events = [s.advance(token, value, stops, self.context) for s, token, value in chosen]
            if prefix is not None:
                prefix.append(events[0].token)
            yield events
            alive = [row for row, event in enumerate(events) if event.finish is None]
            if not alive:
                return
            if seen is not None:
                seen.scatter_(1, tokens[:, None], True)
            if len(alive) < len(batch):
                batch, tokens, cache = [batch[row] for row in alive], tokens[alive], cache.select(alive)
                seen = None if seen is None else seen[alive]
            logits = self.logits(self.hidden(tokens[:, None], cache)[:, -1])

    def prefill(
        self, prompts: Sequence[Sequence[int]], capacity: int | None = None, cache: KVCache | None = None
    ) -> tuple[Tensor, KVCache]:
        """Pass prompts of any lengths, at least one token each, through the model.

        Args:
            prompts: token ids of each; with `cache`, those that follow what it holds.
            capacity: positions of a new cache, at least the longest prompt's; None for as many as that has.
            cache: one to extend, with a row for each prompt.

        Returns:
            the hidden state (B, C) of each prompt's last token, and the cache.
        """
        longest = max(map(len, prompts))
        if cache is None:
            cache = KVCache(self.model, len(prompts), max(capacity or 0, longest))
        ids = torch.full((len(prompts), longest), -1)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.as_tensor(prompt)
        ids = ids.to(self.model.device)
        last: list[Tensor | None] = [None] * len(prompts)
        for start in range(0, longest, self.prefill_chunk):
            hidden = self.hidden(ids[:, start : start + self.prefill_chunk], cache)
            for row, prompt in enumerate(prompts):
                at = len(prompt) - 1 - start
                if 0 <= at < hidden.shape[1]:
                    last[row] = hidden[row, at]
        return torch.stack(last), cache

    @torch.no_grad()
    def hidden(self, ids: Tensor, cache: KVCache) -> Tensor:
        """(B, T, C) of new ids (B, T)."""
        return self.model.hidden(ids, cache)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """(B, V) float32 of hidden states (B, C), without ids that a padded vocabulary has beyond the tokenizer's."""
        logits = self.model.unembed(hidden)[:, : self.tokenizer.vocab_size]
        if not bool(torch.isfinite(logits).all()):
            raise ValueError("model: its logits are not finite; the weights are damaged")
        return logits

    def seen(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """(B, V) bool: the tokens that occur in each prompt."""
        seen = torch.zeros(len(prompts), self.tokenizer.vocab_size, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            seen[row, torch.as_tensor(prompt)] = True
        return seen.to(self.model.device)
