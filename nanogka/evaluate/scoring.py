"""The loss of candidates under a model, with as little work as exactness allows.

The model is causal, so what it computes at a position depends on nothing to the right of it. Three things follow,
none of which changes a result: rows of one batch are padded on the right with any token; a candidate whose inputs
begin another candidate of the same item is read off that row (the choices A, B, C, D are one row, not four); and
logits are made only where a token is scored.

Legend: B rows, T positions, C model width, V vocabulary, N scored tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from nanogka.evaluate.prompts import Candidate

# Bounds the float32 logits held at once (a quarter of a GiB), whatever the vocabulary.
LOGITS_PER_CHUNK = 2**26


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


@torch.no_grad()
def score_groups(
    model,
    groups: Sequence[Sequence[Candidate]],
    *,
    batch_tokens: int,
    pad_id: int,
    on_row: Callable[[Row], None] = lambda row: None,
) -> list[list[Score]]:
    """Score every candidate of every group (an item's candidates are a group).

    Args:
        model: `hidden(idx (B, T)) -> (B, T, C)`, `unembed((…, C)) -> (…, V)` float logits, `.device`.
        batch_tokens: the most tokens, padding included, in one batch; a longer row gets a batch of its own.
        pad_id: any token.
        on_row: called with each row once it is scored, for a progress bar.
    """
    rows = [row for index, group in enumerate(groups) for row in share_rows(index, group)]
    scores: list[list[Score | None]] = [[None] * len(group) for group in groups]
    for batch in batch_rows(rows, batch_tokens):
        for (group, candidate), score in _score_batch(model, batch, groups, pad_id):
            scores[group][candidate] = score
        for row in batch:
            on_row(row)
    for index, group in enumerate(groups):
        for candidate, first in enumerate(first_alike(group)):
            scores[index][candidate] = scores[index][first]
    return scores


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

    Choices that are word for word the same must tie exactly, or rounding would choose between them: a matrix product
    may round equal rows differently, so they are scored once.
    """
    firsts: dict[tuple, int] = {}
    return [firsts.setdefault((candidate.start, *candidate.tokens), i) for i, candidate in enumerate(group)]


def batch_rows(rows: Sequence[Row], batch_tokens: int) -> Iterator[list[Row]]:
    """Batches of rows of like length, the longest first, so that too large a batch runs out of memory at once."""
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: -len(row.inputs)):
        if batch and (len(batch) + 1) * len(batch[0].inputs) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _score_batch(
    model, batch: list[Row], groups: Sequence[Sequence[Candidate]], pad_id: int
) -> Iterator[tuple[tuple[int, int], Score]]:
    """Run one batch; yields each reader with its score."""
    idx = torch.full((len(batch), len(batch[0].inputs)), pad_id, dtype=torch.long)
    at_row, at_position, targets, readers = [], [], [], []
    for number, row in enumerate(batch):
        idx[number, : len(row.inputs)] = torch.tensor(row.inputs)
        for reader in row.readers:
            candidate = groups[reader[0]][reader[1]]
            count = len(candidate.targets)
            at_row += [number] * count
            at_position += range(candidate.start - 1, candidate.start - 1 + count)
            targets += candidate.targets
            readers.append((reader, count))
    hidden = model.hidden(idx.to(model.device))  # (B, T, C)
    where = torch.tensor(at_row, device=hidden.device), torch.tensor(at_position, device=hidden.device)
    losses, hits = _losses_and_hits(model, hidden[where], torch.tensor(targets, device=hidden.device))
    begin = 0
    for reader, count in readers:
        part = slice(begin, begin + count)
        yield reader, Score(float(losses[part].mean()), bool(hits[part].all()))
        begin += count


def _losses_and_hits(model, hidden: torch.Tensor, targets: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """For hidden (N, C) and targets (N,): losses in nats, (N,) float64, and whether the target is the argmax, (N,)."""
    losses, hits = [], []
    chunk = max(1, LOGITS_PER_CHUNK // model.config.vocab_size)
    for part, wanted in zip(hidden.split(chunk), targets.split(chunk)):
        logits = model.unembed(part.unsqueeze(0)).squeeze(0)  # (n, V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses.append(torch.nn.functional.cross_entropy(logits, wanted, reduction="none").cpu())
        hits.append((logits.argmax(dim=-1) == wanted).cpu())
    # the mean of a long answer is taken in float64: it must not depend on the order of the sum
    return torch.cat(losses).double().numpy(), torch.cat(hits).numpy()
