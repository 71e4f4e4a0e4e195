"""Every setting of a training run, its flag and its help, and the checks that need nothing but the settings."""

from dataclasses import Field, asdict, dataclass, fields, replace

from nanogka.cli import flag, flag_name, flags
from nanogka.data.fineweb import TRAINING_SHARDS
from nanogka.distributed import TIMEOUT
from nanogka.model import GPTConfig, mixer_options
from nanogka.problems import Problems
from nanogka.train.optimizer import Rates
from nanogka.train.trackers import TRACKERS


@dataclass(frozen=True)
class LoopSettings:
    """Settings of every run of the loop, whatever it learns from. None means: computed from the others."""

    run: str = flag("", "name of the run's folder")
    num_iterations: int | None = flag(None, "steps")
    total_batch_size: int | None = flag(None, "tokens per step over all devices")
    device_batch_size: int | None = flag(None, "rows per device and micro-batch (default: up to 32)")

    matrix_lr: float = flag(Rates.matrix, "Muon's learning rate")
    embedding_lr: float = flag(Rates.embedding, "AdamW's for embeddings, at width 768")
    unembedding_lr: float = flag(Rates.unembedding, "AdamW's for lm_head, at width 768")
    scalar_lr: float = flag(Rates.scalar, "AdamW's for x0_lambdas (μ); resid_lambdas (λ) take a hundredth")
    vector_lr: float = flag(Rates.vector, "AdamW's for the smear, convolutions and other vectors")
    bandwidth_lr: float = flag(Rates.bandwidth, "AdamW's for log σ")
    weight_decay: float = flag(
        Rates.weight_decay, "of the matrices at depth 12, × (12 / depth)² at others; falls to 0 over the run"
    )
    lr_scale: float | None = flag(None, "factor of all rates (default: √(tokens per step / 2^19))")
    warmup_ratio: float = flag(0.0, "fraction of the steps in which the rates rise")
    warmdown_ratio: float = flag(0.5, "fraction of the steps in which they fall")
    final_lr_frac: float = flag(0.0, "the factor they fall to")

    eval_every: int = flag(250, "steps between validations; 0: only at the end")
    save_every: int = flag(500, "steps between checkpoints; 0: only at the end")
    keep: int = flag(2, "how many of the newest checkpoints to keep")
    keep_best: int = flag(1, "how many to keep besides, those with the best validation; 0: none")
    resume: str = flag("never", "`auto` resumes from the newest sound checkpoint of the run", ("auto", "never"))
    overwrite: bool = flag(False, "start over in a folder that holds a run already, deleting that run")
    dry_run: bool = flag(False, "only say what the run would be and cost")
    seed: int = flag(1, "of the order of what it learns from")

    skip_bad_batches: int = flag(0, "how many batches with nan or inf in loss or gradient to skip in the run")

    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "of activations and products", ("auto", "float32", "bfloat16"))
    compile: str = flag("auto", "torch.compile: auto does where the run is long enough", ("auto", "on", "off"))
    activation_checkpointing: bool = flag(
        False, "keep only each block's input for the backward pass: less memory, more compute"
    )
    rank_timeout: float = flag(TIMEOUT, "seconds after which a collective that not all ranks have joined fails")
    tracker: str = flag("none", "service that metrics go to besides", ("none", *TRACKERS))

    @property
    def rates(self) -> Rates:
        """The optimisers' part of the settings."""
        return Rates(
            matrix=self.matrix_lr,
            embedding=self.embedding_lr,
            unembedding=self.unembedding_lr,
            scalar=self.scalar_lr,
            vector=self.vector_lr,
            bandwidth=self.bandwidth_lr,
            weight_decay=self.weight_decay,
            scale=self.lr_scale,
        )

    def minima(self) -> dict[str, int]:
        """The smallest value of each setting that counts something."""
        optional = ("num_iterations", "total_batch_size", "device_batch_size")
        given = {name: 1 for name in optional if getattr(self, name) is not None}
        return {"keep": 1, "keep_best": 0, "eval_every": 0, "save_every": 0, "seed": 0, "skip_bad_batches": 0} | given

    def check(self, problems: Problems) -> None:
        """Record every setting that is out of range by itself."""
        for name, least in self.minima().items():
            value = getattr(self, name)
            problems.check(value >= least, flag_name(name), value, f"an integer of at least {least}")
        rates = [f.name for f in fields(self) if f.name.endswith("_lr")]
        for name in (*rates, "weight_decay", "lr_scale"):
            value = getattr(self, name)
            problems.check(value is None or 0 <= value < float("inf"), flag_name(name), value, "a number of at least 0")
        patient = 1 <= self.rank_timeout < float("inf")
        problems.check(patient, "--rank-timeout", self.rank_timeout, "a number of at least 1")
        for name in ("warmup_ratio", "warmdown_ratio", "final_lr_frac"):
            value = getattr(self, name)
            problems.check(0 <= value <= 1, flag_name(name), value, "a number from 0 to 1")
        plain = self.run == self.run.strip() and not self.run.startswith(".") and not set(self.run) & set("/\\\0")
        problems.check(plain, "--run", self.run, "a plain folder name")

    def resolved(self, num_iterations: int, total_batch_size: int, dtype: str) -> "LoopSettings":
        """These settings with everything that decides the losses filled in, however it was asked for."""
        return replace(self, num_iterations=num_iterations, total_batch_size=total_batch_size, dtype=dtype)

    def to_dict(self) -> dict:
        """All fields, for YAML."""
        return asdict(self)


