"""The loss of candidates under a model, with as little work as exactness allows.

The model is causal: its output at a position depends on nothing to the right. Hence, without changing a result:

* rows of one batch are padded on the right with any token;
* a candidate whose inputs begin another candidate of the same item is read off that row (the choices A, B, C, D are
  one row, not four);
* the prefix that the rows of an item share is run once into a KV cache, and only the differing tails after it; no
  output of the prefix is read, so that its last layer is not finished;
* logits are computed only at the tokens that are scored.

Legend: B rows, T positions, C model width, V vocabulary, N scored tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch

from nanogka.evaluate.task import Candidate, common_prefix
from nanogka.model import GPT, KVCache

# Bounds the float32 logits held at once (32 MiB), whatever the vocabulary: they stay near a CPU's caches.
LOGITS_PER_CHUNK = 2**23
# A shared prefix of fewer tokens is not worth a second pass.
MIN_PREFIX = 16
# The cost of attending to a cached token, as a share of computing that token.
TAIL_COST = 1 / 16
# Tails are run in groups whose caches hold at most this many times a batch's tokens.
CACHED_BATCHES = 4
# A group of at least SMALL_GROUP tails ends where the next is shorter than this share of its longest.
SIMILAR, SMALL_GROUP = 0.8, 8


@dataclass(frozen=True)
class Score:
    """One candidate under the model: mean loss of its scored tokens in nats, and whether each was the argmax."""

    mean_loss: float
    all_argmax: bool


@dataclass
class Row:
    """One sequence to run, and the candidates read off it, each as (group, candidate)."""

    inputs: list[int]
    readers: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Job:
    """Rows of one item that begin with the same `prefix` tokens, run once for all; 0: each row is run whole."""

    prefix: int
    rows: list[Row]

    @property
    def width(self) -> int:
        """Tokens of the first pass, of its longest row."""
        return self.prefix or max(len(row.inputs) for row in self.rows)


@torch.no_grad()
def score_groups(model, groups: Sequence[Sequence[Candidate]], *, batch_tokens: int, pad_id: int) -> list[list[Score]]:
    """Score every candidate of every group (an item's candidates are a group).

    `model` has `hidden(idx (B, T)) -> (B, T, C)`, `unembed((…, C)) -> (…, V)` float logits, `device`. A batch has at
    most `batch_tokens`, padding included; a longer row gets one of its own. `pad_id`: any token.
    """
    layers = model.config.n_layer if isinstance(model, GPT) else 0  # others have no KV cache: every row is run whole
    jobs = list(chain.from_iterable(plan_jobs(index, group, layers) for index, group in enumerate(groups)))
    scores: list[list[Score | None]] = [[None] * len(group) for group in groups]
    batches = chain(
        batch_jobs([job for job in jobs if job.prefix], batch_tokens),
        batch_jobs([job for job in jobs if not job.prefix], batch_tokens),
    )
    for batch in batches:
        if batch[0].prefix:
            run = _run_after_prefixes(model, batch, CACHED_BATCHES * batch_tokens)
        else:
            run = _run_whole(model, batch, pad_id)
        for hidden, rows, offsets in run:
            for (group, candidate), score in _read_off(model, hidden, rows, offsets, groups):
                scores[group][candidate] = score
    for index, group in enumerate(groups):
        for candidate, first in enumerate(first_alike(group)):
            scores[index][candidate] = scores[index][first]
    return scores


def plan_jobs(index: int, group: Sequence[Candidate], layers: int) -> list[Job]:
    """The passes that score group `index` on a model of so many layers; 0: share no prefix."""
    rows = share_rows(index, group)
    if not layers:
        return [Job(0, [row]) for row in rows]
    shared = min(common_prefix([row.inputs for row in rows]), *(_unread(row, group) for row in rows)) if rows else 0
    if len(rows) > 1 and shared >= MIN_PREFIX:
        return [Job(shared, rows)]
    return [Job(_own_prefix(row, group, layers), [row]) for row in rows]


def _unread(row: Row, group: Sequence[Candidate]) -> int:
    return min(group[candidate].start - 1 for _, candidate in row.readers)


def _own_prefix(row: Row, group: Sequence[Candidate], layers: int) -> int:
    """The prefix to run apart for a row that shares none; 0: saving its last layer costs more than it gains."""
    prefix = _unread(row, group)
    return prefix if prefix / layers > len(row.inputs) - prefix + TAIL_COST * prefix else 0


def share_rows(index: int, group: Sequence[Candidate]) -> list[Row]:
    """The fewest rows off which the candidates of group `index` can be read; of equal candidates only the first."""
    rows: list[Row] = []
    for candidate in sorted(set(first_alike(group)), key=lambda i: (-len(group[i].tokens), i)):
        inputs = group[candidate].inputs
        row = next((row for row in rows if row.inputs[: len(inputs)] == inputs), None)
        if row is None:
            row = Row(inputs)
            rows.append(row)
        row.readers.append((index, candidate))
    return rows


def first_alike(group: Sequence[Candidate]) -> list[int]:
    """For each candidate the first one with the same tokens.

    They must tie exactly, and a matrix product may round equal rows differently, so they are scored once.
    """
    firsts: dict[tuple, int] = {}
    return [firsts.setdefault((candidate.start, *candidate.tokens), i) for i, candidate in enumerate(group)]


def batch_jobs(jobs: Sequence[Job], batch_tokens: int) -> Iterator[list[Job]]:
    """Batches of jobs of similar length, the longest first, so that too large a batch runs out of memory at once."""
    batch: list[Job] = []
    for job in sorted(jobs, key=lambda job: -job.width):
        if batch and (len(batch) + 1) * batch[0].width > batch_tokens:
            yield batch
            batch = []
        batch.append(job)
    if batch:
        yield batch


Run = tuple[torch.Tensor, list[Row], list[int]]  # hidden states (B, T, C), their rows, the position each starts at


def _run_whole(model, batch: Sequence[Job], pad_id: int) -> Iterator[Run]:
    rows = [row for job in batch for row in job.rows]
    yield model.hidden(padded([row.inputs for row in rows], pad_id, model.device)), rows, [0] * len(rows)


def _run_after_prefixes(model, batch: Sequence[Job], cached_tokens: int) -> Iterator[Run]:
    """Run the prefixes in one pass, then the tails, those of similar length together, as many as the memory allows."""
    longest = max(len(row.inputs) for job in batch for row in job.rows)
    cache = KVCache(model, len(batch), longest)
    model.fill(padded([job.rows[0].inputs[: job.prefix] for job in batch], -1, model.device), cache)
    tails = [(len(row.inputs) - job.prefix, number, row) for number, job in enumerate(batch) for row in job.rows]
    tails.sort(key=lambda tail: -tail[0])
    for group in _similar(tails, max(1, cached_tokens // longest)):
        _, numbers, rows = zip(*group)
        prefixes = [batch[number].prefix for number in numbers]
        ids = padded([row.inputs[prefix:] for row, prefix in zip(rows, prefixes)], -1, model.device)
        yield model.hidden(ids, cache.select(numbers)), list(rows), prefixes


def _similar(tails: Sequence[tuple], most: int) -> Iterator[Sequence[tuple]]:
    """Split `tails` (each begins with its length, the longest first) into groups of at most `most`, little padded."""
    first = 0
    for end in range(1, len(tails) + 1):
        size = end - first
        full = end == len(tails) or size == most
        if full or (size >= SMALL_GROUP and tails[end][0] < SIMILAR * tails[first][0]):
            yield tails[first:end]
            first = end


def padded(sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> torch.Tensor:
    """The sequences as one tensor (B, T) int64, padded on the right."""
    ids = torch.full((len(sequences), max(map(len, sequences))), pad_id, dtype=torch.long)
    for row, sequence in zip(ids, sequences):
        row[: len(sequence)] = torch.tensor(sequence)
    return ids.to(device)


def _read_off(
    model, hidden: torch.Tensor, rows: Sequence[Row], offsets: Sequence[int], groups: Sequence[Sequence[Candidate]]
) -> Iterator[tuple[tuple[int, int], Score]]:
    """Score each reader of the rows; `hidden` (B, T, C) of row b begins at its position `offsets[b]`."""
    at_row, at_position, targets, readers = [], [], [], []
    for number, (row, offset) in enumerate(zip(rows, offsets)):
        for reader in row.readers:
            candidate = groups[reader[0]][reader[1]]
            count, first = len(candidate.targets), candidate.start - 1 - offset
            at_row += [number] * count
            at_position += range(first, first + count)
            targets += candidate.targets
            readers.append((reader, count))
    where = torch.tensor(at_row, device=hidden.device), torch.tensor(at_position, device=hidden.device)
    losses, hits = _losses_and_hits(model, hidden[where], torch.tensor(targets, device=hidden.device))
    begin = 0
    for reader, count in readers:
        part = slice(begin, begin + count)
        yield reader, Score(float(losses[part].mean()), bool(hits[part].all()))
        begin += count


def _losses_and_hits(model, hidden: torch.Tensor, targets: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Losses (N,) in nats, float64, and hits (N,), whether the target is the argmax, of hidden (N, C), targets (N,)."""
    losses, hits = [], []
    chunk = max(1, LOGITS_PER_CHUNK // model.config.vocab_size)
    for part, wanted in zip(hidden.split(chunk), targets.split(chunk)):
        logits = model.unembed(part.unsqueeze(0)).squeeze(0)  # (n, V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        largest, likeliest = logits.max(dim=-1, keepdim=True)
        wrong_by = (largest - logits.gather(-1, wanted[:, None])).squeeze(-1)
        total = (logits - largest).exp_().sum(dim=-1)
        # A loss of ten nats has only six decimals in float32: add its two parts in float64.
        losses.append(wrong_by.cpu().double() + total.cpu().double().log())
        hits.append((likeliest.squeeze(-1) == wanted).cpu())
    return torch.cat(losses).numpy(), torch.cat(hits).numpy()
