"""Losses of answer candidates under a model, where the candidates of an item share their common prefix.

The model is causal: its output at a position does not depend on later tokens. Three things follow, and none of them
changes a result. Rows of a batch can be padded on the right. The prefix that all candidates of an item share can be run
once into a KV cache, before their different ends. Logits are only needed at the tokens that are scored.

The second one pays most. The choices of a ten-shot item differ only in their last words, and their common prefix of a
thousand tokens would otherwise be run once per choice.

Shapes: B rows, T positions, C model width, V vocabulary, N scored tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nanogka.evaluate.task import Candidate, common_prefix
from nanogka.model import GPT, KVCache

LOGITS_PER_CHUNK = 2**23  # float32 logits held at once (32 MiB): they stay near a CPU's caches
MIN_PREFIX = 16  # tokens; a second pass costs more than a shorter prefix saves
CACHED_BATCHES = 4  # the caches of the ends that run together hold at most this many batches of tokens


Rows = Sequence[Sequence[int]]  # token ids of each row; they differ in length
Continue = Callable[[Sequence[int], Rows], Tensor]  # (numbers of prefixes, what follows each) to states


class Scorer(Protocol):
    """A causal language model whose candidates are scored.

    `states` and `logits` are two steps because logits are needed at few positions, and a vocabulary is much wider than
    the states.
    """

    device: torch.device
    compute_dtype: torch.dtype
    vocab_size: int
    context_limit: int | None  # most tokens of a prompt; longer ones are cropped on the left. None: any number
    shares_prefixes: bool  # whether `after_prefixes` works

    def states(self, rows: Rows) -> Tensor:
        """(B, T, …) states of rows of token ids; beyond the end of a row they mean nothing."""

    def logits(self, states: Tensor) -> Tensor:
        """(N, V) logits, at least float32, of some of these states (N, …)."""

    def after_prefixes(self, prefixes: Rows, longest: int) -> Continue:
        """Run prefixes once; the result gives the states of what follows them, at most `longest` tokens in all."""


class GPTScorer:
    """One of our models. It reads prompts that are longer than its context, as nanochat's do."""

    context_limit = None
    shares_prefixes = True

    def __init__(self, model: GPT) -> None:
        self.model, self.vocab_size, self.compute_dtype = model, model.config.vocab_size, model.compute_dtype

    @property
    def device(self) -> torch.device:
        return self.model.device

    def states(self, rows: Rows) -> Tensor:
        longest = max(map(len, rows))
        if longest <= self.model.config.sequence_len:
            return self.model.hidden(padded(rows, 0, self.device))
        return self.model.hidden(padded(rows, -1, self.device), self._cache(len(rows), longest))

    def logits(self, states: Tensor) -> Tensor:
        return self.model.unembed(states.unsqueeze(0)).squeeze(0)

    def after_prefixes(self, prefixes: Rows, longest: int) -> Continue:
        cache = self._cache(len(prefixes), longest)
        self.model.fill(padded(prefixes, -1, self.device), cache)

        def follow(numbers: Sequence[int], ends: Rows) -> Tensor:
            # Each end continues a copy of its prefix's cache.
            return self.model.hidden(padded(ends, -1, self.device), cache.select(list(numbers)))

        return follow

    def _cache(self, rows: int, longest: int) -> KVCache:
        """A cache with room for `longest` positions. Only a cache has room for more than the context.

        Beyond the context, a layer without a window sees only the last `sequence_len` positions, as in nanochat.
        """
        cache, limit = self.model.new_cache(rows, longest), self.model.config.sequence_len
        if longest > limit:
            cache.windows = {layer: limit if window is None else window for layer, window in cache.windows.items()}
        return cache


def padded(rows: Rows, pad_id: int, device: torch.device) -> Tensor:
    """Rows of ids as one tensor (B, T) int64, padded on the right."""
    ids = torch.full((len(rows), max(map(len, rows))), pad_id, dtype=torch.long)
    for padded_row, row in zip(ids, rows):
        padded_row[: len(row)] = torch.tensor(row)
    return ids.to(device)


# ---- scoring ----


@dataclass(frozen=True)
class Score:
    """One candidate under the model: mean loss of its scored tokens in nats, and whether each was the argmax."""

    mean_loss: float
    all_argmax: bool


@dataclass(frozen=True)
class PrefixGroup:
    """Candidates that run together: they share their first `prefix` tokens. `prefix` is 0 for a single candidate."""

    prefix: int
    members: list[tuple[int, int]]  # (item, number of the candidate in the item)
    candidates: list[Candidate]

    @property
    def width(self) -> int:
        """Tokens of the row in the first pass."""
        return self.prefix or len(self.candidates[0].inputs)


@torch.no_grad()
def score_candidates(scorer: Scorer, items: Sequence[Sequence[Candidate]], batch_tokens: int) -> list[list[Score]]:
    """Score every candidate of every item. A batch has at most `batch_tokens` tokens, padding included, or one row."""
    first_equal = [_first_equal(candidates) for candidates in items]
    groups = []
    for item, candidates in enumerate(items):
        distinct = {(item, number): candidates[number] for number in sorted(set(first_equal[item]))}
        groups += _prefix_groups(distinct, scorer.shares_prefixes)
    scores: dict[tuple[int, int], Score] = {}
    for batch in _batches([group for group in groups if group.prefix], batch_tokens):
        scores.update(_score_after_prefixes(scorer, batch, CACHED_BATCHES * batch_tokens))
    for batch in _batches([group for group in groups if not group.prefix], batch_tokens):
        scores.update(_score_whole(scorer, batch))
    return [[scores[item, first] for first in firsts] for item, firsts in enumerate(first_equal)]


