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
        mixture_components: K of each head of a Gaussian mixture layer.
        mixture_routing: what its queries and keys are made of, one of `ROUTINGS`.
        mixture_routing_dim: d, features in which its components lie; None for 16 if projected, else for the head size.
        logit_cap: logits are cap · tanh(logits / cap).
        rotary_base: base of the rotary frequencies.
    """

    sequence_len: int = 2048
    vocab_size: int = 32768
    n_layer: int = 20
    n_head: int = 10
    n_embd: int = 1280
    mixer_pattern: str = "G"
    window_pattern: str = "SSSL"
    bandwidth_init: float | None = None
    mixture_components: int = 64
    mixture_routing: str = "projected"
    mixture_routing_dim: int | None = None
    logit_cap: float = 15.0
    rotary_base: float = 10000.0

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
        K = self.mixture_components
        problems.check(1 <= K <= MOST_COMPONENTS, "mixture_components", K, f"an integer from 1 to {MOST_COMPONENTS}")
        known = self.mixture_routing in ROUTINGS
        problems.check(known, "mixture_routing", self.mixture_routing, ", ".join(ROUTINGS))
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
        problems.raise_any()

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
        if not 1 <= depth <= DEEPEST:
            raise ValueError(f"--depth: got {depth}, takes an integer from 1 to {DEEPEST}")
        n_head = -(-depth * ASPECT_RATIO // HEAD_DIM)
        return cls(
            n_layer=depth, n_head=n_head, n_embd=n_head * HEAD_DIM, mixer_pattern=mixer_pattern(attention), **changes
        )

    @property
    def head_dim(self) -> int:
        """D, features per head."""
        return self.n_embd // self.n_head

    @property
    def mixture_features(self) -> int:
        """d, routing features per head of a Gaussian mixture layer."""
        projected = self.mixture_routing == "projected"
        return self.mixture_routing_dim or (min(16, self.head_dim) if projected else self.head_dim)

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
