"""Filling a KV cache with a prefix whose outputs nobody reads."""

import torch

from nanogka.model.kv_cache import DecodeCache as KVCache


class _FilledError(Exception):
    """The last layer is cached; nothing computed after that would be read."""


class _FillOnly:
    """A cache that ends the pass as soon as its last layer holds the new tokens."""

    def __init__(self, cache: KVCache, layers: int) -> None:
        self.begin, self.positions, self.end = cache.begin, cache.positions, cache.end
        self.partly_filled = cache.partly_filled
        self._cache, self._last = cache, layers - 1

    def extend(self, layer: int, new: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """See `nanogka.model.gpt.Cache`; raises `_FilledError` at the last layer."""
        past = self._cache.extend(layer, new)
        if layer == self._last:
            self._cache.end()
            raise _FilledError
        return past


def fill(model, ids: torch.Tensor, cache: KVCache) -> None:
    """Cache `ids` (B, T), −1 for padding after a row's tokens, without computing any output."""
    try:
        model.hidden(ids, _FillOnly(cache, model.config.n_layer))
    except _FilledError:
        return
