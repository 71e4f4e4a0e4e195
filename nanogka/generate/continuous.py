"""The decode loop: texts that are generated together and start and end at any step ("continuous batching").

    batch = engine.batch()
    request = Request([engine.encode("A list")], SamplingParams(seed=1), max_tokens=32)
    batch.add([request])                         # prefills the prompt; other texts continue afterwards
    while len(batch):
        for request, output in batch.step():     # one more token of every text
            print(request, output.text)

A decode step reads the weights once at any batch size, and reading them is most of its cost. So 16 texts cost little
more than one. The texts of a request depend on its own arguments alone, up to rounding: matrix products of another
batch size round differently.

Shapes: B rows (texts being generated), T positions, C model width, V vocabulary of the tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nanogka.common.errors import Errors
from nanogka.data.conversation import TEXT
from nanogka.generate.calculator import ToolCalls
from nanogka.generate.sampling import SamplingParams, sample, sample_generators
from nanogka.generate.text import TextStream
from nanogka.model import GPT, KVCache
from nanogka.tokenizer import Tokenizer

MAX_CONTEXT = "this model's maximum context length is"  # OpenAI's words, from which clients know the error


@dataclass(frozen=True)
class TokenOutput:
    """One more token of one text."""

    sample: int  # number of the text in its request; prompt p with n samples has numbers p · n to p · n + n − 1
    token: int
    logprob: float  # in nats under the model itself: temperature 1, no limits, no penalty
    text: str  # text released by this token: whole characters only, possibly none
    offset: int  # character of the text at which the token begins; a stop string may end the text before it
    finish_reason: str | None  # "stop" (a stop token or string), "length" (`max_tokens`) or "context" (it is full)
    top_logprobs: Sequence[tuple[int, float]] = ()  # the likeliest tokens at this position: (id, logprob)
    part: str = TEXT  # "text", or of a tool call "python" (its code) and "python_output"; see `Request.calculator`
    forced: bool = False  # the tool wrote this token, not the model


@dataclass(eq=False)
class Request:
    """Prompts to continue together. Two requests are never equal."""

    prompts: Sequence[Sequence[int]]
    params: SamplingParams = field(default_factory=SamplingParams)
    # Per text, written by the model. Results of tool calls may add as many. None: as many as the context holds.
    max_tokens: int | None = None
    n: int = 1  # texts per prompt, which differ by their random numbers
    stop_tokens: Sequence[int] | None = None  # None: the document token
    stop_strings: Sequence[str] = ()  # a text ends before the first of them
    top_logprobs: int = 0  # number of likeliest tokens to report at each position
    calculator: bool = False  # answer the model's tool calls: their results are inserted into the text

    @property
    def rows(self) -> int:
        """The number of texts."""
        return len(self.prompts) * self.n

    @property
    def longest(self) -> int | None:
        """The most tokens that a text can get, results of tool calls included; None: the context decides."""
        return None if self.max_tokens is None else self.max_tokens * (2 if self.calculator else 1)

    def check(self, context: int, vocab_size: int) -> None:
        """Raise ValueError naming every argument that is out of range for this context and tokenizer."""
        errors, at_least_one = Errors(), "an integer of at least 1"
        errors.require(len(self.prompts) > 0, "prompts", len(self.prompts), "at least one prompt")
        errors.require(self.max_tokens is None or self.max_tokens >= 1, "max-tokens", self.max_tokens, at_least_one)
        errors.require(self.n >= 1, "n", self.n, at_least_one)
        errors.require("" not in self.stop_strings, "stop strings", "", "non-empty strings")
        for prompt in self.prompts:
            if len(prompt) >= context:
                most = f"at most {context - 1:,}: {MAX_CONTEXT} {context:,} tokens, and the reply needs one of them"
                errors.lines.append(f"prompt: got {len(prompt):,} tokens, expected {most}")
            elif not prompt:
                errors.lines.append("prompt: got no tokens, expected at least one")
            elif not all(0 <= token < vocab_size for token in prompt):
                errors.lines.append(f"prompt: expected ids from 0 to {vocab_size - 1} only")
        errors.raise_if_any()


class _Row:
    """A text that is being generated: text `number` of a request."""

    def __init__(self, request: Request, number: int, generator: torch.Generator, model: GPT, tokenizer: Tokenizer):
        prompt = request.prompts[number // request.n]
        self.request, self.number, self.generator = request, number, generator
        self.params = replace(request.params, seed=0)  # rows with equal params are sampled by one call
        # Without stop tokens a text ends with its document: the next document's first token would begin another text.
        self.stop_tokens = frozenset([tokenizer.bos_id] if request.stop_tokens is None else request.stop_tokens)
        self.max_new_tokens = model.config.sequence_len - len(prompt)  # until the context is full
        self.tokens = self.inserted = 0  # so far; the tool wrote those inserted
        self.text = TextStream(tokenizer, request.stop_strings, trim=request.calculator)
        self.call_text = TextStream(tokenizer)
        self.calls = ToolCalls(tokenizer) if request.calculator else None
        # (2, V) for penalties: 1 if prompt or reply has a token, and how often the reply has it.
        self.token_counts: Tensor | None = None
        if request.params.penalizes:
            self.token_counts = torch.zeros(2, tokenizer.vocab_size, device=model.device)
            self.token_counts[0, torch.as_tensor(prompt, device=model.device)] = 1

    def forced_token(self) -> int | None:
        """Take the next token of a tool's output, if one must come now."""
        return self.calls.forced.popleft() if self.calls is not None and self.calls.forced else None

    def append(
        self, token: int, forced: bool, logprob: float, top_logprobs: Sequence[tuple[int, float]]
    ) -> TokenOutput:
        """Append a token to the text."""
        self.tokens += 1
        self.inserted += forced
        if self.token_counts is not None:
            self.token_counts[0, token] = 1
            self.token_counts[1, token] += 1
        offset, stopped = self.text.decoded, token in self.stop_tokens and not forced
        # Tool calls have their own stream, because stop strings apply to the reply's text alone.
        part = TEXT if self.calls is None else self.calls.part
        part_ends = stopped or (self.calls is not None and self.calls.push(token))
        finish_reason = None
        if self.tokens >= self.max_new_tokens:
            finish_reason = "context"
        elif self.request.max_tokens in (self.tokens - self.inserted, self.inserted):
            finish_reason = "length"
        stream = self.text if part == TEXT else self.call_text
        text = "" if part_ends else stream.push(token)
        if part_ends or finish_reason is not None:
            text += stream.finish()
        # The end of the text may complete a stop string, too.
        if stopped or self.text.stopped:
            finish_reason = "stop"
        return TokenOutput(self.number, token, logprob, text, offset, finish_reason, top_logprobs, part, forced)