def _first_equal(candidates: Sequence[Candidate]) -> list[int]:
    """Return for each candidate the first one with the same tokens.

    Equal candidates must tie exactly, and a matrix product may round equal rows differently. So each is scored once.
    """
    firsts: dict[tuple, int] = {}
    return [firsts.setdefault((candidate.start, *candidate.tokens), i) for i, candidate in enumerate(candidates)]


def _prefix_groups(distinct: dict[tuple[int, int], Candidate], shares_prefixes: bool) -> list[PrefixGroup]:
    """The candidates of one item in a group if they share a prefix worth caching, else each alone."""
    candidates = list(distinct.values())
    if shares_prefixes and len(candidates) > 1:
        # The output of the last token of a prefix is not computed, so the first scored token must come later.
        shared = common_prefix([candidate.inputs for candidate in candidates])
        shared = min(shared, *(candidate.start - 1 for candidate in candidates))
        if shared >= MIN_PREFIX:
            return [PrefixGroup(shared, list(distinct), candidates)]
    return [PrefixGroup(0, [member], [candidate]) for member, candidate in distinct.items()]


def _batches(groups: Sequence[PrefixGroup], batch_tokens: int) -> Iterator[list[PrefixGroup]]:
    """Batches of similar length, the longest first: if one runs out of memory, it is the first."""
    batch: list[PrefixGroup] = []
    for group in sorted(groups, key=lambda group: -group.width):
        if batch and (len(batch) + 1) * batch[0].width > batch_tokens:
            yield batch
            batch = []
        batch.append(group)
    if batch:
        yield batch


def _score_whole(scorer: Scorer, batch: Sequence[PrefixGroup]) -> Iterator[tuple[tuple[int, int], Score]]:
    candidates = [group.candidates[0] for group in batch]
    states = scorer.states([candidate.inputs for candidate in candidates])
    yield from zip((group.members[0] for group in batch), _scores(scorer, states, candidates, [0] * len(batch)))


def _score_after_prefixes(
    scorer: Scorer, batch: Sequence[PrefixGroup], cached_tokens: int
) -> Iterator[tuple[tuple[int, int], Score]]:
    """Run the prefixes in one pass, then their ends, as many at a time as `cached_tokens` allows."""
    ends = [
        (row, group.prefix, member, candidate)
        for row, group in enumerate(batch)
        for member, candidate in zip(group.members, group.candidates)
    ]
    ends.sort(key=lambda end: end[1] - len(end[3].inputs))  # the longest end first
    longest = max(len(candidate.inputs) for *_, candidate in ends)
    size = max(1, cached_tokens // longest)
    follow = scorer.after_prefixes([group.candidates[0].inputs[: group.prefix] for group in batch], longest)
    for first in range(0, len(ends), size):
        rows, offsets, members, candidates = zip(*ends[first : first + size])
        states = follow(rows, [candidate.inputs[offset:] for candidate, offset in zip(candidates, offsets)])
        yield from zip(members, _scores(scorer, states, candidates, offsets))


def _scores(scorer: Scorer, states: Tensor, candidates: Sequence[Candidate], offsets: Sequence[int]) -> list[Score]:
    """Score one candidate per row; `states` (B, T, …) of row b begins at position `offsets[b]` of its candidate."""
    rows, positions, targets = [], [], []
    for row, (candidate, offset) in enumerate(zip(candidates, offsets)):
        first, count = candidate.start - 1 - offset, len(candidate.targets)
        rows += [row] * count
        positions += range(first, first + count)
        targets += candidate.targets
    rows, positions, targets = torch.tensor([rows, positions, targets], device=states.device)
    losses, hits = _losses_and_hits(scorer, states[rows, positions], targets)
    counts = [len(candidate.targets) for candidate in candidates]
    parts = zip(losses.split(counts), hits.split(counts))
    # The mean, because a sum grows with every token and would favor short answers.
    return [Score(float(loss.mean()), bool(hit.all())) for loss, hit in parts]


def _losses_and_hits(scorer: Scorer, states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (N,) in nats, float64, and hits (N,), whether the target is the argmax; states (N, …), targets (N,)."""
    losses, hits = [], []
    chunk = max(1, LOGITS_PER_CHUNK // scorer.vocab_size)
    for part, wanted in zip(states.split(chunk), targets.split(chunk)):
        logits = scorer.logits(part)  # (n, V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        largest, likeliest = logits.max(dim=-1, keepdim=True)
        below = (largest - logits.gather(-1, wanted[:, None])).squeeze(-1)
        total = (logits - largest).exp_().sum(dim=-1)
        # loss = (largest − logit of the target) + log Σ exp(logit − largest). A loss of ten nats has only six decimals
        # in float32, so the two parts are added in float64.
        losses.append(below.cpu().double() + total.cpu().double().log())
        hits.append((likeliest.squeeze(-1) == wanted).cpu())
    return torch.cat(losses), torch.cat(hits)
