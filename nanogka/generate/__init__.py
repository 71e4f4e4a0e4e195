"""Decode cache, sampling, engine and streaming text."""

from nanogka.generate.cache import DecodeCache
from nanogka.generate.engine import Engine, Event
from nanogka.generate.kept_cache import KeptCache
from nanogka.generate.sampling import SamplingSettings
from nanogka.generate.text import TextStream

__all__ = ["DecodeCache", "Engine", "Event", "KeptCache", "SamplingSettings", "TextStream"]
