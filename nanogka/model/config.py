"""Configuration of a model: one validated, frozen dataclass, which `--depth` alone can determine.

Token mixers declare their options in their classes. All other code reads them from the registry `MIXERS`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_args, get_type_hints

from nanogka.common.errors import Errors
from nanogka.model.spec import MixerSpec, mixer_options, mixer_pattern, mixers_by_letter

HEAD_DIM = 128  # the size that fused attention kernels are tuned for
# Channels per layer. Depth and width grow together, so one dial sets the size of the model (nanochat's `--depth`).
ASPECT_RATIO = 64
MAX_DEPTH = 1000
MAX_SIZE = 2**31 - 1  # of sizes that index a tensor
UNSET_VALUES = (None, False, 0, "off")  # option values that mean "not set"
LEGACY_OPTION_VALUES = {"full": True, "off": False}  # strings that older files have for booleans


@dataclass(frozen=True)
class Snapshot:
    """Constants and parts that differ between snapshots of nanochat. The defaults are those of February 2026."""

    rotary_base: float = 10000.0  # a larger base turns slowly, so that far positions remain distinguishable
    embedding_std: float = 1.0  # initial standard deviation
    mlp_scale: float = 1.0  # factor on the initial values of c_fc
    # Initial values of the first and last layer, interpolated linearly between: λ of the residual stream, and μ of the
    # embedding x0. July's give early layers a stronger stream and more of the embedding.
    resid_lambdas: tuple[float, float] = (1.0, 1.0)
    x0_lambdas: tuple[float, float] = (0.1, 0.1)
    gated_smear: bool = False  # the smear has a gate per token instead of a vector
    backout: float | None = None  # initial share of the middle layer that is subtracted at the end; None: no backout
    quarter_windows: bool = False  # S sees a quarter of the context, in steps of 128, instead of half
    # Factor on normed queries and keys, in mixers with projections. Their norm is fixed, so attention cannot learn to
    # be sharper than this allows. GKA learns σ instead.
    qk_scale: float = 1.0
    gate_features: int = 32  # of value embeddings: g · sigmoid(W x[:features])
    gate_range: float = 2.0  # g
    gate_init: float = 0.0  # W is initially uniform between 0 and this
    tokens_per_parameter: float | None = None  # default training horizon; None for the mixer's


SNAPSHOTS = {
    "february": Snapshot(),  # nanochat 685271d, the paper's baseline
    "july": Snapshot(  # nanochat 92d63d4
        rotary_base=100000.0,
        embedding_std=0.8,
        mlp_scale=0.4,
        resid_lambdas=(1.15, 1.05),
        x0_lambdas=(0.20, 0.05),
        gated_smear=True,
        backout=0.2,
        quarter_windows=True,
        qk_scale=1.2,
        gate_features=12,
        gate_range=3.0,
        gate_init=0.02,
        tokens_per_parameter=12.0,
    ),
}


@dataclass(frozen=True)
class GPTConfig:
    """Shape and choices of a `GPT`. Raises ValueError that names every setting out of range."""

    sequence_len: int = 2048  # training context T in tokens
    vocab_size: int = 32768  # V
    n_layer: int = 20  # L
    n_head: int = 10  # H; the head size is C / H
    n_embd: int = 1280  # C
    mixer_pattern: str = "G"  # the letter of each layer's token mixer, tiled ("GGGD")
    # The window of each layer, tiled: L full, S short, see `windows`. Most of what a token needs is near, so three
    # layers of four look at half the context and save attention FLOPs. The last layer always sees all of it.
    window_pattern: str = "SSSL"
    # Initial value of every σ; None for D^¼, which gives the temperature √D of dot-product attention.
    bandwidth_init: float | None = None
    logit_cap: float = 15.0  # logits are cap · tanh(logits / cap)
    rotary_base: float | None = None  # None: the network's, see `rope_theta`
    smear: bool | None = None  # mix the previous token's embedding into each; None: see `has_smear`
    network: str = "february"  # name in `SNAPSHOTS`
    options: Mapping[str, object] = field(default_factory=dict, hash=False)  # mixer options that were set explicitly

    def __post_init__(self) -> None:
        errors = Errors()
        known = errors.require(self.network in SNAPSHOTS, "network", self.network, ", ".join(SNAPSHOTS))
        if known and self.rotary_base == self.snapshot.rotary_base:
            # Files name the network's own value. Without it `replace(config, network=…)` gives the other network's.
            object.__setattr__(self, "rotary_base", None)
        for name, least in (("sequence_len", 2), ("vocab_size", 1)):
            value = getattr(self, name)
            errors.require(least <= value <= MAX_SIZE, name, value, f"an integer from {least} to {MAX_SIZE}")
        deep = 1 <= self.n_layer <= MAX_DEPTH
        errors.require(deep, "n_layer", self.n_layer, f"an integer from 1 to {MAX_DEPTH}")
        if errors.require(1 <= self.n_head <= MAX_SIZE, "n_head", self.n_head, "an integer of at least 1"):
            fits = self.n_embd % (2 * self.n_head) == 0 and 32 <= self.n_embd <= MAX_SIZE
            errors.require(fits, "n_embd", self.n_embd, f"an even multiple of n_head = {self.n_head}, at least 32")
        letters = mixers_by_letter()
        known = bool(self.mixer_pattern) and set(self.mixer_pattern) <= set(letters)
        names = ", ".join(f"{letter} ({mixer.name})" for letter, mixer in letters.items())
        errors.require(known, "mixer_pattern", self.mixer_pattern, f"one or more of {names}")
        known = bool(self.window_pattern) and set(self.window_pattern) <= set("SL")
        errors.require(known, "window_pattern", self.window_pattern, "one or more of S (short), L (full)")
        for name in ("bandwidth_init", "logit_cap", "rotary_base"):
            value = getattr(self, name)
            optional = name != "logit_cap" and value is None
            errors.require(optional or 0 < value < float("inf"), name, value, "a finite number above 0")
        self._check_options([mixer for letter, mixer in letters.items() if letter in self.mixer_pattern], errors)
        errors.raise_if_any()

    def _check_options(self, mixers: list[type[MixerSpec]], errors: Errors) -> None:
        declared, sound = mixer_options(), self.n_head >= 1
        for name, value in self.options.items():
            takers = declared.get(name, {})
            if any(mixer.name in takers for mixer in mixers):
                sound &= next(iter(takers.values())).check(name, value, errors)
            else:
                expected = f"a mixer that has it: {', '.join(takers)}" if takers else "an option that a mixer has"
                errors.require(value in UNSET_VALUES, name, value, expected)
        for mixer in mixers if sound else ():
            for name, option in mixer.options.items():
                most, value = getattr(self, option.at_most, None) if option.at_most else None, self.option(name, mixer)
                fits = most is None or value is None or value <= most
                errors.require(fits, name, value, f"at most the configuration's {option.at_most}, {most}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "GPTConfig":
        """The configuration of `to_dict`. Options that no longer exist are ignored if they were off."""
        own, declared = {f.name for f in fields(cls)} - {"options"}, mixer_options()
        errors, hints = Errors(), get_type_hints(cls)
        for name in sorted(own & values.keys()):
            kinds = get_args(hints[name]) or (hints[name],)
            fits = type(values[name]) in kinds or (float in kinds and type(values[name]) is int)
            errors.require(fits, name, values[name], " or ".join(kind.__name__ for kind in kinds))
        errors.raise_if_any()
        options = {name: value for name, value in values.items() if name not in own and value is not None}
        options = {name: value for name, value in options.items() if name in declared or value not in UNSET_VALUES}
        for name, value in options.items():
            if isinstance(value, str) and any(option.kind is bool for option in declared.get(name, {}).values()):
                options[name] = LEGACY_OPTION_VALUES.get(value, value)
        return cls(**{name: value for name, value in values.items() if name in own}, options=options)

    @classmethod
    def from_depth(
        cls,
        depth: int,
        attention: str = "gaussian",
        *,
        aspect_ratio: int = ASPECT_RATIO,
        head_dim: int = HEAD_DIM,
        **changes: Any,
    ) -> "GPTConfig":
        """The configuration of `depth` layers: C = aspect_ratio · depth, rounded up to whole heads of `head_dim`.

        `attention` is a mixer's name, or a pattern such as "GGGD"; `changes` any other field, or option of a mixer.
        """
        errors = Errors()
        known = errors.require(1 <= depth <= MAX_DEPTH, "depth", depth, f"an integer from 1 to {MAX_DEPTH}")
        known &= errors.require(aspect_ratio >= 1, "aspect_ratio", aspect_ratio, "an integer of at least 1")
        even = head_dim >= 2 and head_dim % 2 == 0  # rotary positions turn pairs of features
        known &= errors.require(even, "head_dim", head_dim, "an even integer of at least 2")
        pattern = errors.capture(lambda: mixer_pattern(attention)) or next(iter(mixers_by_letter()))
        shape = {}
        if known:
            n_head = -(-depth * aspect_ratio // head_dim)
            shape = {"n_layer": depth, "n_head": n_head, "n_embd": n_head * head_dim}
        config = errors.capture(lambda: cls.from_dict({**shape, "mixer_pattern": pattern, **changes}))
        errors.raise_if_any()
        return config

    def option(self, name: str, mixer: type[MixerSpec]) -> Any:
        """The value of an option for layers of `mixer`: as set, or the mixer's default."""
        value = self.options.get(name)
        return mixer.options[name].default if value is None else value

    @property
    def snapshot(self) -> Snapshot:
        """The parts of the network, by its name."""
        return SNAPSHOTS[self.network]

    @property
    def variant(self) -> str:
        """Suffix that names a non-default network, for display."""
        return "" if self.network == "february" else f", network {self.network}"

    @property
    def rope_theta(self) -> float:
        """The base of the rotary frequencies: as set, or the network's."""
        return self.snapshot.rotary_base if self.rotary_base is None else self.rotary_base

    @property
    def has_smear(self) -> bool:
        """True if the network has a smear: as set, or if the network or a mixer of its pattern has one by default."""
        wanted = self.snapshot.gated_smear or any(mixer.has_smear for mixer in self.mixers())
        return wanted if self.smear is None else self.smear

    @property
    def head_dim(self) -> int:
        """D, features per head."""
        return self.n_embd // self.n_head

    def mixers(self) -> list[type[MixerSpec]]:
        """The mixer class of each layer."""
        letters = mixers_by_letter()
        return [letters[self.mixer_pattern[i % len(self.mixer_pattern)]] for i in range(self.n_layer)]

    def windows(self) -> list[int | None]:
        """The window of each layer in positions (see `attention.attention_mask`), None for the whole context."""
        pattern, T = self.window_pattern, self.sequence_len
        # A quarter, rounded up to whole tiles of 128 keys, of which a kernel computes all or none.
        short = -(-T // 512) * 128 if self.snapshot.quarter_windows else T // 2
        windows = [short if pattern[i % len(pattern)] == "S" else None for i in range(self.n_layer)]
        windows[-1] = None
        return windows

    def to_dict(self) -> dict:
        """All fields and all options that are set, in one dictionary for YAML or JSON."""
        values = asdict(self) | {"rotary_base": self.rope_theta}
        options = values.pop("options")
        return values | options
