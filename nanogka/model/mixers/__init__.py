"""The registry of token mixers. A new mixer is one file in this folder and one line below."""

from nanogka.model.layers import Mixer
from nanogka.model.mixers.dot_product import DotProductMixer
from nanogka.model.mixers.gaussian import GaussianMixer
from nanogka.model.mixers.mixture import GaussianMixtureMixer
from nanogka.model.mixers.successor import SuccessorMixer
from nanogka.model.mixers.value_less import ValueLessMixer

MIXERS: dict[str, type[Mixer]] = {}


def register_mixer(mixer: type[Mixer]) -> None:
    """Make a mixer known by its name and letter.

    Raises:
        ValueError: if another one has either.
    """
    for other in MIXERS.values():
        if other.name == mixer.name or other.letter == mixer.letter:
            raise ValueError(f"mixer {mixer.name!r} ({mixer.letter}): takes a name and letter unlike {other.name!r}'s")
    MIXERS[mixer.name] = mixer


register_mixer(GaussianMixer)
register_mixer(SuccessorMixer)
register_mixer(DotProductMixer)
register_mixer(ValueLessMixer)
register_mixer(GaussianMixtureMixer)