class PrefixCache:
    """The KV cache of one growing text, kept between calls of `Engine.stream`: each call prefills only what is new.

    A cache can be extended but not rewound, because windowed layers overwrite old positions. Nor can its beginning be
    cut off, because keys are cached ready for use, rotated for their positions. A prompt that does not begin with
    everything cached is therefore read again from the start. Each call invalidates the one before.
    """

    def __init__(self) -> None:
        self.reused = 0  # number of the last prompt's tokens that were already cached
        self._cache: KVCache | None = None
        self._ids: list[int] = []  # the cache holds the first `lengths[0]` of these

    def begin(self, model: GPT, ids: Sequence[int]) -> KVCache:
        """Return a cache for the model's whole context that holds a proper prefix of `ids`."""
        cache = self._cache
        cached = self._ids[: cache.lengths[0]] if cache is not None and cache.usable else []
        # The hidden state of the last token predicts the next one, so at least one token must be new.
        if cache is None or not cached or len(cached) >= len(ids) or list(ids[: len(cached)]) != cached:
            self._cache = cache = None  # frees the memory before the new cache is allocated
            self._cache = cache = model.new_cache(1, model.config.sequence_len)
        self.reused, self._ids = cache.lengths[0], list(ids)
        return cache

    def append(self, token: int) -> None:
        """Record a generated token, before the model caches it."""
        self._ids.append(token)


