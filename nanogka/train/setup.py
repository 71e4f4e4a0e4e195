"""From settings to a `TextRun`: everything that a run of a language model needs, checked.

Every problem is reported at once, before anything is created.
"""

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.files import base_dir
from nanogka.common.formatting import duration, si
from nanogka.common.runtime import can_compile, describe_hardware, pick_device_and_dtype
from nanogka.data import open_corpus
from nanogka.data.corpus import FINEWEB, Corpus
from nanogka.data.fineweb import fetch_fineweb, open_fineweb, shards_needed
from nanogka.data.loader import PackingLoader, StreamSettings, merge_states, validation_batches
from nanogka.model import GPT, Accounting, GPTConfig, activation_bytes, attention_name, count
from nanogka.tokenizer import Tokenizer, tokenizer_folder
from nanogka.train.context import LossFunction, RunContext, find_entry, refuse_differences
from nanogka.train.horizon import Horizon, plan_horizon
from nanogka.train.optimizer import optimizer_state_bytes
from nanogka.train.settings import LoopSettings, TrainSettings
from nanogka.train.zero import ShardedOptimizer

MAX_DEVICE_ROWS = 32
# Compiling takes about a minute on a CPU; below this much work it does not pay.
COMPILE_WORTH_FLOPS = 2e13
ASSUMED_MFU = 0.4  # share of the hardware's peak that training is expected to reach


@dataclass(kw_only=True)
class TextRun(RunContext):
    """A run of a language model that can start: pretraining, if no subclass says otherwise."""

    settings: LoopSettings
    corpus: Corpus | None  # None in a dry run whose data would be fetched
    tokenizer: Tokenizer | None  # None in a dry run without one
    config: GPTConfig
    accounting: Accounting  # costs per token
    horizon: Horizon
    row_len: int  # positions of a row
    compile_reason: str = "nothing to compute"

    @property
    def accumulation(self) -> int:
        rows = self.horizon.total_batch_size // self.row_len
        return rows // (self.device_batch_size * self.ranks.world_size)

    def build_model(self) -> GPT:
        model = GPT(self.config, seed=self.settings.seed, compute_dtype=self.dtype).to(self.device)
        model.activation_checkpointing = self.settings.activation_checkpointing
        return model

    def build_optimizer(self, model: GPT) -> ShardedOptimizer:
        muon_dtype = torch.bfloat16 if self.dtype == torch.bfloat16 else torch.float32
        return ShardedOptimizer(model, self.settings.rates, self.horizon, muon_dtype, self.ranks)

    def build_loss(self, model: GPT) -> LossFunction:
        return torch.compile(model, dynamic=False) if self.compile else model

    def set_rates(self, optimizer: ShardedOptimizer, step: int) -> dict[str, float]:
        schedule = self.settings.schedule(self.num_iterations, self.config.network)
        return {"lr_scale": schedule.apply(optimizer.optimizers, step)}

    def loader(self, state: dict | None, step: int) -> PackingLoader:
        rows = StreamSettings("train", self.row_len, self.settings.packing, self.settings.seed)
        return PackingLoader(self.corpus, self.tokenizer, rows, self.device_batch_size, self.ranks, state)

    def merge_states(self, states: list[dict]) -> dict:
        return merge_states(states)

    def locate(self, document: int) -> str:
        return self.corpus.locate("train", document)

    def costs(self, step: int, seconds: float | None = None) -> dict[str, float]:
        tokens, flops_per_token = self.horizon.total_batch_size, self.accounting.flops_per_token
        values = {"tokens": step * tokens, "flops": step * tokens * flops_per_token}
        if seconds is None:
            return values
        return values | {"tokens_per_second": tokens / seconds, "flops_per_second": tokens * flops_per_token / seconds}

    def observe(self, model: GPT, batches: list) -> dict[str, object]:
        """Values that the mixers want logged, σ among them: per head in the layers that have them, and these layers."""
        values: dict[str, object] = {}
        for name, layers in ({"bandwidth": {}} | model.observations()).items():
            heads = [vector.tolist() for vector in layers.values()]
            every = [value for vector in heads for value in vector]
            values |= {f"{name}_min": min(every, default=None), f"{name}_max": max(every, default=None)}
            values |= {name: heads, f"{name}_layers": list(layers)}
        return values

    def summary(self, values: dict) -> str:
        flops, peak = values["flops_per_second"], self.hardware.peak_flops
        mfu = f" ({flops / (peak * self.ranks.world_size):.0%} MFU)" if peak else ""
        wait = values["data_wait"] / values["seconds"]
        waiting = f"  data wait {wait:.0%}" if wait > 0.01 else ""
        rates = f"{si(values['tokens_per_second'])} tok/s  {si(flops)}FLOP/s"
        memory = f"{values['peak_memory'] / 1e9:.1f} GB"
        return f"loss {values['smooth_loss']:.3f}  {rates}{mfu}  {memory}{waiting}"

    def model_config(self) -> dict:
        return self.config.to_dict()

    def facts(self) -> dict:
        return {
            "attention": attention_name(self.config.mixer_pattern),
            "depth": self.config.n_layer,
            "parameters": self.accounting.total_parameters,
            "flops_per_token": self.accounting.flops_per_token,
            "total_batch_size": self.horizon.total_batch_size,
            "num_iterations": self.num_iterations,
            "compiled": self.compile,
            "activation_checkpointing": self.settings.activation_checkpointing,
            "tokenizer": self.tokenizer.fingerprint,
            **self.data_facts(),
        }

    def data_facts(self) -> dict:
        return {"corpus": self.corpus.fingerprint, "footers": self.corpus.footers}

    def add_files(self, folder: Path) -> None:
        self.tokenizer.save(folder / "tokenizer")

    def settings_as_run(self) -> LoopSettings:
        found = {"device_batch_size": self.device_batch_size, "compile": "on" if self.compile else "off"}
        return replace(super().settings_as_run(), **found)

    def describe(self) -> str:
        """The run and its cost in a few lines, for people."""
        horizon, accounting = self.horizon, self.accounting
        data = self.corpus.describe() if self.corpus else f"{self.settings.data}, to be fetched"
        assumed = "" if self.tokenizer else f"; no tokenizer yet, {self.config.vocab_size:,} ids assumed"
        lines = [
            f"model      depth {self.config.n_layer}, {attention_name(self.config.mixer_pattern)}{self.config.variant},"
            f" width {self.config.n_embd}, {self.config.n_head} heads, {accounting.total_parameters:,} parameters, "
            f"{accounting.flops_per_token:.4g} FLOPs per token",
            f"horizon    {horizon.num_iterations:,} steps × {horizon.total_batch_size:,} tokens = {horizon.tokens:,} "
            f"tokens ({horizon.ratio:.2f} per parameter), {horizon.flops:.3g} FLOPs",
            f"batch      {self.ranks.world_size} device(s) × {self.accumulation} micro-batches × "
            f"{self.device_batch_size} rows × {self.row_len} tokens",
            f"data       {data}{assumed}",
            f"machine    {self.hardware.name}, {str(self.dtype).removeprefix('torch.')}, compile "
            f"{'on' if self.compile else 'off'} ({self.compile_reason})",
            f"cost       {self.describe_cost()}",
            f"folder     {self.folder}",
        ]
        return "\n".join([*lines, *self.entry.notes])

    def describe_cost(self) -> str:
        """The expected time, memory and disk of the whole run in one line."""
        weights, settings = 4 * self.accounting.total_parameters, self.settings
        with torch.device("meta"):
            state = optimizer_state_bytes(GPT(self.config))
        peak = self.hardware.peak_flops or measure_matmul(self.device, self.dtype)
        seconds = self.horizon.flops / (ASSUMED_MFU * peak * self.ranks.world_size)
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        checkpoints = settings.keep + settings.keep_best + 1  # and one that is being written
        memory = f"weights, gradients and optimizer state {_gb(2 * weights + state / self.ranks.world_size)} per device"
        if self.device.type == "cuda" and settings.compile != "off":
            positions, checkpointing = self.device_batch_size * self.row_len, settings.activation_checkpointing
            activations = activation_bytes(self.config, positions, self.dtype.itemsize, checkpointing)
            memory += f", activations about {_gb(activations)}" if activations else ""
        return (
            f"about {duration(seconds)} of training at {ASSUMED_MFU:.0%} of {peak:.2g} FLOP/s; {memory}; "
            f"checkpoints {checkpoints} × {_gb(weights + state)} on a disk with "
            f"{_gb(shutil.disk_usage(existing).free)} free"
        )


