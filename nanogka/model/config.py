"""What a model is made of: one frozen dataclass, validated in one place, and the one dial `--depth` that sets it."""

from dataclasses import asdict, dataclass

from nanogka.problems import Problems

HEAD_DIM = 128
ASPECT_RATIO = 64  # model width a layer
MIXER_LETTERS = {"G": "gaussian", "D": "dot_product"}


@dataclass(frozen=True)
class GPTConfig:
    """Shape and choices of a `GPT`.

    Attributes:
        sequence_len: training context T in tokens; a windowed layer's window is T // 2.
        vocab_size: V.
        n_layer, n_head, n_embd: L, H and C; the head size is C / H.
        mixer_pattern: the token mixer of each layer, tiled: G gaussian, D dot_product ("G", "GGGD").
        window_pattern: the window of each layer, tiled: L full, S half the context; the last layer is always full.
        bandwidth_init: first value of every σ; None for D^¼, the temperature of ordinary attention.
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
    logit_cap: float = 15.0
    rotary_base: float = 10000.0

    def __post_init__(self) -> None:
        problems = Problems()
        problems.check(self.sequence_len >= 2, "sequence_len", self.sequence_len, "an integer of at least 2")
        problems.check(self.vocab_size >= 1, "vocab_size", self.vocab_size, "an integer of at least 1")
        problems.check(self.n_layer >= 1, "n_layer", self.n_layer, "an integer of at least 1")
        if problems.check(self.n_head >= 1, "n_head", self.n_head, "an integer of at least 1"):
            fits = self.n_embd % (2 * self.n_head) == 0 and self.n_embd >= 32
            problems.check(fits, "n_embd", self.n_embd, f"an even multiple of n_head = {self.n_head}, at least 32")
        letters = ", ".join(f"{letter} ({name})" for letter, name in MIXER_LETTERS.items())
        known = bool(self.mixer_pattern) and set(self.mixer_pattern) <= set(MIXER_LETTERS)
        problems.check(known, "mixer_pattern", self.mixer_pattern, f"one or more of {letters}")
        known = bool(self.window_pattern) and set(self.window_pattern) <= set("SL")
        problems.check(known, "window_pattern", self.window_pattern, "one or more of S (half the context), L (full)")
        positive = self.bandwidth_init is None or self.bandwidth_init > 0
        problems.check(positive, "bandwidth_init", self.bandwidth_init, "a number above 0")
        problems.check(self.logit_cap > 0, "logit_cap", self.logit_cap, "a number above 0")
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
        if depth < 1:
            raise ValueError(f"--depth: got {depth}, takes an integer of at least 1")
        n_head = -(-depth * ASPECT_RATIO // HEAD_DIM)
        return cls(
            n_layer=depth, n_head=n_head, n_embd=n_head * HEAD_DIM, mixer_pattern=mixer_pattern(attention), **changes
        )

    @property
    def head_dim(self) -> int:
        """D, features a head."""
        return self.n_embd // self.n_head

    def mixers(self) -> list[str]:
        """The mixer's name of each layer."""
        pattern = self.mixer_pattern
        return [MIXER_LETTERS[pattern[i % len(pattern)]] for i in range(self.n_layer)]

    def windows(self) -> list[int | None]:
        """The window of each layer in positions, None where it sees the whole context (see `attention.windows`)."""
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
    for letter, name in MIXER_LETTERS.items():
        if attention == name:
            return letter
    if attention and set(attention) <= set(MIXER_LETTERS):
        return attention
    names = ", ".join(MIXER_LETTERS.values())
    raise ValueError(f"--attention: got {attention!r}, takes {names}, or a pattern of {'/'.join(MIXER_LETTERS)}")


def attention_name(pattern: str) -> str:
    """How people call a mixer pattern: the mixer's name if there is only one, else the pattern."""
    letters = set(pattern)
    return MIXER_LETTERS[letters.pop()] if len(letters) == 1 else pattern
