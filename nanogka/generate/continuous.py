"""Continuous batching: texts that are generated together, and that begin and end whenever they do.

    batch = ContinuousBatch(engine)
    job = Job([engine.encode("A list")], SamplingSettings(seed=1), max_tokens=32)
    batch.join([job])                          # prefills; others go on beside it
    while len(batch):
        for token in batch.step():             # one more token of every text
            print(token.job, token.event.text)

Each job has settings of its own, and random numbers that its seed alone decides: its texts are those of `Engine.stream`
with the same arguments, whoever else is in the batch, as far as products of another batch size round alike.

Shapes: B rows (samples that are being generated), V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nanogka.generate.engine import Engine, Event, Sample
from nanogka.generate.sampling import SamplingSettings, sample
from nanogka.model import KVCache


@dataclass(eq=False)
class Job:
    """Prompts to continue together; two jobs are never equal.

    Attributes:
        prompts, settings, max_tokens, samples, stop_tokens, stop_strings: as of `Engine.stream`.
        alternatives: how many of the likeliest tokens to report with each one chosen.
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

    def check(self, engine: Engine) -> None:
        """Raise ValueError naming every argument that is out of range."""
        engine.check(self.prompts, self.max_tokens, self.samples, self.stop_strings)


@dataclass(frozen=True)
class Token:
    """One more token of one text of a job; `alternatives`: (id, log-probability) of the likeliest in its place."""

    job: Job
    event: Event
    alternatives: list[tuple[int, float]]


@dataclass
class _Row:
    """A text that is being generated; `kind` is its settings without the seed."""

    job: Job
    sample: Sample
    kind: SamplingSettings
    stops: frozenset[int]
    seen: Tensor | None  # (V,) bool: tokens of prompt and text, where a repetition penalty needs them


class ContinuousBatch:
    """Texts of any number of jobs, generated together; its length is the number of those that go on.

    Args:
        engine: whose model generates; every text may grow to its context.

    After an exception (memory that ran out, say) its state is undefined: begin a new one.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._rows: list[_Row] = []
        self._tokens: list[int] = []  # the last one of each row, which the cache does not hold yet
        self._cache: KVCache | None = None  # of these rows, None if there are none
        self._new: list[tuple[list[_Row], KVCache, Tensor]] = []  # prefilled since the last step, with their logits

    def __len__(self) -> int:
        return len(self._rows) + sum(len(rows) for rows, _, _ in self._new)

    @property
    def jobs(self) -> set[Job]:
        """Jobs with unfinished texts."""
        return {row.job for rows in (self._rows, *(rows for rows, _, _ in self._new)) for row in rows}

    def join(self, jobs: Sequence[Job]) -> None:
        """Begin jobs: their prompts, padded to the longest, pass through the model at once.

        Raises:
            ValueError: as `Engine.stream`, before anything is changed.
        """
        engine, rows, origins, prompts = self.engine, [], [], []
        for job in jobs:
            job.check(engine)
        for job in jobs:
            stops = frozenset([engine.tokenizer.bos_id] if job.stop_tokens is None else job.stop_tokens)
            kind = replace(job.settings, seed=0)
            seen = engine.seen(job.prompts) if kind.repetition_penalty != 1 else None
            for one in engine.samples(job.prompts, job.settings.seed, job.max_tokens, job.samples, job.stop_strings):
                prompt = one.number // job.samples
                rows.append(_Row(job, one, kind, stops, None if seen is None else seen[prompt].clone()))
                origins.append(len(prompts) + prompt)
            prompts += job.prompts
        if not rows:
            return
        hidden, cache = engine.prefill(prompts, engine.context)
        if len(rows) > len(prompts):
            hidden, cache = hidden[origins], cache.select(origins)
        self._new.append((rows, cache, engine.logits(hidden)))

    def leave(self, job: Job) -> None:
        """Drop what is left of a job."""
        self._keep([i for i, row in enumerate(self._rows) if row.job is not job])
        groups, self._new = self._new, []
        for rows, cache, logits in groups:
            if keep := [i for i, row in enumerate(rows) if row.job is not job]:
                self._new.append(([rows[i] for i in keep], cache.select(keep), logits[keep]))

    def step(self) -> list[Token]:
        """One more token of every text; those that end with it leave."""
        logits = []
        if self._rows:
            ids = torch.tensor(self._tokens, device=self.engine.model.device)
            logits.append(self.engine.logits(self.engine.hidden(ids[:, None], self._cache)[:, -1]))
        for rows, cache, first in self._new:
            self._rows = self._rows + rows
            self._cache = cache if self._cache is None else self._cache.join(cache)
            logits.append(first)
        self._new = []
        return self._choose(torch.cat(logits)) if logits else []

    def _choose(self, logits: Tensor) -> list[Token]:
        """The next token of each row, from logits (B, V); rows of one kind are sampled at once."""
        self._tokens, values = [0] * len(self._rows), [0.0] * len(self._rows)
        for kind in dict.fromkeys(row.kind for row in self._rows):
            places = [i for i, row in enumerate(self._rows) if row.kind == kind]
            seen = None if kind.repetition_penalty == 1 else torch.stack([self._rows[i].seen for i in places])
            own = logits if len(places) == len(logits) else logits[places]
            chosen = sample(own, kind, [self._rows[i].sample.generator for i in places], seen)
            for i, token, value in zip(places, *(part.tolist() for part in chosen)):
                self._tokens[i], values[i] = token, value
        tokens = []
        for row, token, value, own in zip(self._rows, self._tokens, values, logits):
            event = row.sample.advance(token, value, row.stops, self.engine.context)
            if row.seen is not None:
                row.seen[token] = True
            tokens.append(Token(row.job, event, _likeliest(own, row.job.alternatives)))
        self._keep([i for i, token in enumerate(tokens) if token.event.finish is None])
        return tokens

    def _keep(self, places: list[int]) -> None:
        """Drop all other rows that are in the cache."""
        if len(places) < len(self._rows):
            self._rows, self._tokens = ([held[i] for i in places] for held in (self._rows, self._tokens))
            self._cache = self._cache.select(places) if places else None


def _likeliest(logits: Tensor, count: int) -> list[tuple[int, float]]:
    """(id, log-probability) of the `count` most likely tokens of logits (V,), the likeliest first."""
    if count == 0:
        return []
    values, ids = torch.log_softmax(logits, -1).topk(min(count, len(logits)))
    return list(zip(ids.tolist(), values.tolist()))
