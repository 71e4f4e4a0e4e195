"""The interface that scoring needs of a model, and our models behind it.

Shapes: B rows, T positions, C width of the states, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from nanogka.model import GPT, KVCache

Rows = Sequence[Sequence[int]]  # token ids of each row; they differ in length
Continue = Callable[[Sequence[int], Rows], Tensor]  # (numbers of prefixes, what follows each) to states


class Scorer(Protocol):
    """A causal language model whose candidates are scored.

    `states` and `logits` are two steps because logits are needed at few positions, and a vocabulary is much wider than
    the states.
    """

    device: torch.device
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
        self.model, self.vocab_size = model, model.config.vocab_size

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
        cache, limit = KVCache(self.model, rows, longest), self.model.config.sequence_len
        if longest > limit:
            cache.windows = {layer: limit if window is None else window for layer, window in cache.windows.items()}
        return cache


def padded(rows: Rows, pad_id: int, device: torch.device) -> Tensor:
    """Rows of ids as one tensor (B, T) int64, padded on the right."""
    ids = torch.full((len(rows), max(map(len, rows))), pad_id, dtype=torch.long)
    for padded_row, row in zip(ids, rows):
        padded_row[: len(row)] = torch.tensor(row)
    return ids.to(device)
