"""The registry of token mixers. A new mixer is one file in this folder and one line below."""

from nanogka.model.mixers.dot_product import DotProductMixer, ValueLessMixer
from nanogka.model.mixers.gaussian import GaussianMixer
from nanogka.model.mixers.mixture import GaussianMixtureMixer
from nanogka.model.mixers.successor import SuccessorMixer
from nanogka.model.spec import MIXERS, register_mixer

__all__ = ["MIXERS", "register_mixer"]

register_mixer(GaussianMixer)
register_mixer(SuccessorMixer)
register_mixer(DotProductMixer)
register_mixer(ValueLessMixer)
register_mixer(GaussianMixtureMixer)
