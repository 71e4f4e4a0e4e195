"""Decode cache, sampling, engine and streaming text."""

from nanogka.generate.cache import DecodeCache
from nanogka.generate.engine import Engine, Event
from nanogka.generate.sampling import SamplingSettings
from nanogka.generate.text import TextStream

__all__ = ["DecodeCache", "Engine", "Event", "SamplingSettings", "TextStream"]