class ContinuousBatch:
    """The unfinished texts of any number of requests, of up to `capacity` positions each; `len` is their number.

    After an exception its state is undefined: start a new batch.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, prefill_chunk: int, capacity: int) -> None:
        self.model, self.tokenizer, self.prefill_chunk, self.capacity = model, tokenizer, prefill_chunk, capacity
        self._rows: list[_Row] = []
        self._cache: KVCache | None = None  # None without rows
        self._prefixed = False  # the cache belongs to a `PrefixCache`
        # Either the next token's logits (B, V) are known, or the last tokens (B,) have yet to pass through the model.
        # They pass only when the next step needs it: a text that has ended costs no forward pass for its last token.
        self._logits: Tensor | None = None
        self._tokens: Tensor | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def requests(self) -> set[Request]:
        """The requests with unfinished texts."""
        return {row.request for row in self._rows}

    @torch.no_grad()
    def add(self, requests: Sequence[Request], prefix: PrefixCache | None = None) -> None:
        """Start requests: their prompts, padded to the longest, pass through the model together.

        `prefix` is for a single request with a single text: the part of its prompt that is already cached. The batch
        then takes no other requests, because the cache stays the caller's. If an argument is out of range, nothing
        changes.
        """
        for request in requests:
            request.check(self.model.config.sequence_len, self.tokenizer.vocab_size)
        rows, origins, prompts = [], [], []
        for request in requests:
            for number, generator in enumerate(sample_generators(request.params.seed, range(request.rows))):
                rows.append(_Row(request, number, generator, self.model, self.tokenizer))
                origins.append(len(prompts) + number // request.n)
            prompts += request.prompts
        if not rows:
            return
        assert not (self._rows and (prefix is not None or self._prefixed)), "a prefix cache holds a single text"
        self._prefixed = prefix is not None
        if prefix is not None:
            assert len(rows) == 1, "a prefix cache holds a single text"
            cache = prefix.begin(self.model, prompts[0])
            prompts = [prompts[0][prefix.reused :]]
        else:
            # Prompts that join others are read into their own small cache, which is then copied to the others.
            cache = self.model.new_cache(len(prompts), max(map(len, prompts)) if self._rows else self.capacity)
        logits = self._unembed(self._prefill(prompts, cache)[origins])
        # Several samples of a prompt: it is read once, and each gets a copy of its cache.
        if self._rows:
            assert self._cache is not None, "rows have a cache"
            earlier = self._decode()
            self._cache.append(cache, origins)
            logits = torch.cat([earlier, logits])
        else:
            self._cache = cache if len(rows) == len(prompts) else cache.select(origins)
        self._rows, self._logits = self._rows + rows, logits

    def abort(self, request: Request) -> None:
        """Drop the unfinished texts of a request."""
        self._keep([i for i, row in enumerate(self._rows) if row.request is not request])

    @torch.no_grad()
    def step(self) -> list[tuple[Request, TokenOutput]]:
        """Add one token to every text. Texts that end with it leave the batch."""
        if not self._rows:
            return []
        logits, self._logits = self._decode(), None
        self._tokens = tokens = self._sample(logits)
        # A forced token replaces the sampled one, so a tool's output passes through the model as if it had written it.
        forced = [row.forced_token() for row in self._rows]
        for i, token in enumerate(forced):
            if token is not None:
                tokens[i] = token
        # log softmax of the reported tokens alone: log p = logit − log Σ exp(logits).
        log_total = logits.logsumexp(-1)
        logprobs = logits.gather(1, tokens[:, None]).squeeze(1) - log_total
        outputs = []
        for i, (row, token, logprob) in enumerate(zip(self._rows, tokens.tolist(), logprobs.tolist())):
            top_logprobs = ()
            if count := min(row.request.top_logprobs, logits.shape[1]):
                values, ids = logits[i].topk(count)
                top_logprobs = tuple(zip(ids.tolist(), (values - log_total[i]).tolist()))
            outputs.append((row.request, row.append(token, forced[i] is not None, logprob, top_logprobs)))
        self._keep([i for i, (_, output) in enumerate(outputs) if output.finish_reason is None])
        return outputs

    def _decode(self) -> Tensor:
        """The next tokens' logits (B, V). The last tokens pass through the model, unless they have done so."""
        if self._logits is None:
            assert self._tokens is not None, "rows have logits or last tokens"
            self._logits = self._unembed(self.model.hidden(self._tokens[:, None], self._cache)[:, -1])
        return self._logits

    def _sample(self, logits: Tensor) -> Tensor:
        """Choose the next token (B,) of each row from logits (B, V). Rows with equal params are sampled together."""
        groups: dict[SamplingParams, list[int]] = {}
        for i, row in enumerate(self._rows):
            groups.setdefault(row.params, []).append(i)
        tokens = torch.empty(len(logits), dtype=torch.long, device=logits.device)
        for params, places in groups.items():
            rows = [self._rows[i] for i in places]
            token_counts = [row.token_counts for row in rows if row.token_counts is not None]
            at = places if len(groups) > 1 else slice(None)  # all rows: a view, not a copy
            tokens[at] = sample(
                logits[at], params, [row.generator for row in rows], torch.stack(token_counts) if token_counts else None
            )
        return tokens

    def _keep(self, places: list[int]) -> None:
        """Drop all other rows. The last rows move into the gaps, and the others keep their places."""
        count = len(places)
        if count < len(self._rows):
            stay, moved = set(places), iter([place for place in places if place >= count])
            order = [place if place in stay else next(moved) for place in range(count)]
            self._rows = [self._rows[i] for i in order]
            if self._cache is not None and order:
                self._cache.keep(order)
            else:
                self._cache = None
            if self._logits is not None:
                self._logits = self._logits[order]
            elif self._tokens is not None:
                self._tokens = self._tokens[order]

    def _prefill(self, prompts: Sequence[Sequence[int]], cache: KVCache) -> Tensor:
        """Append prompts to the cache and return the hidden state (B, C) of each one's last token."""
        longest = max(map(len, prompts))
        # Padding is −1, on the right: the cache stores only real tokens, so each row decodes from its own length.
        ids = torch.full((len(prompts), longest), -1)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.as_tensor(prompt)
        ids = ids.to(self.model.device)
        last: dict[int, Tensor] = {}  # by row
        # The activations of a long prompt may not fit into memory, so it is read in chunks. Each chunk sees the earlier
        # ones through the cache, so the result is the same.
        for start in range(0, longest, self.prefill_chunk):
            hidden = self.model.hidden(ids[:, start : start + self.prefill_chunk], cache)
            for row, prompt in enumerate(prompts):
                at = len(prompt) - 1 - start
                if 0 <= at < hidden.shape[1]:
                    last[row] = hidden[row, at]
        return torch.stack([last[row] for row in range(len(prompts))])

    def _unembed(self, hidden: Tensor) -> Tensor:
        """Return logits (B, V) float32 of hidden states (B, C), without the padding of the model's vocabulary."""
        logits = self.model.unembed(hidden)[:, : self.tokenizer.vocab_size]
        if not bool(torch.isfinite(logits).all()):
            raise ValueError("model: its logits are not finite; the weights are damaged")
        return logits
