"""The settings of a model and of pretraining. Those that every training has are in `plan`."""

from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass
from typing import Any

from nanogka.common.cli import flag, flag_name, flags, flags_of
from nanogka.common.errors import Errors
from nanogka.data.hub_corpora import HUB_CORPORA
from nanogka.data.packing import PACKINGS
from nanogka.model import MIXERS, SNAPSHOTS, GPTConfig, mixer_options
from nanogka.model.config import ASPECT_RATIO, HEAD_DIM
from nanogka.train.plan import BatchSettings, RunSettings
from nanogka.train.snapshots import missing_defaults

_NAMES = ", ".join(f"{mixer.name} ({mixer.letter})" for mixer in MIXERS.values())


def complete_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a pretraining run by name, as this version would record them.

    An older run that lacks a setting had today's default. A setting that is gone is left out where it was off.
    """
    flags = flags_of(TrainSettings)
    known: dict[str, Any] = {**{name: one.default for name, one in flags.items()}, **settings}
    known |= missing_defaults(known, known["network"])
    return {name: value for name, value in known.items() if name in flags or value}


def mixer_flags() -> dict[str, tuple[type, Field]]:
    """A flag for each option that a registered mixer declares; None leaves it to the mixer."""
    declared = {}
    for name, mixers in mixer_options().items():
        option = next(iter(mixers.values()))
        defaults = [f"{mixer} {str(one.default).lower()}" for mixer, one in mixers.items() if one.default is not None]
        text = f"{option.help} (default: {', '.join(defaults)})" if defaults else option.help
        declared[name] = option.kind, flag(None, text, option.choices, ge=option.ge, le=option.le, affects="losses")
    return declared


@dataclass(frozen=True)
class ModelSettings:
    """Model. None means the mixer's own choice."""

    depth: int = flag(20, "number of layers; width, heads, horizon and batch follow from it", affects="losses")
    aspect_ratio: int = flag(
        ASPECT_RATIO, "the width is this times the depth, rounded up to whole heads", affects="losses"
    )
    head_dim: int = flag(HEAD_DIM, "channels per head", affects="losses")
    attention: str = flag(
        "gaussian", f"token mixer: {_NAMES}; or a pattern of letters tiled over the layers (GGGD)", affects="losses"
    )
    sequence_len: int = flag(2048, "context in tokens", affects="losses")
    network: str = flag(
        "february", "nanochat's network and optimizer of February or July 2026", tuple(SNAPSHOTS), affects="losses"
    )
    window_pattern: str = flag(
        "SSSL",
        "tiled over the layers: S sees half (july: a quarter) of the context, L all; the last is always L",
        affects="losses",
    )
    bandwidth_init: float | None = flag(None, "initial σ of every head (default: head size ^ ¼)", affects="losses")
    smear: bool | None = flag(
        None,
        "mix a learned share of the previous token's embedding into each embedding (default: the mixer's; july)",
        affects="losses",
    )
    options: dict = flags(mixer_flags)

    def config(self, vocab_size: int) -> GPTConfig:
        """The model's configuration. Raises ValueError naming every setting that is out of range."""
        names = ("aspect_ratio", "head_dim", "sequence_len", "window_pattern", "bandwidth_init", "smear", "network")
        shape = {name: getattr(self, name) for name in names}
        return GPTConfig.from_depth(self.depth, self.attention, vocab_size=vocab_size, **shape, **self.options)

    def to_dict(self) -> dict:
        """All settings and options of mixers in one mapping, for YAML."""
        values = asdict(self)
        given = values.pop("options")
        return values | dict.fromkeys(mixer_options()) | given


@dataclass(frozen=True)
class TrainSettings(ModelSettings, BatchSettings, RunSettings):
    """Data, horizon, evaluation. One dial, `depth`, sets the rest; None means: computed from the others."""

    data: str = flag(
        "embedded",
        f"embedded, docstrings, a folder of parquet shards or of text, or {' or '.join(HUB_CORPORA)} (fetched)",
        affects="losses",
        through="corpus",
    )
    shards: int | None = flag(
        None,
        "training shards to use of a corpus that is fetched (default: as many as the horizon needs)",
        ge=1,
        affects="losses",
        through="corpus",
    )
    tokenizer: str = flag(
        "default", "a tokenizer's name or folder (scripts.tok_train makes one)", affects="losses", through="tokenizer"
    )
    packing: str = flag("bestfit", "how documents fill rows; see docs/data.md", PACKINGS, affects="losses")
    run: str = flag("", "name of the run's folder (default: d<depth>-<attention>)", affects="output")

    num_iterations: int | None = flag(None, "horizon: number of steps", ge=1, affects="losses")
    target_flops: float | None = flag(None, "horizon: training FLOPs", gt=0, affects="losses", through="num_iterations")
    target_param_data_ratio: float | None = flag(
        None,
        "horizon: tokens per (matrix + lm_head) parameter (default: the mixer's)",
        gt=0,
        affects="losses",
        through="num_iterations",
    )
    total_batch_size: int | None = flag(
        None, "tokens per step over all devices (default: from the horizon)", ge=1, affects="losses"
    )
    seed: int = flag(1, "seed of the initial weights and of the order of the documents", ge=0, affects="losses")

    eval_tokens: int = flag(10_485_760, "maximum number of validation tokens to evaluate", ge=1, affects="output")
    core_every: int = flag(
        0, "steps between evaluations of CORE, also at start and end; 0: none", ge=0, affects="output"
    )
    core_max_per_task: int = flag(
        500,
        "maximum number of items of each CORE task; at least ten examples and one to answer",
        ge=11,
        affects="output",
    )
    sample_every: int = flag(
        0, "steps between continuations of a few prompts, also at the end; 0: none", ge=0, affects="output"
    )
    eval_bundle: str = flag(
        "auto",
        "source of the CORE tasks: a folder or .zip, as for --eval-bundle of scripts.base_eval",
        affects="output",
    )

    def check(self, errors: Errors) -> None:
        super().check(errors)
        horizons = [n for n in ("num_iterations", "target_flops", "target_param_data_ratio") if getattr(self, n)]
        together = " and ".join(map(flag_name, horizons))
        errors.require(len(horizons) <= 1, together, "all of them", "one horizon")
        if self.shards is not None:
            fetched = " or ".join(HUB_CORPORA)
            errors.require(self.data in HUB_CORPORA, "--shards", self.shards, f"--data {fetched} with it")
