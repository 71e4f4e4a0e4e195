"""The registry of token mixers: the names that a configuration's mixer letters stand for."""

from nanogka.model.config import GPTConfig
from nanogka.model.dot_product import DotProductMixer
from nanogka.model.gaussian import GaussianMixer
from nanogka.model.mixer import Mixer

MIXERS: dict[str, type[Mixer]] = {"gaussian": GaussianMixer, "dot_product": DotProductMixer}


def build_mixer(config: GPTConfig, layer: int) -> Mixer:
    """The mixer of layer `layer`."""
    return MIXERS[config.mixers()[layer]](config, layer)
