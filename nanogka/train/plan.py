"""The plan of a training: every decision, made from the settings and checked before anything is created.

A plan is complete when it is made and never changes. Where a later step decides better, such as the largest batch that
fits the memory, `dataclasses.replace` makes another plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from nanogka.checkpoint import list_checkpoints
from nanogka.common.cli import flag_name
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.files import base_dir
from nanogka.common.runtime import Hardware, can_compile, describe_hardware, pick_device, pick_dtype
from nanogka.model import GPTConfig, ModelCosts, mixer_options, model_costs
from nanogka.runs import CONFIG, model_config, read_config
from nanogka.tokenizer import Tokenizer
from nanogka.train.budget import TrainingBudget
from nanogka.train.settings import LoopSettings, compared_on_resume

S = TypeVar("S", bound=LoopSettings)

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


@dataclass(frozen=True, kw_only=True)
class TrainPlan(Generic[S]):
    """A training of a language model that can start, be it pretraining, fine-tuning or reinforcement learning."""

    kind: str  # base or chat, as config.yaml names it
    monitor: str  # the evaluation that decides which checkpoints are best; lower is better
    folder: Path
    settings: S  # everything that decides the losses is filled in
    tokenizer: Tokenizer | None  # None in a dry run without one
    config: GPTConfig
    budget: TrainingBudget
    batch: MicroBatch
    facts: dict  # for config.yaml: the fingerprints of tokenizer and data, and what a chat run started from
    data: str  # what it learns from, for people
    horizon: str  # its length, for people
    notes: tuple[str, ...] = ()  # further lines about it, for people
    fixed_tokens: bool = True  # False: the model's replies decide how many tokens pass in a step
    ranks: Ranks
    device: torch.device
    dtype: torch.dtype
    hardware: Hardware
    compile: bool
    compile_reason: str

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

    @property
    def peak_flops(self) -> float:
        """FLOP/s that all devices together can reach; 0 if unknown."""
        return (self.hardware.peak_flops or 0) * self.ranks.world_size

    def amounts(self, tokens: int) -> dict[str, int]:
        """What training on so many tokens amounts to, by the names in metrics.jsonl."""
        return {"tokens": tokens, "flops": tokens * self.costs.flops_per_token}


def make_plan(
    settings: S,
    ranks: Ranks,
    name: str,
    config: GPTConfig,
    tokenizer: Tokenizer | None,
    budget: TrainingBudget,
    row_len: int,
    *,
    facts: dict,
    data: str,
    horizon: str = "",
    notes: tuple[str, ...] = (),
    fixed_tokens: bool = True,
    kind: str = "base",
    monitor: str = "val_bpb",
) -> TrainPlan[S]:
    """Plan the run called `name` on this machine.

    Raises ValueError at the first setting that does not fit, or if its folder holds a run that it cannot continue.
    """
    device = ranks.device(pick_device(settings.device))
    dtype = pick_dtype(settings.dtype, device)
    # Everything that decides the losses, filled in however it was asked for: a resumed run is compared with it.
    decided = {"num_iterations": budget.num_iterations, "total_batch_size": budget.total_batch_size}
    settings = replace(settings, **decided, dtype=str(dtype).removeprefix("torch."))
    batch = plan_batch(settings, budget, row_len, ranks.world_size)
    folder, facts = base_dir() / "runs" / name, {"tokenizer": tokenizer and tokenizer.fingerprint, **facts}
    check_folder(folder, settings, config, facts)
    compile, reason = False, "nothing to compute"
    if not settings.dry_run:
        compile, reason = decide_compile(settings.compile, device, budget)
    return TrainPlan(
        kind=kind,
        monitor=monitor,
        folder=folder,
        settings=settings,
        tokenizer=tokenizer,
        config=config,
        budget=budget,
        batch=batch,
        facts=facts,
        data=data,
        horizon=horizon or describe_horizon(budget),
        notes=notes,
        fixed_tokens=fixed_tokens,
        ranks=ranks,
        device=device,
        dtype=dtype,
        hardware=describe_hardware(device),
        compile=compile,
        compile_reason=reason,
    )


def describe_horizon(budget: TrainingBudget) -> str:
    """The length of a run of full rows, for people."""
    return (
        f"{budget.num_iterations:,} steps × {budget.total_batch_size:,} tokens = {budget.tokens:,} "
        f"tokens ({budget.ratio:.2f} per parameter), {budget.flops:.3g} FLOPs"
    )


def plan_batch(settings: LoopSettings, budget: TrainingBudget, row_len: int, world_size: int) -> MicroBatch:
    """The micro-batch: as set, or the most rows up to 32 that divide those of a step on each device."""
    total = budget.total_batch_size
    if total % (row_len * world_size):
        raise ValueError(
            f"total_batch_size: got {total:,} tokens, expected a multiple of sequence length × devices = "
            f"{row_len} × {world_size} = {row_len * world_size:,}"
        )
    rows_per_step = total // (row_len * world_size)
    rows = settings.device_batch_size
    if rows is None:
        rows = max(n for n in range(1, min(MAX_DEVICE_ROWS, rows_per_step) + 1) if rows_per_step % n == 0)
    if rows_per_step % rows:
        raise ValueError(
            f"device_batch_size: got {rows}, expected a divisor of {rows_per_step}, the rows that "
            f"--total-batch-size {total:,} gives each device"
        )
    return MicroBatch(rows, rows_per_step, row_len)


def decide_compile(wanted: str, device: torch.device, budget: TrainingBudget) -> tuple[bool, str]:
    """Decide whether to compile, and say why. Raises ValueError for `on` where compiling is impossible."""
    if wanted == "off":
        return False, "--compile off"
    if wanted == "auto" and device.type == "cpu" and budget.flops < COMPILE_WORTH_FLOPS:
        return False, "the run is too short for it to pay"
    able, reason = can_compile(device)
    if wanted == "on" and not able:
        raise ValueError(f"compile: got 'on', but {reason}")
    return able, reason


# ---- the folder, before anything is built ----


def check_folder(folder: Path, settings: LoopSettings, config: GPTConfig, facts: Mapping[str, object]) -> list[str]:
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


def refuse_differences(folder: Path, settings: LoopSettings, config: GPTConfig, facts: Mapping[str, Any]) -> None:
    """Raise ValueError naming every way in which a run differs from the one in its folder."""
    saved = read_config(folder)
    now, before, errors = settings.to_dict(), saved["settings"], Errors()
    compared = compared_on_resume(type(settings))
    for name in now:
        known = name in before or name in mixer_options()  # a mixer's option that is not in an old file was off
        differs = known and name in compared and before.get(name) != now[name]
        errors.require(not differs, flag_name(name), now[name], f"{before.get(name)!r}, as {folder} has")
    other_data = set()
    for name, (flag, difference) in DATA_FINGERPRINTS.items():
        here, there = facts.get(name), (saved.get("run") or {}).get(name)
        if here and there and here != there and flag in now and flag not in other_data:
            other_data.add(flag)
            errors.lines.append(
                f"--{flag}: got {now[flag]!r} ({here[:12]}…), expected what {folder} was trained with, "
                f"{before.get(flag)!r} ({there[:12]}…): it is {difference}"
            )
    # An old config file may lack options that are newer, so it is read as a configuration first.
    model, other = config.to_dict(), model_config(saved, folder).to_dict()
    for name in {**other, **model}:
        same = other.get(name) == model.get(name)
        errors.require(same, f"model {name}", model.get(name), f"{other.get(name)!r}, as {folder} has")
    errors.raise_if_any()
