"""Configuration, network, token mixers and accounting."""

from nanogka.model.accounting import Accounting, count
from nanogka.model.config import MIXER_LETTERS, GPTConfig, attention_name, mixer_pattern
from nanogka.model.gpt import GPT, Cache
from nanogka.model.mixer import Mixer, Tokens

__all__ = [
    "MIXER_LETTERS",
    "Accounting",
    "Cache",
    "GPT",
    "GPTConfig",
    "Mixer",
    "Tokens",
    "attention_name",
    "count",
    "mixer_pattern",
]
