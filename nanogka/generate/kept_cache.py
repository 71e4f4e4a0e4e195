"""A text that grows, read once: the decode cache outlives the call.

    kept = KeptCache(engine)
    for event in kept.stream(ids, settings, max_tokens=100):
        …
    for event in kept.stream([*ids, *reply, *more], settings):     reads `more` alone
        …

In a conversation each prompt begins with what was said before, word for word. A cache can be extended but not taken
back, as rings forget what they drop: where a prompt does not begin with all that was read, everything is read again.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from nanogka.generate.engine import Engine, Event
from nanogka.generate.sampling import SamplingSettings
from nanogka.model.kv_cache import DecodeCache


class KeptCache:
    """One growing text and what the model has read of it.

    A reply may be abandoned at any moment, by an exception in the middle of a step too: what is usable is used.
    One stream at a time: the next ends the one before.

    Attributes:
        reused: tokens of the last prompt that were not read again.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.reused = 0
        self._cache: DecodeCache | None = None
        self._ids: list[int] = []  # the cache has read the first `lengths[0]` of these
        self._steps: Iterator[list[Event]] = iter(())

    def stream(self, ids: Sequence[int], settings: SamplingSettings | None = None, **arguments: Any) -> Iterator[Event]:
        """Generate one sample: the same tokens as `Engine.stream`, which explains the arguments and errors."""
        if hasattr(self._steps, "close"):  # what a recorded step has read is in the cache only after it
            self._steps.close()
        cache = self._matching(ids) or DecodeCache(self.engine.model, capacity=self.engine.context)
        steps = self.engine.stream([ids], settings, cache=cache, **arguments)
        self._cache, self._ids, self._steps, self.reused = cache, list(ids), steps, cache.lengths[0]
        return self._follow(steps)

    def _follow(self, steps: Iterator[list[Event]]) -> Iterator[Event]:
        ids = self._ids
        for (event,) in steps:
            ids.append(event.token)  # before the engine reads it
            yield event

    def _matching(self, ids: Sequence[int]) -> DecodeCache | None:
        """The cache, if it has read a beginning of `ids`, and not all: the last one's state is needed."""
        cache = self._cache
        if cache is None or not cache.whole:
            return None
        read = self._ids[: cache.lengths[0]]
        return cache if len(read) < len(ids) and list(ids[: len(read)]) == read else None
