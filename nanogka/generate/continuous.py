"""The decode loop: texts that are generated together and begin and end at any step ("continuous batching").

    batch = engine.batch()
    job = Job([engine.encode("A list")], SamplingSettings(seed=1), max_tokens=32)
    batch.join([job])                          # prefills; other texts go on beside it
    while len(batch):
        for job, event in batch.step():        # one more token of every text
            print(job, event.text)

Decoding one token reads every weight once, whatever the batch size, so on most hardware a step of 16 texts costs little
more than a step of one. Waiting for a batch to fill and for its slowest text to finish would waste that: here a text
joins as soon as there is room, and its row leaves the batch with its last token.

A job's texts depend on its own arguments alone, whoever else is in the batch, as far as products of another batch size
round alike.

Shapes: B rows (texts being generated), T positions, C model width, V vocabulary of the tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nanogka.generate.sampling import SamplingSettings, sample, sample_generators
from nanogka.generate.text import TextStream
from nanogka.model import GPT, KVCache
from nanogka.problems import Problems
from nanogka.tokenizer import Tokenizer


@dataclass(frozen=True)
class Event:
    """One more token of one text.

    Attributes:
        sample: number of the text in its job; prompt p with n samples has numbers p · n to p · n + n − 1.
        token: its id.
        log_probability: of the token under the model itself, in nats: temperature 1, no limits, no penalty.
        text: the part of the text that became certain with this token; empty, or one or more whole characters.
        finish: None while the text goes on, else "stop" (a stop token or string), "length" (`max_tokens`) or
            "context" (the context is full).
        alternatives: (id, log-probability) of the likeliest tokens in its place, the likeliest first.
    """

    sample: int
    token: int
    log_probability: float
    text: str
    finish: str | None
    alternatives: Sequence[tuple[int, float]] = ()


@dataclass(eq=False)
class Job:
    """Prompts to continue together; two jobs are never equal.

    Attributes:
        prompts: token ids of each, at least one token.
        settings: of all samples.
        max_tokens: of each text; None for as many as the context takes.
        samples: texts per prompt, which is prefilled once; they differ by their random numbers.
        stop_tokens: a text ends with any of them; None for the document token.
        stop_strings: a text ends before the first of them, which is not part of it.
        alternatives: number of likeliest tokens to report with each one chosen.
    """

    prompts: Sequence[Sequence[int]]
    settings: SamplingSettings = field(default_factory=SamplingSettings)
    max_tokens: int | None = None
    samples: int = 1
    stop_tokens: Sequence[int] | None = None
    stop_strings: Sequence[str] = ()
    alternatives: int = 0

    @property
    def rows(self) -> int:
        """The number of texts."""
        return len(self.prompts) * self.samples

    def check(self, context: int, vocab_size: int) -> None:
        """Raise ValueError naming every argument that is out of range for this context and tokenizer."""
        problems = Problems()
        problems.check(len(self.prompts) > 0, "prompts", len(self.prompts), "at least one prompt")
        at_least_one, most = "an integer of at least 1", self.max_tokens
        problems.check(most is None or most >= 1, "max-tokens", most, at_least_one)
        problems.check(self.samples >= 1, "samples", self.samples, at_least_one)
        problems.check("" not in self.stop_strings, "stop strings", "", "non-empty strings")
        for prompt in self.prompts:
            if len(prompt) >= context:
                takes = f"at most {context - 1:,}: the context is {context:,} tokens, and the reply needs one of them"
                problems.lines.append(f"prompt: got {len(prompt):,} tokens, takes {takes}")
            elif not prompt:
                problems.lines.append("prompt: got no tokens, takes at least one")
            elif not all(0 <= token < vocab_size for token in prompt):
                problems.lines.append(f"prompt: takes ids from 0 to {vocab_size - 1} only")
        problems.raise_any()


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
    seen: Tensor | None  # (V,) bool: tokens of prompt and text, for the repetition penalty only
    tokens: int = 0

    def advance(self, token: int, log_probability: float, alternatives: Sequence[tuple[int, float]]) -> Event:
        """Append a token."""
        self.tokens += 1
        if self.seen is not None:
            self.seen[token] = True
        text, finish = "", None
        if token in self.stop_tokens:
            finish = "stop"
        else:
            text = self.text.push(token)
            if self.text.stopped:
                finish = "stop"
            elif self.tokens >= self.room:
                finish = "context"
            elif self.tokens == self.job.max_tokens:
                finish = "length"
        if finish is not None:
            text += self.text.finish()
            if self.text.stopped:  # the end of the text completed a stop string
                finish = "stop"
        return Event(self.number, token, log_probability, text, finish, alternatives)


class PrefixCache:
    """The KV cache of one growing text, kept between calls of `Engine.stream`: each call prefills only what is new.

    Keys and values of a position depend on the positions before it alone, so two prompts with a common beginning have
    the same cache up to there. A cache can be extended but not rewound: windowed layers keep a ring of the last
    positions and have overwritten the others. A prompt that does not begin with all that is cached is read again from
    the start.

    One stream at a time: the next call invalidates the one before, which may have been abandoned at any moment.

    Attributes:
        reused: tokens of the last prompt that were cached already.
    """

    def __init__(self) -> None:
        self.reused = 0
        self._cache: KVCache | None = None
        self._ids: list[int] = []  # the cache holds the first `lengths[0]` of these

    def begin(self, model: GPT, ids: Sequence[int]) -> KVCache:
        """A cache for the model's whole context that holds a proper prefix of `ids`."""
        cache = self._cache
        cached = self._ids[: cache.lengths[0]] if cache is not None and cache.whole else []
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

    After an exception (memory that ran out, say) its state is undefined: begin a new one.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, prefill_chunk: int, capacity: int) -> None:
        self.model, self.tokenizer, self.prefill_chunk, self.capacity = model, tokenizer, prefill_chunk, capacity
        self._rows: list[_Row] = []
        self._tokens: Tensor | None = None  # (B,) the last one of each row, which the cache does not hold yet
        self._cache: KVCache | None = None  # of these rows, None if there are none
        self._new: list[tuple[list[_Row], KVCache, Tensor]] = []  # prefilled since the last step, with their logits

    def __len__(self) -> int:
        return len(self._rows) + sum(len(rows) for rows, _, _ in self._new)

    @property
    def jobs(self) -> set[Job]:
        """Jobs with unfinished texts."""
        return {row.job for rows in (self._rows, *(rows for rows, _, _ in self._new)) for row in rows}

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
        self._new.append((rows, cache, self._logits(hidden)))

    def _row(self, job: Job, number: int, prompt: Sequence[int], generator: torch.Generator) -> _Row:
        kind, seen = replace(job.settings, seed=0), None
        if kind.repetition_penalty != 1:
            seen = torch.zeros(self.tokenizer.vocab_size, dtype=torch.bool, device=self.model.device)
            seen[torch.as_tensor(prompt, device=seen.device)] = True
        stops = frozenset([self.tokenizer.bos_id] if job.stop_tokens is None else job.stop_tokens)
        room = self.model.config.sequence_len - len(prompt)
        return _Row(job, number, generator, kind, stops, room, TextStream(self.tokenizer, job.stop_strings), seen)

    def leave(self, job: Job) -> None:
        """Drop the unfinished texts of a job."""
        self._keep([i for i, row in enumerate(self._rows) if row.job is not job])
        groups, self._new = self._new, []
        for rows, cache, logits in groups:
            if keep := [i for i, row in enumerate(rows) if row.job is not job]:
                self._new.append(([rows[i] for i in keep], cache.select(keep), logits[keep]))

    @torch.no_grad()
    def step(self) -> list[tuple[Job, Event]]:
        """One more token of every text; those that end with it leave."""
        parts = []
        if self._rows:
            parts.append(self._logits(self.model.hidden(self._tokens[:, None], self._cache)[:, -1]))
        # The prompts of new rows have been read already, and with that their first logits computed.
        for rows, cache, first in self._new:
            self._rows = self._rows + rows
            self._cache = cache if self._cache is None else self._cache.join(cache)
            parts.append(first)
        self._new = []
        if not parts:
            return []
        logits = parts[0] if len(parts) == 1 else torch.cat(parts)
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

    def _sample(self, logits: Tensor) -> Tensor:
        """The next token (B,) of each row, from logits (B, V); rows of one kind are sampled at once."""
        kinds: dict[SamplingSettings, list[int]] = {}
        for i, row in enumerate(self._rows):
            kinds.setdefault(row.kind, []).append(i)
        tokens = torch.empty(len(logits), dtype=torch.long, device=logits.device)
        for kind, places in kinds.items():
            rows = [self._rows[i] for i in places]
            seen = None if kind.repetition_penalty == 1 else torch.stack([row.seen for row in rows])
            at = places if len(kinds) > 1 else slice(None)  # all rows: a view, not a copy
            tokens[at] = sample(logits[at], kind, [row.generator for row in rows], seen)
        return tokens

    def _keep(self, places: list[int]) -> None:
        """Drop all other rows that are in the cache."""
        if len(places) < len(self._rows):
            self._rows, self._tokens = [self._rows[i] for i in places], self._tokens[places]
            self._cache = self._cache.select(places) if places else None

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

    def _logits(self, hidden: Tensor) -> Tensor:
        """(B, V) float32 of hidden states (B, C), without ids that a padded vocabulary has beyond the tokenizer's."""
        logits = self.model.unembed(hidden)[:, : self.tokenizer.vocab_size]
        if not bool(torch.isfinite(logits).all()):
            raise ValueError("model: its logits are not finite; the weights are damaged")
        return logits
