"""Generation: sampling, the batched engine, streaming text, sessions and their terminal."""

from nanogka.generate.continuous import Event, PrefixCache
from nanogka.generate.engine import Engine
from nanogka.generate.sampling import SamplingSettings
from nanogka.generate.text import TextStream

__all__ = ["Engine", "Event", "PrefixCache", "SamplingSettings", "TextStream"]
