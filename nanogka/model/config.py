"""Configuration of a model: one frozen dataclass, validated in one place, and the one dial `--depth` that sets it."""

from dataclasses import asdict, dataclass

from nanogka.model.layers import Mixer
from nanogka.model.mixers import MIXERS
from nanogka.problems import Problems

HEAD_DIM = 128
ASPECT_RATIO = 64  # model width per layer
DEEPEST = 1000
MOST_COMPONENTS = 4096  # their memory is K × (D + 1) a head and chunk of positions
LARGEST = 2**31 - 1  # of sizes that index a tensor
SUCCESSOR_KEYS = ("off", "mix", "full")
MIXER_OPTIONS = (
    *("successor_keys", "short_conv", "value_embeddings", "qk_affine"),
    *("diagonal_metric", "data_bandwidth", "exclude_self"),
    *("mixture_components", "mixture_routing", "mixture_routing_dim"),
)
ROUTINGS = ("projected", "features", "successor")  # of Gaussian mixture attention, see `model/mixers/mixture.py`


@dataclass(frozen=True)
class GPTConfig:
    """Shape and choices of a `GPT`.

    Raises:
        ValueError: naming every setting that is out of range.

    Attributes:
        sequence_len: training context T in tokens; a windowed layer's window is T // 2.
        vocab_size: V.
        n_layer, n_head, n_embd: L, H and C; the head size is C / H.
        mixer_pattern: the letter of each layer's token mixer, tiled ("G", "GGGD").
        window_pattern: the window of each layer, tiled: L full, S half the context; the last layer is always full.
        bandwidth_init: first value of every σ; None for D^¼, the temperature of ordinary attention.
        logit_cap: logits are cap · tanh(logits / cap).
        rotary_base: base of the rotary frequencies.
        smear: whether the network adds s ∘ (the embedding before) to each embedding, s one learned vector.
        successor_keys, short_conv, value_embeddings, qk_affine, diagonal_metric, data_bandwidth, exclude_self: options
            of mixers, see `GaussianMixer`; None is the mixer's own choice.
        mixture_components, mixture_routing, mixture_routing_dim: options of Gaussian mixture layers: K of each head;
            what queries and keys are made of, one of `ROUTINGS`; d, features in which components lie, by default 16 if
            projected, else the head size.
    """

    sequence_len: int = 2048
    vocab_size: int = 32768
    n_layer: int = 20
    n_head: int = 10
    n_embd: int = 1280
    mixer_pattern: str = "G"
    window_pattern: str = "SSSL"
    bandwidth_init: float | None = None
    logit_cap: float = 15.0
    rotary_base: float = 10000.0
    smear: bool | None = None
    successor_keys: str | None = None
    short_conv: int | None = None
    value_embeddings: bool | None = None
    qk_affine: bool | None = None
    diagonal_metric: bool | None = None
    data_bandwidth: bool | None = None
    exclude_self: bool | None = None
    mixture_components: int | None = None
    mixture_routing: str | None = None
    mixture_routing_dim: int | None = None

    def __post_init__(self) -> None:
        problems = Problems()
        for name, least in (("sequence_len", 2), ("vocab_size", 1)):
            value = getattr(self, name)
            problems.check(least <= value <= LARGEST, name, value, f"an integer from {least} to {LARGEST}")
        deep = 1 <= self.n_layer <= DEEPEST
        problems.check(deep, "n_layer", self.n_layer, f"an integer from 1 to {DEEPEST}")
        if problems.check(1 <= self.n_head <= LARGEST, "n_head", self.n_head, "an integer of at least 1"):
            fits = self.n_embd % (2 * self.n_head) == 0 and 32 <= self.n_embd <= LARGEST
            problems.check(fits, "n_embd", self.n_embd, f"an even multiple of n_head = {self.n_head}, at least 32")
            d, takes = self.mixture_routing_dim, f"an integer from 1 to the head size, {self.head_dim}"
            problems.check(d is None or 1 <= d <= self.head_dim, "mixture_routing_dim", d, takes)
        K, routing = self.mixture_components, self.mixture_routing
        takes = f"an integer from 1 to {MOST_COMPONENTS}"
        problems.check(K is None or 1 <= K <= MOST_COMPONENTS, "mixture_components", K, takes)
        problems.check(routing in (None, *ROUTINGS), "mixture_routing", routing, ", ".join(ROUTINGS))
        letters = {mixer.letter: mixer.name for mixer in MIXERS.values()}
        known = bool(self.mixer_pattern) and set(self.mixer_pattern) <= set(letters)
        names = ", ".join(f"{letter} ({name})" for letter, name in letters.items())
        problems.check(known, "mixer_pattern", self.mixer_pattern, f"one or more of {names}")
        known = bool(self.window_pattern) and set(self.window_pattern) <= set("SL")
        problems.check(known, "window_pattern", self.window_pattern, "one or more of S (half the context), L (full)")
        for name in ("bandwidth_init", "logit_cap", "rotary_base"):
            value = getattr(self, name)
            optional = name == "bandwidth_init" and value is None
            problems.check(optional or 0 < value < float("inf"), name, value, "a finite number above 0")
        self._check_options(problems, letters)
        problems.raise_any()

    def _check_options(self, problems: Problems, letters: dict[str, str]) -> None:
        if self.short_conv is not None:
            problems.check(0 <= self.short_conv <= 64, "short_conv", self.short_conv, "an integer from 0 to 64")
        if self.successor_keys is not None:
            known = set(self.successor_keys.split(",")) <= set(SUCCESSOR_KEYS)
            takes = f"{', '.join(SUCCESSOR_KEYS)}, or several of them with commas, tiled over the layers"
            problems.check(known, "successor_keys", self.successor_keys, takes)
        mixers = [MIXERS[letters[letter]] for letter in self.mixer_pattern if letter in letters]
        for name in MIXER_OPTIONS:
            taken = any(name in mixer.options for mixer in mixers)
            takers = ", ".join(mixer.name for mixer in MIXERS.values() if name in mixer.options)
            unset = getattr(self, name) in (None, False, 0, "off")
            problems.check(taken or unset, name, getattr(self, name), f"a mixer that has it: {takers}")

    @classmethod
    def from_depth(cls, depth: int, attention: str = "gaussian", **changes: object) -> "GPTConfig":
        """The configuration of depth `depth`: C = 64 · depth rounded up to whole heads of 128.

        Args:
            depth: number of layers.
            attention: a mixer's name, or a mixer pattern such as "GGGD".
            **changes: any other field.

        Raises:
            ValueError: naming every setting that is out of range.
        """
        problems = Problems()
        known = problems.check(1 <= depth <= DEEPEST, "--depth", depth, f"an integer from 1 to {DEEPEST}")
        pattern = problems.attempt(lambda: mixer_pattern(attention))
        n_head = -(-(depth if known else 1) * ASPECT_RATIO // HEAD_DIM)
        shape = {"n_layer": depth if known else 1, "n_head": n_head, "n_embd": n_head * HEAD_DIM}
        config = problems.attempt(lambda: cls(**shape, mixer_pattern=pattern or cls.mixer_pattern, **changes))
        problems.raise_any()
        return config

    @property
    def smears(self) -> bool:
        """True if the network has a smear: as set, or as a mixer of its pattern wants it."""
        if self.smear is not None:
            return self.smear
        return any(mixer.options.get("smear", False) for mixer in self.mixers())

    @property
    def head_dim(self) -> int:
        """D, features per head."""
        return self.n_embd // self.n_head

    def mixers(self) -> list[type[Mixer]]:
        """The mixer class of each layer."""
        letters = {mixer.letter: mixer for mixer in MIXERS.values()}
        return [letters[self.mixer_pattern[i % len(self.mixer_pattern)]] for i in range(self.n_layer)]

    def windows(self) -> list[int | None]:
        """The window of each layer in positions (see `nanogka.attention.visible`), None for the whole context."""
        pattern = self.window_pattern
        windows = [self.sequence_len // 2 if pattern[i % len(pattern)] == "S" else None for i in range(self.n_layer)]
        windows[-1] = None
        return windows

    def to_dict(self) -> dict:
        """All fields, for YAML or JSON."""
        return asdict(self)


def mixer_pattern(attention: str) -> str:
    """The mixer pattern that `attention` stands for: a mixer's name, or a pattern of mixer letters itself.

    Raises:
        ValueError: if it is neither.
    """
    if attention in MIXERS:
        return MIXERS[attention].letter
    letters = [mixer.letter for mixer in MIXERS.values()]
    if attention and set(attention) <= set(letters):
        return attention
    takes = f"{', '.join(MIXERS)}, or a pattern of {'/'.join(letters)}"
    raise ValueError(f"--attention: got {attention!r}, takes {takes}")


def attention_name(pattern: str) -> str:
    """The mixer's name if a pattern has only one, else the pattern."""
    names = [mixer.name for mixer in MIXERS.values() if set(pattern) == {mixer.letter}]
    return names[0] if names else pattern