def prepare(settings: TrainSettings, ranks: Ranks, errors: Errors) -> TextRun:
    """Check the settings against the machine, the data and the run's folder; all errors are raised together."""
    settings.check(errors)
    sound = not errors.lines  # derived checks would repeat the same errors
    planned = settings.dry_run and not (tokenizer_folder(settings.tokenizer) / "tokenizer.json").is_file()
    tokenizer = None if planned else errors.capture(lambda: load_tokenizer(settings.tokenizer))
    fetched = settings.data == FINEWEB
    corpus = None if fetched else errors.capture(lambda: open_corpus(settings.data))
    vocab_size = tokenizer.vocab_size if tokenizer else GPTConfig.vocab_size
    config = errors.capture(lambda: settings.config(vocab_size))
    horizon = errors.capture(lambda: build_horizon(settings, config)) if config and sound else None
    prints = {"corpus": corpus and corpus.fingerprint, "footers": corpus and corpus.footers}
    prints["tokenizer"] = tokenizer and tokenizer.fingerprint
    folder = base_dir() / "runs" / (settings.run or f"d{settings.depth}-{settings.attention}")
    material = Material(corpus, tokenizer, config, horizon, prints, config and config.sequence_len)
    run = prepare_text(TextRun, settings, ranks, folder, material, errors)
    if corpus and tokenizer and config:
        errors.capture(lambda: check_validation(corpus, tokenizer, config.sequence_len, ranks))
    errors.raise_if_any()
    if fetched and not settings.dry_run:  # last, so that nothing is fetched for a run that cannot start
        shards = settings.shards or shards_needed(horizon.tokens)
        fetch_fineweb(shards, log=print if ranks.local_rank == 0 else lambda line: None)  # one process of each node
        run.corpus = corpus = open_fineweb(shards)
        check_validation(corpus, tokenizer, config.sequence_len, ranks)
        if run.resume_from:
            prints = {"corpus": corpus.fingerprint, "footers": corpus.footers}
            refuse_differences(run.settings, folder, run.model_config(), prints)
    return run


