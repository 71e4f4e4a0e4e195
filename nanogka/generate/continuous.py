"""The decode loop: texts that are generated together and begin and end at any step ("continuous batching").

    batch = engine.batch()
    job = Job([engine.encode("A list")], SamplingSettings(seed=1), max_tokens=32)
    batch.join([job])                          # prefills; other texts go on beside it
    while len(batch):
        for job, event in batch.step():        # one more token of every text
            print(job, event.text)

A step of 16 texts reads every weight once, as a step of one does, and costs little more. A job's texts depend on its
own arguments alone, up to rounding: products of another batch size round differently.

Shapes: B rows (texts being generated), T positions, C model width, V vocabulary of the tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nanogka.common.errors import Errors
from nanogka.generate.sampling import SamplingSettings, sample, sample_generators
from nanogka.generate.text import TextStream
from nanogka.model import GPT, KVCache
from nanogka.tokenizer import Tokenizer


@dataclass(frozen=True)
class Event:
    """One more token of one text."""

    sample: int  # number of the text in its job; prompt p with n samples has numbers p · n to p · n + n − 1
    token: int
    log_probability: float  # in nats under the model itself: temperature 1, no limits, no penalty
    text: str  # what became certain with this token: empty, or one or more whole characters
    finish: str | None  # "stop" (a stop token or string), "length" (`max_tokens`) or "context" (it is full)
    alternatives: Sequence[tuple[int, float]] = ()  # the likeliest tokens in its place, with their log-probabilities


@dataclass(eq=False)
class Job:
    """Prompts to continue together; two jobs are never equal."""

    prompts: Sequence[Sequence[int]]
    settings: SamplingSettings = field(default_factory=SamplingSettings)
    max_tokens: int | None = None  # of each text; None for as many as the context takes
    samples: int = 1  # texts per prompt, which differ by their random numbers
    stop_tokens: Sequence[int] | None = None  # None for the document token
    stop_strings: Sequence[str] = ()  # a text ends before the first of them
    alternatives: int = 0  # number of likeliest tokens to report with each one chosen

    @property
    def rows(self) -> int:
        """The number of texts."""
        return len(self.prompts) * self.samples

    def check(self, context: int, vocab_size: int) -> None:
        """Raise ValueError naming every argument that is out of range for this context and tokenizer."""
        errors, at_least_one = Errors(), "an integer of at least 1"
        errors.require(len(self.prompts) > 0, "prompts", len(self.prompts), "at least one prompt")
        errors.require(self.max_tokens is None or self.max_tokens >= 1, "max-tokens", self.max_tokens, at_least_one)
        errors.require(self.samples >= 1, "samples", self.samples, at_least_one)
        errors.require("" not in self.stop_strings, "stop strings", "", "non-empty strings")
        for prompt in self.prompts:
            if len(prompt) >= context:
                takes = f"at most {context - 1:,}: the context is {context:,} tokens, and the reply needs one of them"
                errors.lines.append(f"prompt: got {len(prompt):,} tokens, expected {takes}")
            elif not prompt:
                errors.lines.append("prompt: got no tokens, expected at least one")
            elif not all(0 <= token < vocab_size for token in prompt):
                errors.lines.append(f"prompt: expected ids from 0 to {vocab_size - 1} only")
        errors.raise_if_any()


@dataclass
class _Row:
    """A text that is being generated."""

    job: Job
    number: int
    generator: torch.Generator
    kind: SamplingSettings  # without the seed: rows of one kind are sampled by one call
    stop_tokens: frozenset[int]
    room: int  # tokens until the context is full
    text: TextStream
    past: Tensor | None  # (2, V): whether a token stands in prompt or text, and how often in the text; for penalties
    tokens: int = 0

    def advance(self, token: int, log_probability: float, alternatives: Sequence[tuple[int, float]]) -> Event:
        """Append a token."""
        self.tokens += 1
        if self.past is not None:
            self.past[0, token] = 1
            self.past[1, token] += 1
        ended, finish = token in self.stop_tokens, None
        text = "" if ended else self.text.push(token)
        if self.tokens >= self.room:
            finish = "context"
        elif self.tokens == self.job.max_tokens:
            finish = "length"
        if ended or finish is not None:
            text += self.text.finish()
        if ended or self.text.stopped:  # also by the end of the text, which may complete a stop string
            finish = "stop"
        return Event(self.number, token, log_probability, text, finish, alternatives)


class PrefixCache:
    """The KV cache of one growing text, kept between calls of `Engine.stream`: each call prefills only what is new.

    A cache can be extended but not rewound (windowed layers have overwritten old positions): a prompt that does not
    begin with all that is cached is read again from the start. The next call invalidates the one before.
    """

    def __init__(self) -> None:
        self.reused = 0  # tokens of the last prompt that were cached already
        self._cache: KVCache | None = None
        self._ids: list[int] = []  # the cache holds the first `lengths[0]` of these

    def begin(self, model: GPT, ids: Sequence[int]) -> KVCache:
        """A cache for the model's whole context that holds a proper prefix of `ids`."""
        cache = self._cache
        cached = self._ids[: cache.lengths[0]] if cache is not None and cache.usable else []
        # The hidden state of the last token predicts the next one, so at least one token must be new.
        if not cached or len(cached) >= len(ids) or list(ids[: len(cached)]) != cached:
            self._cache = cache = None  # frees the memory before the new cache is allocated
            self._cache = cache = KVCache(model, 1, model.config.sequence_len)
        self.reused, self._ids = cache.lengths[0], list(ids)
        return cache

    def append(self, token: int) -> None:
        """Record a generated token, before the model caches it."""
        self._ids.append(token)


