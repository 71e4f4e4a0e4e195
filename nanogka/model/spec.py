"""Declarations of a token mixer: its names, its options, and the registry that all other code reads."""

from dataclasses import dataclass

from nanogka.common.errors import Errors
from nanogka.common.validate import convert


@dataclass(frozen=True)
class Option:
    """An option of a token mixer."""

    default: object  # None if it follows from the configuration
    help: str  # for `--help`
    choices: tuple[str, ...] | None = None  # allowed values of a string option
    ge: float | None = None  # inclusive bounds of a number
    le: float | None = None
    kind: type = type(None)  # type of the values; by default that of `default`
    at_most: str = ""  # a number of the configuration that the value may not exceed

    def __post_init__(self) -> None:
        if self.kind is type(None):
            object.__setattr__(self, "kind", type(self.default))

    def check(self, name: str, value: object, errors: Errors) -> bool:
        """Record a problem if the value is not allowed."""
        limits = self.choices, self.ge, self.le
        return errors.capture(lambda: convert(name, value, self.kind, *limits, strict=True)) is not None


class MixerSpec:
    """Constants of a token mixer's class, read by configuration, command line, training budget and reports."""

    name: str  # on command lines
    letter: str  # in patterns such as GGGD
    label: str  # in reports and plots
    color: str
    tokens_per_parameter: float = 10.5  # default training horizon, in tokens per matrix or lm_head parameter
    options: dict[str, Option] = {}  # a name means the same in every mixer that has it; defaults may differ
    has_smear: bool = False  # the network has a smear unless `smear` says otherwise
    # Number of (B, T, C) tensors that a layer, compiled for a GPU, saves for the backward pass; None: not counted.
    saved_activations: float | None = None


MIXERS: dict[str, type[MixerSpec]] = {}


def register_mixer(mixer: type[MixerSpec]) -> None:
    """Register a mixer by its name and letter. Raises ValueError if another mixer has either."""
    for other in MIXERS.values():
        if other.name == mixer.name or other.letter == mixer.letter:
            raise ValueError(
                f"mixer {mixer.name!r} ({mixer.letter}): expected a name and letter unlike {other.name!r}'s"
            )
    MIXERS[mixer.name] = mixer


def mixer_options() -> dict[str, dict[str, Option]]:
    """{option: {mixer: its declaration}} of all registered mixers."""
    found: dict[str, dict[str, Option]] = {}
    for mixer in MIXERS.values():
        for name, option in mixer.options.items():
            found.setdefault(name, {})[mixer.name] = option
    return found


def mixers_by_letter() -> dict[str, type[MixerSpec]]:
    """The registered mixers by their letters."""
    return {mixer.letter: mixer for mixer in MIXERS.values()}


def mixer_pattern(attention: str) -> str:
    """Return the mixer pattern for `attention`, a mixer's name or a pattern of letters. Raises ValueError."""
    if attention in MIXERS:
        return MIXERS[attention].letter
    letters = mixers_by_letter()
    if attention and set(attention) <= set(letters):
        return attention
    expected = f"{', '.join(MIXERS)}, or a pattern of {'/'.join(letters)}"
    raise ValueError(f"attention: got {attention!r}, expected {expected}")


def attention_name(pattern: str) -> str:
    """The mixer's name if a pattern has only one, else the pattern."""
    names = [mixer.name for mixer in MIXERS.values() if set(pattern) == {mixer.letter}]
    return names[0] if names else pattern