@dataclass(frozen=True)
class Material:
    """Data and model of a run; None for what could not be made. `fingerprints`: see `refuse_differences`."""

    corpus: Corpus | None
    tokenizer: Tokenizer | None
    config: GPTConfig | None
    horizon: Horizon | None
    fingerprints: dict[str, str | None]
    row_len: int | None  # positions of a row


def prepare_text(
    kind: Callable[..., TextRun],
    settings: LoopSettings,
    ranks: Ranks,
    folder: Path,
    material: Material,
    errors: Errors,
) -> TextRun | None:
    """The run, made by `kind`, on this machine and in its folder; None if there are errors, which are recorded."""
    horizon = material.horizon
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, errors)
    device = device and errors.capture(lambda: ranks.device(device))
    rows = entry = None
    if horizon:
        rows = errors.capture(lambda: rows_per_device(settings, horizon, material.row_len, ranks.world_size))
    if horizon and dtype:
        name = str(dtype).removeprefix("torch.")
        resolved = settings.resolved(horizon.num_iterations, horizon.total_batch_size, name)
        model = material.config.to_dict()
        entry = errors.capture(lambda: find_entry(resolved, folder, model, material.fingerprints))
    if errors.lines:
        return None
    run = kind(
        settings=resolved,
        ranks=ranks,
        device=device,
        dtype=dtype,
        hardware=describe_hardware(device),
        entry=entry,
        num_iterations=horizon.num_iterations,
        device_batch_size=rows,
        corpus=material.corpus,
        tokenizer=material.tokenizer,
        config=material.config,
        accounting=count(material.config),
        horizon=horizon,
        row_len=material.row_len,
    )
    if not settings.dry_run and not run.complete:
        decision = errors.capture(lambda: decide_compile(settings.compile, device, horizon))
        run.compile, run.compile_reason = decision or (False, "")
    return run


# ---- the parts ----


def build_horizon(settings: TrainSettings, config: GPTConfig) -> Horizon:
    """The horizon that the settings ask for."""
    names = ("num_iterations", "target_flops", "target_param_data_ratio", "total_batch_size")
    return plan_horizon(config, **{name: getattr(settings, name) for name in names})


def rows_per_device(settings: LoopSettings, horizon: Horizon, sequence_len: int, world_size: int) -> int:
    """Rows per device and micro-batch: as set, or the most up to 32 that divide the batch."""
    total = horizon.total_batch_size
    if total % (sequence_len * world_size):
        raise ValueError(
            f"--total-batch-size: got {total:,} tokens, expected a multiple of sequence length × devices = "
            f"{sequence_len} × {world_size} = {sequence_len * world_size:,}"
        )
    rows = total // (sequence_len * world_size)
    if settings.device_batch_size is None:
        return max(n for n in range(1, min(MAX_DEVICE_ROWS, rows) + 1) if rows % n == 0)
    if rows % settings.device_batch_size:
        raise ValueError(
            f"--device-batch-size: got {settings.device_batch_size}, expected a divisor of {rows}, the rows that "
            f"--total-batch-size {total:,} gives each device"
        )
    return settings.device_batch_size


def load_tokenizer(name: str) -> Tokenizer:
    """A tokenizer by name or folder."""
    folder = tokenizer_folder(name)
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(
            f"--tokenizer: got {name!r}, but there is no {folder / 'tokenizer.json'}; train one with "
            f"`python -m scripts.tok_train`"
        )
    return Tokenizer.load(folder)


def check_validation(corpus: Corpus, tokenizer: Tokenizer, sequence_len: int, ranks: Ranks) -> None:
    """Make a row of validation text: a fault in it would otherwise show at the last step."""
    try:
        next(validation_batches(corpus, tokenizer, batch_size=1, sequence_len=sequence_len, ranks=ranks))
    except ValueError as error:
        raise ValueError(str(error).replace("sequence_len:", "--sequence-len:")) from error


def decide_compile(wanted: str, device: torch.device, horizon: Horizon) -> tuple[bool, str]:
    """The decision whether to compile, with its reason. `on` where it cannot is an error."""
    if wanted == "off":
        return False, "--compile off"
    if wanted == "auto" and device.type == "cpu" and horizon.flops < COMPILE_WORTH_FLOPS:
        return False, "the run is too short for it to pay"
    able, reason = can_compile(device)
    if wanted == "on" and not able:
        raise ValueError(f"--compile: got 'on', but {reason}")
    return able, reason


def measure_matmul(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a square matrix product, the best of a few: the peak of hardware that is not in our table."""
    size = 1024
    a = torch.ones(size, size, device=device).to(dtype)
    best = math.inf
    for _ in range(6):
        began = time.perf_counter()
        (a @ a).float().sum().item()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"
