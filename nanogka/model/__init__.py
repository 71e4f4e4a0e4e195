"""Configuration, network, token mixers, decode cache and accounting."""

from nanogka.model.accounting import ModelCosts, activation_bytes, model_costs
from nanogka.model.config import SNAPSHOTS, GPTConfig
from nanogka.model.gpt import GPT
from nanogka.model.kv_cache import KVCache, LayerCache
from nanogka.model.layers import AttentionInputs, Mixer, ParameterGroup, TokenContext
from nanogka.model.mixers import MIXERS, register_mixer
from nanogka.model.spec import Option, attention_name, mixer_options, mixer_pattern

__all__ = [
    "MIXERS",
    "SNAPSHOTS",
    "ModelCosts",
    "AttentionInputs",
    "TokenContext",
    "GPT",
    "GPTConfig",
    "KVCache",
    "LayerCache",
    "Mixer",
    "Option",
    "ParameterGroup",
    "activation_bytes",
    "attention_name",
    "model_costs",
    "mixer_options",
    "mixer_pattern",
    "register_mixer",
]
