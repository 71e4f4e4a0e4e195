"""Losses of answer candidates under a model, where the candidates of an item share their common prefix.

The model is causal: its output at a position does not depend on later tokens. Three things follow, and none of them
changes a result. Rows of a batch can be padded on the right. The prefix that all candidates of an item share can be run
once into a KV cache, before their different tails. Logits are only needed at the tokens that are scored.

Shapes: B rows, T positions, C model width, V vocabulary, N scored tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from nanogka.evaluate.task import Candidate, common_prefix
from nanogka.model import GPT, KVCache

LOGITS_PER_CHUNK = 2**23  # float32 logits held at once (32 MiB): they stay near a CPU's caches
MIN_PREFIX = 16  # tokens; a second pass costs more than a shorter prefix saves
CACHED_BATCHES = 4  # the caches of the tails that run together hold at most this many batches of tokens


@dataclass(frozen=True)
class Score:
    """One candidate under the model: mean loss of its scored tokens in nats, and whether each was the argmax."""

    mean_loss: float
    all_argmax: bool


@dataclass(frozen=True)
class Job:
    """Candidates that run together: they share their first `prefix` tokens, or `prefix` is 0."""

    prefix: int
    members: list[tuple[int, int]]  # (group, number in the group)
    width: int  # tokens of the longest row of the first pass


@torch.no_grad()
def score_groups(model, groups: Sequence[Sequence[Candidate]], *, batch_tokens: int, pad_id: int) -> list[list[Score]]:
    """Score every candidate of every group; a group holds the candidates of one item.

    `model` has `hidden(ids (B, T)) -> (B, T, C)`, `unembed((…, C)) -> (…, V)` and `device`. A batch has at most
    `batch_tokens` tokens, padding included, but at least one row. `pad_id` is any token.
    """
    first_equal = [_first_equal(group) for group in groups]
    jobs = []
    for number, group in enumerate(groups):
        jobs += _jobs(number, group, sorted(set(first_equal[number])), isinstance(model, GPT))
    scores: dict[tuple[int, int], Score] = {}
    for shares in (True, False):
        for batch in _batches([job for job in jobs if bool(job.prefix) == shares], batch_tokens):
            run = _run_after_prefixes if shares else _run_whole
            for hidden, members, offsets in run(model, batch, groups, pad_id, CACHED_BATCHES * batch_tokens):
                candidates = [groups[group][number] for group, number in members]
                scores.update(zip(members, _read_off(model, hidden, candidates, offsets)))
    return [[scores[number, first] for first in firsts] for number, firsts in enumerate(first_equal)]


def _first_equal(group: Sequence[Candidate]) -> list[int]:
    """For each candidate the first one with the same tokens.

    Equal candidates must tie exactly, and a matrix product may round equal rows differently. So each is scored once.
    """
    firsts: dict[tuple, int] = {}
    return [firsts.setdefault((candidate.start, *candidate.tokens), i) for i, candidate in enumerate(group)]


def _jobs(number: int, group: Sequence[Candidate], distinct: list[int], has_cache: bool) -> Iterator[Job]:
    if has_cache and len(distinct) > 1:
        # The output of the last token of a prefix is not computed, so the first scored token must come later.
        shared = common_prefix([group[i].inputs for i in distinct])
        shared = min(shared, *(group[i].start - 1 for i in distinct))
        if shared >= MIN_PREFIX:
            yield Job(shared, [(number, i) for i in distinct], shared)
            return
    for i in distinct:
        yield Job(0, [(number, i)], len(group[i].inputs))


def _batches(jobs: Sequence[Job], batch_tokens: int) -> Iterator[list[Job]]:
    """Batches of similar length, the longest first: if one runs out of memory, it is the first."""
    batch: list[Job] = []
    for job in sorted(jobs, key=lambda job: -job.width):
        if batch and (len(batch) + 1) * batch[0].width > batch_tokens:
            yield batch
            batch = []
        batch.append(job)
    if batch:
        yield batch


# Hidden states (B, T, C), the B candidates, and the position at which each row of hidden states starts.
Run = tuple[Tensor, list[tuple[int, int]], list[int]]


def _run_whole(model, batch: Sequence[Job], groups, pad_id: int, cached_tokens: int) -> Iterator[Run]:
    members = [member for job in batch for member in job.members]
    rows = [groups[group][number].inputs for group, number in members]
    longest = max(map(len, rows))
    if isinstance(model, GPT) and longest > model.config.sequence_len:
        with _windows(model):
            hidden = model.hidden(padded(rows, -1, model.device), KVCache(model, len(rows), longest))
    else:
        hidden = model.hidden(padded(rows, pad_id, model.device))
    yield hidden, members, [0] * len(rows)


def _run_after_prefixes(model, batch: Sequence[Job], groups, pad_id: int, cached_tokens: int) -> Iterator[Run]:
    """Run the prefixes in one pass, then their tails, as many at a time as `cached_tokens` allows."""
    tails = [(groups[group][number].inputs, job, (group, number)) for job in batch for group, number in job.members]
    tails.sort(key=lambda tail: tail[1].prefix - len(tail[0]))  # the longest tail first
    longest = max(len(inputs) for inputs, _, _ in tails)
    rows = {id(job): row for row, job in enumerate(batch)}
    size = max(1, cached_tokens // longest)
    with _windows(model, longest):
        cache = KVCache(model, len(batch), longest)
        prefixes = [groups[job.members[0][0]][job.members[0][1]].inputs[: job.prefix] for job in batch]
        model.fill(padded(prefixes, -1, model.device), cache)
        for first in range(0, len(tails), size):
            inputs, jobs, members = zip(*tails[first : first + size])
            ids = padded([row[job.prefix :] for row, job in zip(inputs, jobs)], -1, model.device)
            hidden = model.hidden(ids, cache.select([rows[id(job)] for job in jobs]))
            yield hidden, list(members), [job.prefix for job in jobs]


@contextmanager
def _windows(model: GPT, longest: int | None = None) -> Iterator[None]:
    """Beyond its context, let a layer without a window see only the last `sequence_len` positions, as in nanochat."""
    limit = model.config.sequence_len
    full = [block.mixer for block in model.blocks if block.mixer.window is None]
    full = full if longest is None or longest > limit else []
    for mixer in full:
        mixer.window = limit
    try:
        yield
    finally:
        for mixer in full:
            mixer.window = None


def padded(sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> Tensor:
    """The sequences as one tensor (B, T) int64, padded on the right."""
    ids = torch.full((len(sequences), max(map(len, sequences))), pad_id, dtype=torch.long)
    for row, sequence in zip(ids, sequences):
        row[: len(sequence)] = torch.tensor(sequence)
    return ids.to(device)


def _read_off(model, hidden: Tensor, candidates: Sequence[Candidate], offsets: Sequence[int]) -> list[Score]:
    """Score one candidate per row; `hidden` (B, T, C) of row b begins at position `offsets[b]` of its candidate."""
    rows, positions, targets = [], [], []
    for row, (candidate, offset) in enumerate(zip(candidates, offsets)):
        first, count = candidate.start - 1 - offset, len(candidate.targets)
        rows += [row] * count
        positions += range(first, first + count)
        targets += candidate.targets
    rows, positions, targets = torch.tensor([rows, positions, targets], device=hidden.device)
    losses, hits = _losses_and_hits(model, hidden[rows, positions], targets)
    counts = [len(candidate.targets) for candidate in candidates]
    parts = zip(losses.split(counts), hits.split(counts))
    return [Score(float(loss.mean()), bool(hit.all())) for loss, hit in parts]


def _losses_and_hits(model, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (N,) in nats, float64, and hits (N,), whether the target is the argmax; hidden (N, C), targets (N,)."""
    losses, hits = [], []
    chunk = max(1, LOGITS_PER_CHUNK // model.config.vocab_size)
    for part, wanted in zip(hidden.split(chunk), targets.split(chunk)):
        logits = model.unembed(part.unsqueeze(0)).squeeze(0)  # (n, V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        largest, likeliest = logits.max(dim=-1, keepdim=True)
        below = (largest - logits.gather(-1, wanted[:, None])).squeeze(-1)
        total = (logits - largest).exp_().sum(dim=-1)
        # loss = (largest − logit of the target) + log Σ exp(logit − largest). A loss of ten nats has only six decimals
        # in float32, so the two parts are added in float64.
        losses.append(below.cpu().double() + total.cpu().double().log())
        hits.append((likeliest.squeeze(-1) == wanted).cpu())
    return torch.cat(losses), torch.cat(hits)
