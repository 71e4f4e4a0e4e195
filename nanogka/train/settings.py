"""Every setting of a training run, its flag and its help, and the checks that need nothing but the settings."""

from dataclasses import Field, asdict, dataclass
from typing import Any

from nanogka.common.cli import flag, flag_name, flags, flags_of
from nanogka.common.distributed import TIMEOUT
from nanogka.common.errors import Errors
from nanogka.data.hub_corpora import HUB_CORPORA
from nanogka.model import MIXERS, SNAPSHOTS, GPTConfig, mixer_options
from nanogka.train.optimizer import Schedule
from nanogka.train.snapshots import FEBRUARY, OPTIMIZER_SNAPSHOTS, LearningRates
from nanogka.train.trackers import TRACKERS, import_tracker

_NAMES = ", ".join(f"{mixer.name} ({mixer.letter})" for mixer in MIXERS.values())


def compared_on_resume(settings: type) -> set[str]:
    """Names of the settings in which a resumed run must equal the one that it continues."""
    return {name for name, one in flags_of(settings).items() if one.affects == "losses" and one.through is None}


def snapshot_flag(name: str, help: str, le: float | None = None) -> Any:
    """A flag whose default is the network's. It is None only until `__post_init__` of the settings."""
    defaults = ", ".join(f"{network} {snapshot.defaults[name]:g}" for network, snapshot in OPTIMIZER_SNAPSHOTS.items())
    return flag(None, f"{help} (default: {defaults})", ge=0, le=le, affects="losses")


def with_snapshot_defaults(values: dict) -> dict:
    """Return `values` of settings by name, with the network's defaults where they are None or absent."""
    own = dict(OPTIMIZER_SNAPSHOTS.get(values.get("network", ""), FEBRUARY).defaults)
    if values.get("warmup_ratio"):
        own["warmup_steps"] = 0
    return values | {name: value for name, value in own.items() if values.get(name) is None}


@dataclass(frozen=True)
class FolderSettings:
    """The run's folder."""

    run: str = flag("", "name of the run's folder", affects="output")
    resume: str = flag(
        "never", "`auto` resumes from the newest valid checkpoint of the run", ("auto", "never"), affects="output"
    )
    overwrite: bool = flag(
        False, "start over in a folder that holds a run already, deleting that run", affects="output"
    )
    dry_run: bool = flag(False, "print the plan of the run and its cost, and stop", affects="output")
    tracker: str = flag("none", "service that also receives the metrics", ("none", *TRACKERS), affects="output")

    def check(self, errors: Errors) -> None:
        """Record what is wrong with the settings beyond the bounds in their flags."""
        plain = self.run == self.run.strip() and not self.run.startswith(".") and not set(self.run) & set("/\\")
        plain = plain and self.run.isprintable() and len(self.run) < 200
        errors.require(plain, "run", self.run, "a plain folder name")
        errors.capture(lambda: import_tracker(self.tracker))