class ContinuousBatch:
    """Texts of any number of jobs, which may grow to `capacity` positions; its length is the number of unfinished ones.

    After an exception its state is undefined: begin a new one.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, prefill_chunk: int, capacity: int) -> None:
        self.model, self.tokenizer, self.prefill_chunk, self.capacity = model, tokenizer, prefill_chunk, capacity
        self._rows: list[_Row] = []
        self._cache: KVCache | None = None  # of these rows, None if there are none
        self._logits: Tensor | None = None  # (B, V) of the next token; None until the last one has been read
        self._tokens: Tensor | None = None  # (B,) the last token of each row, which the cache does not hold then

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def jobs(self) -> set[Job]:
        """Jobs with unfinished texts."""
        return {row.job for row in self._rows}

    @torch.no_grad()
    def join(self, jobs: Sequence[Job], prefix: PrefixCache | None = None) -> None:
        """Begin jobs: their prompts, padded to the longest, pass through the model at once.

        `prefix` is for a single job with a single text: the part of its prompt that is cached already. Nothing is
        changed if an argument is out of range.
        """
        for job in jobs:
            job.check(self.model.config.sequence_len, self.tokenizer.vocab_size)
        rows, origins, prompts = [], [], []
        for job in jobs:
            for number, generator in enumerate(sample_generators(job.settings.seed, range(job.rows))):
                prompt = number // job.samples
                rows.append(self._row(job, number, job.prompts[prompt], generator))
                origins.append(len(prompts) + prompt)
            prompts += job.prompts
        if not rows:
            return
        if prefix is not None:
            assert len(rows) == 1, "a prefix cache holds a single text"
            cache = prefix.begin(self.model, prompts[0])
            prompts = [prompts[0][prefix.reused :]]
        else:
            cache = KVCache(self.model, len(prompts), self.capacity)
        hidden = self._prefill(prompts, cache)
        if len(rows) > len(prompts):  # several samples of a prompt: read once, then a copy of its cache for each
            hidden, cache = hidden[origins], cache.select(origins)
        logits = self._unembed(hidden)
        if self._rows:
            self._read()
            cache, logits = self._cache.join(cache), torch.cat([self._logits, logits])
        self._rows, self._cache, self._logits = self._rows + rows, cache, logits

    def _row(self, job: Job, number: int, prompt: Sequence[int], generator: torch.Generator) -> _Row:
        kind, past = replace(job.settings, seed=0), None
        if kind.penalizes:
            past = torch.zeros(2, self.tokenizer.vocab_size, device=self.model.device)
            past[0, torch.as_tensor(prompt, device=past.device)] = 1
        stops = frozenset([self.tokenizer.bos_id] if job.stop_tokens is None else job.stop_tokens)
        room = self.model.config.sequence_len - len(prompt)
        return _Row(job, number, generator, kind, stops, room, TextStream(self.tokenizer, job.stop_strings), past)

    def leave(self, job: Job) -> None:
        """Drop the unfinished texts of a job."""
        self._keep([i for i, row in enumerate(self._rows) if row.job is not job])

    @torch.no_grad()
    def step(self) -> list[tuple[Job, Event]]:
        """One more token of every text; those that end with it leave."""
        if not self._rows:
            return []
        self._read()
        logits, self._logits = self._logits, None
        self._tokens = tokens = self._sample(logits)
        # log softmax of the tokens that are reported alone: log p = logit − log Σ exp(logits).
        log_total = logits.logsumexp(-1)
        log_probabilities = logits.gather(1, tokens[:, None]).squeeze(1) - log_total
        events = []
        for i, (row, token, value) in enumerate(zip(self._rows, tokens.tolist(), log_probabilities.tolist())):
            alternatives = ()
            if count := min(row.job.alternatives, logits.shape[1]):
                values, ids = logits[i].topk(count)
                alternatives = tuple(zip(ids.tolist(), (values - log_total[i]).tolist()))
            events.append((row.job, row.advance(token, value, alternatives)))
        self._keep([i for i, (_, event) in enumerate(events) if event.finish is None])
        return events

    def _read(self) -> None:
        """Pass the last tokens through the model, unless that is done."""
        if self._logits is None:
            self._logits = self._unembed(self.model.hidden(self._tokens[:, None], self._cache)[:, -1])

    def _sample(self, logits: Tensor) -> Tensor:
        """The next token (B,) of each row, from logits (B, V); rows of one kind are sampled at once."""
        kinds: dict[SamplingSettings, list[int]] = {}
        for i, row in enumerate(self._rows):
            kinds.setdefault(row.kind, []).append(i)
        tokens = torch.empty(len(logits), dtype=torch.long, device=logits.device)
        for kind, places in kinds.items():
            rows = [self._rows[i] for i in places]
            past = torch.stack([row.past for row in rows]) if kind.penalizes else None
            at = places if len(kinds) > 1 else slice(None)  # all rows: a view, not a copy
            tokens[at] = sample(logits[at], kind, [row.generator for row in rows], past)
        return tokens

    def _keep(self, places: list[int]) -> None:
        """Drop all other rows."""
        if len(places) < len(self._rows):
            self._rows = [self._rows[i] for i in places]
            self._cache = self._cache.select(places) if places else None
            if self._logits is None:
                self._tokens = self._tokens[places]
            else:
                self._logits = self._logits[places]

    def _prefill(self, prompts: Sequence[Sequence[int]], cache: KVCache) -> Tensor:
        """The hidden state (B, C) of each prompt's last token, all of them read after what the cache holds."""
        longest = max(map(len, prompts))
        ids = torch.full((len(prompts), longest), -1)  # −1: padding, which is never cached
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.as_tensor(prompt)
        ids = ids.to(self.model.device)
        last: list[Tensor | None] = [None] * len(prompts)
        # Chunk by chunk, which bounds the memory of activations whatever the prompts' length.
        for start in range(0, longest, self.prefill_chunk):
            hidden = self.model.hidden(ids[:, start : start + self.prefill_chunk], cache)
            for row, prompt in enumerate(prompts):
                at = len(prompt) - 1 - start
                if 0 <= at < hidden.shape[1]:
                    last[row] = hidden[row, at]
        return torch.stack(last)

    def _unembed(self, hidden: Tensor) -> Tensor:
        """(B, V) float32 of hidden states (B, C), without ids that a padded vocabulary has beyond the tokenizer's."""
        logits = self.model.unembed(hidden)[:, : self.tokenizer.vocab_size]
        if not bool(torch.isfinite(logits).all()):
            raise ValueError("model: its logits are not finite; the weights are damaged")
        return logits
