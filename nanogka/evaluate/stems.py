"""Running what several rows begin with only once, through a decode cache that the caller hands in.

The cache is any with the protocol of `nanogka.model.gpt.Cache` and `select`; `nanogka.model.kv_cache.DecodeCache` is
one. This floor does not import it: whoever calls an evaluation passes the class.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from nanogka.model.gpt import Cache


class StemCache(Cache, Protocol):
    """A decode cache some of whose rows can be taken, as often as one likes."""

    def select(self, rows: Sequence[int]) -> "StemCache":
        """A cache of these rows, in this order; this one stays usable."""


class CacheMaker(Protocol):
    """Makes an empty cache of `batch` rows with room for `capacity` positions."""

    def __call__(self, model, batch: int, capacity: int) -> StemCache: ...


class _Filled(Exception):
    """The last layer has been remembered; nothing computed after that would be read."""


class _FillOnly:
    """A cache that ends the pass as soon as its last layer holds the new tokens.

    What the last layer mixes and its MLP serve only the outputs at these positions. In a model of four layers that is a
    quarter of the work.
    """

    def __init__(self, cache: StemCache, layers: int) -> None:
        self.begin, self.positions, self.end = cache.begin, cache.positions, cache.end
        self.partly_filled = cache.partly_filled
        self._cache, self._last = cache, layers - 1

    def extend(self, layer: int, new: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """See `nanogka.model.gpt.Cache`; raises `_Filled` at the last layer."""
        past = self._cache.extend(layer, new)
        if layer == self._last:
            self._cache.end()
            raise _Filled
        return past


def fill(model, ids: torch.Tensor, cache: StemCache) -> None:
    """Let the cache remember `ids` (B, T), −1 for padding after a row's tokens, without computing any output."""
    try:
        model.hidden(ids, _FillOnly(cache, model.config.n_layer))
    except _Filled:
        return
    raise AssertionError("the model passed its last layer without asking the cache to remember it")
