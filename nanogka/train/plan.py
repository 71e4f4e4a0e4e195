"""The plan of a training: every decision, made from the settings and checked before anything is created.

A plan is complete when it is made and never changes. Where a later step decides better, such as the largest batch that
fits the memory, `dataclasses.replace` makes another plan.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from nanogka.checkpoint import list_checkpoints
from nanogka.common.cli import flag, flag_name, flags_of
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors, differences
from nanogka.common.files import base_dir
from nanogka.common.runtime import Hardware, can_compile, describe_hardware, pick_device, pick_dtype
from nanogka.model import GPTConfig, ModelCosts, mixer_options, model_costs
from nanogka.runs import CONFIG, model_config, read_config
from nanogka.tokenizer import Tokenizer
from nanogka.train.async_checkpoint import CheckpointSettings
from nanogka.train.budget import TrainingBudget
from nanogka.train.snapshots import LearningRates
from nanogka.train.trackers import TRACKERS, import_tracker

MAX_DEVICE_ROWS = 32
# Compiling takes about a minute on a CPU; below this much work it does not pay.
COMPILE_WORTH_FLOPS = 2e13
# Computed from a run and kept in its folder.
RESULTS = ("evaluation.json", "chat_evaluation.json", "report.md", "report.html")
RESULTS += ("plots", "visualization", "maps", "profile")
# Fingerprints of data in config.yaml: the flag that names the data, and what a difference means.
DATA_FINGERPRINTS = {
    "corpus": ("data", "other text, or its files have changed"),
    "footers": ("data", "the same files with other contents"),
    "tokenizer": ("tokenizer", "another vocabulary"),
}
ADVICE = "--overwrite deletes it, --run NAME makes another"


# ---- settings ----


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
        plain = self.run == self.run.strip() and not self.run.startswith((".", "-")) and not set(self.run) & set("/\\")
        plain = plain and self.run.isprintable() and len(self.run) < 200
        errors.require(plain, "run", self.run, "a plain folder name")
        errors.capture(lambda: import_tracker(self.tracker))


@dataclass(frozen=True)
class BatchSettings:
    """Batches of one shape."""

    total_batch_size: int | None = flag(None, "tokens per step over all devices", ge=1, affects="losses")
    # A compiled model is compiled again for each new shape.
    compile: str = flag(
        "auto", "torch.compile: auto does where the run is long enough", ("auto", "on", "off"), affects="speed"
    )
    fp8: bool = flag(
        False,
        "multiply by the matrices of the blocks in 8-bit floating point, on an Ada, Hopper or Blackwell GPU",
        affects="losses",
    )


@dataclass(frozen=True)
class RunSettings(LearningRates, CheckpointSettings, FolderSettings):
    """Training."""

    num_iterations: int | None = flag(None, "number of steps", ge=1, affects="losses")
    device_batch_size: int | None = flag(
        None, "rows per device and micro-batch (default: up to 32)", ge=1, affects="speed"
    )
    seed: int = flag(1, "seed of the order of the data", ge=0, affects="losses")
    eval_every: int = flag(250, "steps between validations; 0: only at the end", ge=0, affects="output")
    skip_bad_batches: int = flag(
        0, "number of batches with nan or inf in loss or gradient to skip in the run", ge=0, affects="output"
    )
    profile: int = flag(
        0, "number of steps, after the first few, to trace into the run's folder; 0: none", ge=0, affects="output"
    )
    device: str = flag("auto", "device to compute on: auto, cpu, cuda, cuda:N or mps", affects="speed")
    dtype: str = flag(
        "auto", "dtype of activations and matrix products", ("auto", "float32", "bfloat16"), affects="losses"
    )
    allow_torch: bool = flag(
        False,
        "train on a GPU although one of our kernels does not work there; torch then computes it more slowly",
        affects="speed",
    )
    activation_checkpointing: bool = flag(
        False, "keep only each block's input for the backward pass: less memory, more compute", affects="speed"
    )

    def to_dict(self) -> dict:
        return asdict(self)


S = TypeVar("S", bound=RunSettings)


def compared_on_resume(settings: type) -> set[str]:
    """Names of the settings in which a resumed run must equal the one that it continues."""
    return {name for name, one in flags_of(settings).items() if one.affects == "losses" and one.through is None}


# ---- the plan ----


@dataclass(frozen=True)
class MicroBatch:
    """The division of a step's rows on each device: `rows` at a time, of `rows_per_step`, with `row_len` positions."""

    rows: int
    rows_per_step: int
    row_len: int

    @property
    def accumulation(self) -> int:
        """Micro-batches per step."""
        return self.rows_per_step // self.rows

    def smaller(self) -> "MicroBatch":
        """Half of the rows, or the next smaller number that divides those of a step."""
        rows = max(n for n in range(1, self.rows // 2 + 1) if self.rows_per_step % n == 0)
        return MicroBatch(rows, self.rows_per_step, self.row_len)


@dataclass(frozen=True)
class Machine:
    """The devices that a run computes on, and how."""

    ranks: Ranks
    device: torch.device
    dtype: torch.dtype
    hardware: Hardware
    compile: bool
    compile_reason: str
    fp8: bool  # products of the blocks' matrices in 8 bits

    @property
    def peak_flops(self) -> float:
        """FLOP/s that all devices together can reach; 0 if unknown."""
        return (self.hardware.peak_flops or 0) * self.ranks.world_size


@dataclass(frozen=True, kw_only=True)
class About:
    """Description of what a run learns from, for config.yaml and for people."""

    kind: str = "base"  # or chat, as config.yaml names it
    monitor: str = "val_bpb"  # the evaluation that decides which checkpoints are best; lower is better
    facts: dict  # for config.yaml: the fingerprints of tokenizer and data, and what a chat run started from
    data: str  # what it learns from, for people
    horizon: str = ""  # its length, for people, if the budget does not say it
    notes: tuple[str, ...] = ()  # further lines for people
    fixed_tokens: bool = True  # False: the model's replies decide how many tokens pass in a step


@dataclass(frozen=True)
class TrainPlan(Generic[S]):
    """A training of a language model that can start, be it pretraining, fine-tuning or reinforcement learning."""

    settings: S  # every flag that decides the losses is filled in; `about.facts` says which data they mean
    config: GPTConfig
    tokenizer: Tokenizer | None  # None in a dry run without one
    budget: TrainingBudget
    batch: MicroBatch
    folder: Path
    machine: Machine
    about: About

    @property
    def own_tokenizer(self) -> Tokenizer:
        """The tokenizer of a run that trains."""
        assert self.tokenizer is not None, "only a dry run has no tokenizer"
        return self.tokenizer

    @property
    def num_iterations(self) -> int:
        """Steps of the whole run."""
        return self.budget.num_iterations

    @cached_property
    def costs(self) -> ModelCosts:
        """Parameters, FLOPs and cache of the model."""
        return model_costs(self.config)

    def amounts(self, tokens: int) -> dict[str, int]:
        """Amounts that training on so many tokens takes, by their names in metrics.jsonl."""
        return {"tokens": tokens, "flops": tokens * self.costs.flops_per_token}


def make_plan(
    settings: S,
    config: GPTConfig,
    tokenizer: Tokenizer | None,
    budget: TrainingBudget,
    row_len: int,
    name: str,
    ranks: Ranks,
    about: About,
    compile: str | None,
    fp8: bool = False,
) -> TrainPlan[S]:
    """Plan the run called `name` on this machine. `compile` is the flag's value; None: batches have many shapes.

    Raises ValueError at the first setting that does not fit, or if its folder holds a run that it cannot continue.
    """
    device = ranks.device(pick_device(settings.device))
    dtype = pick_dtype(settings.dtype, device)
    # A resumed run is compared with what decides the losses, however it was asked for: write it all down.
    settings = replace(settings.for_network(config.network), dtype=str(dtype).removeprefix("torch."))
    batch = plan_batch(settings.device_batch_size, budget, row_len, ranks.world_size)
    about = replace(about, facts={"tokenizer": tokenizer and tokenizer.fingerprint, **about.facts})
    folder = base_dir() / "runs" / name
    check_folder(folder, settings, config, about.facts)
    compiled = decide_compile(compile, device, budget, probe=not settings.dry_run)
    machine = Machine(ranks, device, dtype, describe_hardware(device), *compiled, fp8)
    return TrainPlan(settings, config, tokenizer, budget, batch, folder, machine, about)


def plan_batch(rows: int | None, budget: TrainingBudget, row_len: int, world_size: int) -> MicroBatch:
    """The micro-batch: of so many rows, or of the most up to 32 that divide those of a step on each device."""
    total = budget.total_batch_size
    if total % (row_len * world_size):
        raise ValueError(
            f"total_batch_size: got {total:,} tokens, expected a multiple of sequence length × devices = "
            f"{row_len} × {world_size} = {row_len * world_size:,}"
        )
    rows_per_step = total // (row_len * world_size)
    if rows is None:
        rows = max(n for n in range(1, min(MAX_DEVICE_ROWS, rows_per_step) + 1) if rows_per_step % n == 0)
    if rows_per_step % rows:
        raise ValueError(
            f"device_batch_size: got {rows}, expected a divisor of {rows_per_step}, the rows of a step "
            f"({total:,} tokens) on each device"
        )
    return MicroBatch(rows, rows_per_step, row_len)


def decide_compile(
    wanted: str | None, device: torch.device, budget: TrainingBudget, probe: bool = True
) -> tuple[bool, str]:
    """Decide whether to compile, and say why. Raises ValueError for `on` where compiling is impossible.

    Without a `probe` compiling is taken to be possible.
    """
    if wanted is None:
        return False, "batches have many shapes"
    if wanted == "off":
        return False, "--compile off"
    if wanted == "auto" and device.type == "cpu" and budget.flops < COMPILE_WORTH_FLOPS:
        return False, "the run is too short for it to pay"
    if not probe:
        return True, "not tried in a dry run"
    able, reason = can_compile(device)
    if wanted == "on" and not able:
        raise ValueError(f"compile: got 'on', but {reason}")
    return able, reason


# ---- the folder, before anything is built ----


def check_folder(folder: Path, settings: RunSettings, config: GPTConfig, facts: Mapping[str, object]) -> list[str]:
    """Return the names of checkpoints and results in a folder from which to resume; empty for a fresh start.

    Raises ValueError where checkpoints or results would be lost without `--overwrite`, where nothing in the folder can
    be used, and where the folder has a run with other settings. No checkpoint is read.
    """
    if settings.dry_run or settings.overwrite:
        return []
    try:
        found = [path.name for path in list_checkpoints(folder / "checkpoints")]
        found += [name for name in RESULTS if (folder / name).exists()]
        configured = (folder / CONFIG).exists()
    except OSError as error:
        raise ValueError(f"run: {folder} cannot be read ({error}); it was not changed") from error
    if found and not configured:
        raise ValueError(f"run: {folder} has no {CONFIG}, but holds {', '.join(found)}; {ADVICE}")
    if found and settings.resume == "never":
        raise ValueError(f"run: {folder} holds a run already; --resume auto continues it, {ADVICE}")
    if configured and settings.resume == "auto":
        refuse_differences(folder, settings, config, facts)
    return found


def refuse_differences(folder: Path, settings: RunSettings, config: GPTConfig, facts: Mapping[str, Any]) -> None:
    """Raise ValueError naming every way in which a run differs from the one in its folder."""
    saved = read_config(folder)
    now, before, errors = settings.to_dict(), saved["settings"], Errors()
    compared = compared_on_resume(type(settings))
    known = {*before, *mixer_options()}  # a mixer's option that is not in an old file was off
    for name, (here, there) in differences(now, before).items():
        if name in compared and name in known:
            errors.lines.append(f"{flag_name(name)}: got {here!r}, expected {there!r}, as {folder} has")
    other_data = set()
    for name, (given, difference) in DATA_FINGERPRINTS.items():
        here, there = facts.get(name), (saved.get("run") or {}).get(name)
        if here and there and here != there and given in now and given not in other_data:
            other_data.add(given)
            errors.lines.append(
                f"--{given}: got {now[given]!r} ({here[:12]}…), expected what {folder} was trained with, "
                f"{before.get(given)!r} ({there[:12]}…): it is {difference}"
            )
    # An old config file may lack options that are newer, so it is read as a configuration first.
    model, other = config.to_dict(), model_config(saved, folder).to_dict()
    for name, (here, there) in differences(dict.fromkeys(other) | model, other).items():
        errors.lines.append(f"model {name}: got {here!r}, expected {there!r}, as {folder} has")
    errors.raise_if_any()
