"""Generation: prompts in, events out, one a sample and step.

    engine = Engine(model, tokenizer)
    engine.generate("The with statement", max_tokens=32, temperature=0)

    prompts = [engine.encode("The with statement"), engine.encode("A list")]
    for events in engine.stream(prompts, SamplingSettings(), max_tokens=32):
        for event in events:
            print(event.sample, event.text)

All prompts of a call are read together, padded to the longest and chunk by chunk; then every step gives each unfinished
sample one token. Finished samples leave the batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nanogka.generate.decoder import Decoder, Decoders
from nanogka.generate.sampling import SamplingSettings, sample, sample_generators
from nanogka.generate.text import TextStream
from nanogka.model import GPT
from nanogka.model.kv_cache import DecodeCache
from nanogka.problems import Problems
from nanogka.tokenizer import Tokenizer


@dataclass(frozen=True)
class Event:
    """One more token of one sample.

    Attributes:
        sample: number of the sample; of prompt p with n samples each, p · n to p · n + n − 1.
        token: its id.
        log_probability: of the token under the model itself, in nats (see `sampling.sample`).
        text: what is now certain of the text and was not before; may be empty, may be several characters.
        finish: None while the sample goes on, else "stop" (a stop token or string), "length" (`max_tokens`) or
            "context" (the context is full).
    """

    sample: int
    token: int
    log_probability: float
    text: str
    finish: str | None


@dataclass
class _Sample:
    """A sample that is being generated."""

    number: int
    length: int  # tokens of prompt and reply
    left: int  # tokens it may still get
    text: TextStream
    generator: torch.Generator


class Engine:
    """Generates with one model.

    Args:
        model: any `GPT`; its context length is `model.config.sequence_len`.
        tokenizer: of the vocabulary it was trained with.
        prefill_chunk: positions of the prompts that pass the model at once; bounds the memory of long prompts.
        step: how a token is computed, see `Decoders`.

    Raises:
        ValueError: if the tokenizer has ids that the model does not know, or the step is unknown.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, prefill_chunk: int = 512, step: str = "auto") -> None:
        if tokenizer.vocab_size > model.config.vocab_size:
            raise ValueError(
                f"tokenizer: got {tokenizer.vocab_size} ids, takes at most the model's {model.config.vocab_size}"
            )
        self.model, self.tokenizer, self.prefill_chunk = model, tokenizer, prefill_chunk
        self._decoders = Decoders(model, step)

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
        """The continuation of `prompt` alone; arguments and errors as `stream` and `SamplingSettings`."""
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
        context: int | None = None,
        cache: DecodeCache | None = None,
    ) -> Iterator[list[Event]]:
        """Generate for all prompts at once.

        Args:
            prompts: token ids of each, at least one token.
            settings: of all samples; the defaults of `SamplingSettings` if None.
            max_tokens: of each reply; None for as many as the context takes.
            samples: replies to each prompt, which is read once; they differ by their random numbers.
            stop_tokens: a sample ends with any of them; None for the document token.
            stop_strings: a sample ends where its text first contains one; the string itself is not given out.
            context: tokens of prompt and reply together, by default what the model was trained for.
            cache: of one row, for one prompt: it has read the prompt's first tokens, at least one fewer than all, which
                are not read again. Afterwards it has read the reply too, but for its last token (see `KeptCache`).

        Yields:
            A step's events, one for each sample that was not finished before.

        Raises:
            ValueError: at once, naming every argument that is out of range; while running, if logits are not finite.
        """
        settings = settings or SamplingSettings()
        context = context or self.context
        self._check(prompts, max_tokens, samples, stop_strings, context, cache)
        stops = frozenset([self.tokenizer.bos_id] if stop_tokens is None else stop_tokens)
        generators = sample_generators(settings.seed, range(len(prompts) * samples))
        streams = []
        for number, generator in enumerate(generators):
            length = len(prompts[number // samples])
            left = context - length if max_tokens is None else max_tokens
            streams.append(_Sample(number, length, left, TextStream(self.tokenizer, stop_strings), generator))
        return self._run(prompts, streams, samples, settings, stops, context, cache)

    def _check(
        self,
        prompts: Sequence,
        max_tokens: int | None,
        samples: int,
        stop_strings: Sequence[str],
        context: int,
        cache: DecodeCache | None,
    ) -> None:
        problems = Problems()
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
        if cache is not None and not (cache.whole and cache.batch == len(prompts) == 1):
            problems.lines.append("cache: takes one row, not in the middle of a step, for one prompt")
        elif cache is not None and cache.lengths[0] >= len(prompts[0]):
            takes = f"at most {len(prompts[0]) - 1:,}: of a prompt's tokens one at least must be new"
            problems.lines.append(f"cache: got {cache.lengths[0]:,} tokens, takes {takes}")
        problems.raise_any()

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        streams: list[_Sample],
        samples: int,
        settings: SamplingSettings,
        stops: frozenset[int],
        context: int,
        cache: DecodeCache | None,
    ) -> Iterator[list[Event]]:
        capacity = max(min(stream.length + stream.left, context) for stream in streams)
        hidden, cache = self.prefill(prompts, capacity, cache)
        seen = self._seen(prompts) if settings.repetition_penalty != 1 else None
        if samples > 1:
            cache, hidden = cache.fork(samples), hidden.repeat_interleave(samples, 0)
            seen = None if seen is None else seen.repeat_interleave(samples, 0)
        logits = self._logits(hidden)
        decoder = self._decoders.begin(cache, capacity)
        try:
            yield from self._follow(logits, decoder, streams, settings, stops, context, seen)
        finally:
            decoder.close()

    def _follow(
        self,
        logits: Tensor,
        decoder: Decoder,
        streams: list[_Sample],
        settings: SamplingSettings,
        stops: frozenset[int],
        context: int,
        seen: Tensor | None,
    ) -> Iterator[list[Event]]:
        while True:
            tokens, log_probabilities = sample(logits, settings, [s.generator for s in streams], seen)
            chosen = tokens.tolist()
            events = [
                self._advance(stream, token, value, stops, context)
                for stream, token, value in zip(streams, chosen, log_probabilities.tolist())
            ]
            yield events
            alive = [row for row, event in enumerate(events) if event.finish is None]
            if not alive:
                return
            if seen is not None:
                seen.scatter_(1, tokens[:, None], True)
            if len(alive) < len(streams):
                streams, tokens = [streams[row] for row in alive], tokens[alive]
                decoder.select(alive)
                seen = None if seen is None else seen[alive]
            logits = self._checked(decoder.step(tokens))

    def _advance(self, stream: _Sample, token: int, value: float, stops: frozenset[int], context: int) -> Event:
        stream.length, stream.left = stream.length + 1, stream.left - 1
        text, finish = "", None
        if token in stops:
            finish = "stop"
        else:
            text = stream.text.push(token)
            if stream.text.stopped:
                finish = "stop"
            elif stream.length >= context:
                finish = "context"
            elif stream.left <= 0:
                finish = "length"
        if finish is not None:
            text += stream.text.finish()
            if stream.text.stopped:
                finish = "stop"
        return Event(stream.number, token, value, text, finish)

    @torch.no_grad()
    def prefill(
        self, prompts: Sequence[Sequence[int]], capacity: int | None = None, cache: DecodeCache | None = None
    ) -> tuple[Tensor, DecodeCache]:
        """Read prompts of any lengths, at least one token each; of a single one only what `cache` has not read.

        Returns:
            the hidden state (B, C) of each prompt's last token, and a cache (of `capacity` positions) that holds them.
        """
        if cache is not None:
            prompts = [prompts[0][cache.lengths[0] :]]
        longest = max(map(len, prompts))
        if cache is None:
            cache = DecodeCache(self.model, len(prompts), max(capacity or 0, longest))
        ids = torch.full((len(prompts), longest), -1)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.as_tensor(prompt)
        ids = ids.to(self.model.device)
        last: list[Tensor | None] = [None] * len(prompts)
        for start in range(0, longest, self.prefill_chunk):
            hidden = self.model.hidden(ids[:, start : start + self.prefill_chunk], cache)
            for row, prompt in enumerate(prompts):
                at = len(prompt) - 1 - start
                if 0 <= at < hidden.shape[1]:
                    last[row] = hidden[row, at]
        return torch.stack(last), cache

    @torch.no_grad()
    def _logits(self, hidden: Tensor) -> Tensor:
        """(B, V) float32 of hidden states (B, C), without ids that a padded vocabulary has beyond the tokenizer's."""
        return self._checked(self.model.unembed(hidden))

    def _checked(self, logits: Tensor) -> Tensor:
        logits = logits[:, : self.tokenizer.vocab_size]
        if not bool(torch.isfinite(logits).all()):
            raise ValueError("model: its logits are not finite; the weights are damaged")
        return logits

    def _seen(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """(B, V) bool: the tokens that stand in each prompt."""
        seen = torch.zeros(len(prompts), self.tokenizer.vocab_size, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            seen[row, torch.as_tensor(prompt)] = True
        return seen.to(self.model.device)