@dataclass(frozen=True)
class RunSettings(FolderSettings):
    """Checkpoints, evaluations, device."""

    eval_every: int = flag(250, "steps between validations; 0: only at the end", ge=0, affects="output")
    save_every: int = flag(500, "steps between checkpoints; 0: only at the end", ge=0, affects="output")
    keep: int = flag(2, "number of newest checkpoints to keep", ge=1, affects="output")
    keep_best: int = flag(
        1, "number of checkpoints with the best validation to keep as well; 0: none", ge=0, affects="output"
    )
    seed: int = flag(1, "seed of the order of the data", ge=0, affects="losses")
    profile: int = flag(
        0, "number of steps, after the first few, to trace into the run's folder; 0: none", ge=0, affects="output"
    )
    skip_bad_batches: int = flag(
        0, "number of batches with nan or inf in loss or gradient to skip in the run", ge=0, affects="output"
    )

    device: str = flag("auto", "device to compute on: auto, cpu, cuda, cuda:N or mps", affects="speed")
    dtype: str = flag(
        "auto", "dtype of activations and matrix products", ("auto", "float32", "bfloat16"), affects="losses"
    )
    rank_timeout: float = flag(
        TIMEOUT, "seconds after which a collective that not all ranks have joined fails", ge=1, affects="output"
    )

    def to_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class LoopSettings(RunSettings):
    """Batch, learning rates, compilation."""

    num_iterations: int | None = flag(None, "number of steps", ge=1, affects="losses")
    total_batch_size: int | None = flag(None, "tokens per step over all devices", ge=1, affects="losses")
    device_batch_size: int | None = flag(
        None, "rows per device and micro-batch (default: up to 32)", ge=1, affects="speed"
    )

    # Muon moves every singular direction of a matrix by its rate, whatever the gradient's size, so one rate fits all
    # matrices. AdamW moves every number by its rate: a table's row, which few tokens touch, may move far at each.
    matrix_lr: float = flag(LearningRates.matrix, "learning rate of matrices (Muon)", ge=0, affects="losses")
    embedding_lr: float = flag(
        LearningRates.embedding, "learning rate of embeddings (AdamW), at width 768", ge=0, affects="losses"
    )
    unembedding_lr: float = snapshot_flag("unembedding_lr", "learning rate of lm_head (AdamW), at width 768")
    scalar_lr: float = flag(
        LearningRates.scalar,
        "learning rate of x0_lambdas (μ); a hundredth for resid_lambdas (λ) (AdamW)",
        ge=0,
        affects="losses",
    )
    vector_lr: float = flag(
        LearningRates.vector,
        "learning rate of the smear, convolutions and other vectors (AdamW)",
        ge=0,
        affects="losses",
    )
    bandwidth_lr: float = flag(LearningRates.bandwidth, "learning rate of log σ (AdamW)", ge=0, affects="losses")
    weight_decay: float = snapshot_flag(
        "weight_decay", "weight decay of the matrices at depth 12, less if deeper; falls to 0 over the run"
    )
    lr_scale: float | None = flag(
        None, "factor of all learning rates (default: √(tokens per step / 2^19))", ge=0, affects="losses"
    )
    warmup_ratio: float = flag(
        0.0, "fraction of the steps in which the learning rates rise", ge=0, le=1, affects="losses"
    )
    warmup_steps: int = snapshot_flag("warmup_steps", "without --warmup-ratio: steps in which they rise")
    warmdown_ratio: float = snapshot_flag(
        "warmdown_ratio", "fraction of the steps in which the learning rates fall", le=1
    )
    final_lr_frac: float = snapshot_flag("final_lr_frac", "factor to which the learning rates fall", le=1)

    compile: str = flag(
        "auto", "torch.compile: auto does where the run is long enough", ("auto", "on", "off"), affects="speed"
    )
    allow_torch: bool = flag(
        False,
        "train on a GPU although one of our kernels does not work there; torch then computes it more slowly",
        affects="speed",
    )
    activation_checkpointing: bool = flag(
        False, "keep only each block's input for the backward pass: less memory, more compute", affects="speed"
    )

    hardware: str = flag("", "with --dry-run: the GPU whose time and price to estimate, such as h100", affects="output")
    devices: int = flag(1, "with --hardware: number of GPUs", ge=1, affects="output")
    price: float = flag(0.0, "price per device and hour, for the estimate of the cost; 0: none", ge=0, affects="output")

    def __post_init__(self) -> None:
        for name, value in with_snapshot_defaults(vars(self)).items():
            object.__setattr__(self, name, value)

    def check(self, errors: Errors) -> None:
        super().check(errors)
        errors.require(self.dry_run or not self.hardware, "hardware", self.hardware, "--dry-run with it")

    @property
    def rates(self) -> LearningRates:
        """The optimizers' part of the settings."""
        groups = ("matrix", "embedding", "unembedding", "scalar", "vector", "bandwidth")
        rates = {group: getattr(self, f"{group}_lr") for group in groups}
        return LearningRates(**rates, weight_decay=self.weight_decay, scale=self.lr_scale)

    def schedule(self, num_iterations: int, network: str) -> Schedule:
        """Return the schedule of a run with this number of steps. The network decides what no flag sets."""
        shape = self.warmup_ratio, self.warmdown_ratio, self.final_lr_frac, self.warmup_steps
        return Schedule(num_iterations, *shape, OPTIMIZER_SNAPSHOTS[network])


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
    bandwidth_init: float | None = flag(None, "first value of every σ (default: head size ^ ¼)", affects="losses")
    smear: bool | None = flag(
        None,
        "mix a learned share of the previous token's embedding into each embedding (default: the mixer's; july)",
        affects="losses",
    )
    options: dict = flags(mixer_flags)

    def config(self, vocab_size: int) -> GPTConfig:
        """The model's configuration. Raises ValueError naming every setting that is out of range."""
        names = ("sequence_len", "window_pattern", "bandwidth_init", "smear", "network")
        shape = {name: getattr(self, name) for name in names}
        return GPTConfig.from_depth(self.depth, self.attention, vocab_size=vocab_size, **shape, **self.options)

    def to_dict(self) -> dict:
        """All settings and options of mixers in one mapping, for YAML."""
        values = asdict(self)
        given = values.pop("options")
        return values | dict.fromkeys(mixer_options()) | given


@dataclass(frozen=True)
class TrainSettings(ModelSettings, LoopSettings):
    """Data, horizon, evaluation. One dial, `depth`, sets the rest; None means: computed from the others."""

    data: str = flag(
        "embedded",
        f"embedded, a folder of parquet shards or of text, or {' or '.join(HUB_CORPORA)} (fetched)",
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
    packing: str = flag(
        "bestfit", "how documents fill rows; see docs/data.md", ("bestfit", "bos-bestfit-crop"), affects="losses"
    )
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