def mixer_flags() -> dict[str, tuple[type, Field]]:
    """A flag for each option that a registered mixer declares; None leaves it to the mixer."""
    declared = {}
    for name, mixers in mixer_options().items():
        option = next(iter(mixers.values()))
        defaults = [f"{mixer} {str(one.default).lower()}" for mixer, one in mixers.items() if one.default is not None]
        text = f"{option.help} (default: {', '.join(defaults)})" if defaults else option.help
        declared[name] = option.kind, flag(None, text, option.choices, least=option.least, most=option.most)
    return declared


@dataclass(frozen=True)
class ModelSettings:
    """Settings of a model. None means the mixer's own choice."""

    depth: int = flag(20, "number of layers; width, heads, horizon and batch follow from it")
    attention: str = flag("gaussian", "a mixer's name, or a pattern of mixer letters tiled over the layers (GGGD)")
    sequence_len: int = flag(2048, "context in tokens")
    window_pattern: str = flag("SSSL", "tiled over the layers: S sees half the context, L all; the last is always L")
    bandwidth_init: float | None = flag(None, "first value of every σ (default: head size ^ ¼)")
    smear: bool | None = flag(None, "each embedding takes in a learned share of the one before")
    options: dict = flags(mixer_flags)

    def config(self, vocab_size: int) -> GPTConfig:
        """The model's configuration. Raises ValueError naming every setting that is out of range."""
        shape = {name: getattr(self, name) for name in ("sequence_len", "window_pattern", "bandwidth_init", "smear")}
        return GPTConfig.from_depth(self.depth, self.attention, vocab_size=vocab_size, **shape, **self.options)

    def to_dict(self) -> dict:
        """All settings and options of mixers in one mapping, for YAML."""
        values = asdict(self)
        given = values.pop("options")
        return values | dict.fromkeys(mixer_options()) | given


@dataclass(frozen=True)
class TrainSettings(ModelSettings, LoopSettings):
    """Settings of `scripts.base_train`. One dial, `depth`, sets the rest; None means: computed from the others."""

    data: str = flag(
        "embedded", "a folder of parquet shards, of .txt or .jsonl files, `embedded`, or `fineweb-edu` (fetches it)"
    )
    shards: int | None = flag(None, "training shards of `fineweb-edu` (default: as many as the horizon needs)")
    tokenizer: str = flag("default", "a tokenizer's name or folder (scripts.tok_train makes one)")
    packing: str = flag("bestfit", "how documents fill rows; see docs/data.md", ("bestfit", "bos-bestfit-crop"))
    run: str = flag("", "name of the run's folder (default: d<depth>-<attention>)")

    num_iterations: int | None = flag(None, "horizon: steps")
    target_flops: float | None = flag(None, "horizon: training FLOPs")
    target_param_data_ratio: float | None = flag(
        None, "horizon: tokens per (matrix + lm_head) parameter (default: the mixer's)"
    )
    total_batch_size: int | None = flag(None, "tokens per step over all devices (default: from the horizon)")
    seed: int = flag(1, "of the initial weights and of the order of the documents")

    eval_tokens: int = flag(10_485_760, "validation tokens, at most those there are")
    core_every: int = flag(0, "steps between evaluations of CORE, and at the start and end; 0: none")
    core_max_per_task: int = flag(500, "items of each of its tasks, at most")
    sample_every: int = flag(0, "steps between continuations of a few prompts, and at the end; 0: none")
    eval_bundle: str = flag("auto", "of CORE: a folder or .zip in nanochat's layout, or as scripts.base_eval takes")

    def minima(self) -> dict[str, int]:
        # CORE: ten examples and an item
        given = {"shards": 1} if self.shards is not None else {}
        own = {"eval_tokens": 1, "core_every": 0, "core_max_per_task": 11, "sample_every": 0}
        return super().minima() | own | given

    def check(self, problems: Problems) -> None:
        super().check(problems)
        for name in ("target_flops", "target_param_data_ratio"):
            value = getattr(self, name)
            problems.check(value is None or value > 0, flag_name(name), value, "a number above 0")
        few = self.shards is None or self.shards <= TRAINING_SHARDS
        problems.check(few, "--shards", self.shards, f"at most {TRAINING_SHARDS}, which there are")
        horizons = [n for n in ("num_iterations", "target_flops", "target_param_data_ratio") if getattr(self, n)]
        together = " and ".join(map(flag_name, horizons))
        problems.check(len(horizons) <= 1, together, "all of them", "one horizon")

    def resolved(self, num_iterations: int, total_batch_size: int, dtype: str) -> "TrainSettings":
        settings = super().resolved(num_iterations, total_batch_size, dtype)
        return replace(settings, target_flops=None, target_param_data_ratio=None)


# Settings that a resumed run may change, because they do not touch its losses or are compared in another form: the
# fingerprints of corpus and tokenizer, the number of steps that comes of the epochs.
FREE_ON_RESUME = {
    *("run", "resume", "overwrite", "dry_run", "tracker"),
    *("eval_every", "eval_tokens", "core_every", "core_max_per_task", "eval_bundle", "sample_every"),
    *("save_every", "keep", "keep_best"),
    "skip_bad_batches",
    *("device", "compile", "device_batch_size", "activation_checkpointing", "rank_timeout"),
    *("data", "shards", "tokenizer", "epochs", "max_conversations", "bad_conversations"),
}
