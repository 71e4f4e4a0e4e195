"""Decode cache, sampling, engine and streaming text."""

from nanogka.generate.engine import Engine, Event
from nanogka.generate.kept_cache import KeptCache
from nanogka.generate.sampling import SamplingSettings
from nanogka.generate.text import TextStream
from nanogka.model.kv_cache import DecodeCache

__all__ = ["DecodeCache", "Engine", "Event", "KeptCache", "SamplingSettings", "TextStream"]
