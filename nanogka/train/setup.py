"""From settings to a `RunContext`: everything a run needs, checked.

Every problem is reported at once, before anything is created. Fine-tuning on conversations (`nanogka.train.chat`) is a
`RunContext` with another loader; the loop is the same.
"""

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from nanogka.checkpoint import latest_valid, list_checkpoints, step_of
from nanogka.cli import flag_name
from nanogka.data import Corpus, PackingLoader, merge_states, open_corpus, validation_batches
from nanogka.data.corpus import FINEWEB
from nanogka.data.fineweb import fetch_fineweb, open_fineweb, shards_needed
from nanogka.distributed import Ranks
from nanogka.formatting import duration
from nanogka.model import GPT, Accounting, GPTConfig, attention_name, count, mixer_options
from nanogka.problems import Problems
from nanogka.runs import CONFIG, METRICS, check_metrics, model_config, read_config, read_metrics
from nanogka.runtime import Hardware, base_dir, can_compile, describe_hardware, pick_device, pick_dtype
from nanogka.tokenizer import Tokenizer, tokenizer_folder
from nanogka.train.horizon import Horizon, plan_horizon
from nanogka.train.optimizer import optimizer_state_bytes
from nanogka.train.settings import FREE_ON_RESUME, LoopSettings, TrainSettings

MAX_DEVICE_ROWS = 32
# Compiling takes about a minute on a CPU; below this much work it does not pay.
COMPILE_WORTH_FLOPS = 2e13
ASSUMED_MFU = 0.4  # share of the hardware's peak that training is expected to reach
# Made from a run, kept in its folder.
RESULTS = ("evaluation.json", "chat_evaluation.json", "report.md", "report.html", "plots", "visualization")


@dataclass(frozen=True)
class RunContext:
    """A run that can start.

    Attributes:
        corpus: what it learns from; None in a dry run whose data would be fetched.
        folder: of the run; not created yet.
        compile, compile_reason: whether to compile the model, and why (not).
        resume_from: the checkpoint to resume from; None starts anew.
        found: names of the checkpoints in the folder.
        notes: lines for the user.
    """

    settings: LoopSettings
    ranks: Ranks
    device: torch.device
    dtype: torch.dtype
    hardware: Hardware
    corpus: Corpus | None
    tokenizer: Tokenizer
    config: GPTConfig
    accounting: Accounting
    horizon: Horizon
    device_batch_size: int
    folder: Path
    compile: bool
    compile_reason: str
    resume_from: Path | None
    found: tuple[str, ...]
    notes: tuple[str, ...]

    kind = "base"  # see `nanogka.runs.Run.kind`
    score = "val_bpb"  # the evaluation by which a checkpoint is better than another, lower is better

    @property
    def row_len(self) -> int:
        """Positions of a row."""
        return self.config.sequence_len

    @property
    def accumulation(self) -> int:
        """Micro-batches per step on each device."""
        rows = self.horizon.total_batch_size // self.row_len
        return rows // (self.device_batch_size * self.ranks.world_size)

    @property
    def complete(self) -> bool:
        """True if there is nothing left to train or evaluate."""
        return is_complete(self.folder, self.resume_from, self.horizon)

    def loader(self, state: dict | None) -> PackingLoader:
        """The batches to learn from, from the start or as a checkpoint's state says."""
        return PackingLoader(
            self.corpus,
            "train",
            self.tokenizer,
            batch_size=self.device_batch_size,
            sequence_len=self.row_len,
            seed=self.settings.seed,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
            packing=self.settings.packing,
            state=state,
        )

    def merge_states(self, states: list[dict]) -> dict:
        """The loader states of all ranks as one."""
        return merge_states(states)

    def locate(self, document: int) -> str:
        """The place of a document that a batch names, for people."""
        return self.corpus.locate("train", document)

    def initial_weights(self) -> dict[str, torch.Tensor] | None:
        """The weights to begin with, if they are not random."""
        return None

    def facts(self) -> dict:
        """Facts for config.yaml, beyond the settings and those of every run."""
        return {"corpus": self.corpus.fingerprint, "footers": self.corpus.footers}

    def add_files(self, folder: Path) -> None:
        """Write the files that this kind of run keeps in its folder beyond those of every run."""

    def settings_as_run(self) -> LoopSettings:
        """The settings with everything that was computed filled in, as config.yaml keeps them."""
        return replace(
            resolve(self.settings, self.horizon, self.dtype),
            run=self.folder.name,
            device_batch_size=self.device_batch_size,
            compile="on" if self.compile else "off",
        )

    def describe(self) -> str:
        """The run and its cost in a few lines, for people."""
        horizon, accounting = self.horizon, self.accounting
        data = self.corpus.describe() if self.corpus else f"{self.settings.data}, to be fetched"
        lines = [
            f"model      depth {self.config.n_layer}, {attention_name(self.config.mixer_pattern)}, width "
            f"{self.config.n_embd}, {self.config.n_head} heads, {accounting.total_parameters:,} parameters, "
            f"{accounting.flops_per_token:.4g} FLOPs per token",
            f"horizon    {horizon.num_iterations:,} steps × {horizon.total_batch_size:,} tokens = {horizon.tokens:,} "
            f"tokens ({horizon.ratio:.2f} per parameter), {horizon.flops:.3g} FLOPs",
            f"batch      {self.ranks.world_size} device(s) × {self.accumulation} micro-batches × "
            f"{self.device_batch_size} rows × {self.row_len} tokens",
            f"data       {data}",
            f"machine    {self.hardware.name}, {str(self.dtype).removeprefix('torch.')}, compile "
            f"{'on' if self.compile else 'off'} ({self.compile_reason})",
            f"cost       {self.describe_cost()}",
            f"folder     {self.folder}",
        ]
        return "\n".join([*lines, *self.notes])

    def describe_cost(self) -> str:
        """The expected time, memory and disk of the whole run in one line."""
        weights, settings = 4 * self.accounting.total_parameters, self.settings
        with torch.device("meta"):
            state = optimizer_state_bytes(GPT(self.config))
        peak = self.hardware.peak_flops or measure_matmul(self.device, self.dtype)
        seconds = self.horizon.flops / (ASSUMED_MFU * peak * self.ranks.world_size)
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        checkpoints = settings.keep + settings.keep_best + 1  # and one that is being written
        return (
            f"about {duration(seconds)} of training at {ASSUMED_MFU:.0%} of {peak:.2g} FLOP/s; weights, gradients and "
            f"optimiser state {_gb(2 * weights + state / self.ranks.world_size)} per device; checkpoints {checkpoints} "
            f"× {_gb(weights + state)} on a disk with {_gb(shutil.disk_usage(existing).free)} free"
        )


def prepare(settings: TrainSettings, ranks: Ranks, problems: Problems) -> RunContext:
    """Check the settings against the machine, the data and the run's folder.

    Args:
        settings: of the run.
        ranks: the processes that share it.
        problems: found already, to be reported with the rest.

    Raises:
        ValueError: one line for each problem, naming the flag, what it got and what it takes.
    """
    settings.check(problems)
    sound = not problems.lines  # else what is computed from the settings would only repeat what is wrong
    tokenizer = problems.attempt(lambda: load_tokenizer(settings.tokenizer))
    fetched = settings.data == FINEWEB
    corpus = None if fetched else problems.attempt(lambda: open_corpus(settings.data))
    vocab_size = tokenizer.vocab_size if tokenizer else GPTConfig.vocab_size
    config = problems.attempt(lambda: settings.config(vocab_size))
    horizon = problems.attempt(lambda: build_horizon(settings, config)) if config and sound else None
    folder = base_dir() / "runs" / (settings.run or f"d{settings.depth}-{settings.attention}")
    prints = {"corpus": corpus and corpus.fingerprint, "footers": corpus and corpus.footers}
    prints["tokenizer"] = tokenizer and tokenizer.fingerprint
    common = prepare_common(settings, ranks, problems, folder, config, horizon, fingerprints=prints)
    if corpus and tokenizer and config:
        problems.attempt(lambda: check_validation(corpus, tokenizer, config.sequence_len, ranks))
    problems.raise_any()
    if fetched and not settings.dry_run:  # last, so that nothing is fetched for a run that cannot start
        corpus = fetch_corpus(settings, horizon, ranks)
        check_validation(corpus, tokenizer, config.sequence_len, ranks)
        if common["resume_from"]:
            resolved = resolve(settings, horizon, common["dtype"])
            refuse_differences(resolved, folder, config, {"corpus": corpus.fingerprint, "footers": corpus.footers})
    return RunContext(
        settings=settings, ranks=ranks, corpus=corpus, tokenizer=tokenizer, config=config, horizon=horizon, **common
    )


def prepare_common(
    settings: LoopSettings,
    ranks: Ranks,
    problems: Problems,
    folder: Path,
    config: GPTConfig | None,
    horizon: Horizon | None,
    row_len: int | None = None,
    fingerprints: dict[str, str | None] | None = None,
) -> dict:
    """Return the fields of a `RunContext` that every kind of run finds in one way; none of them if there are problems.

    Args:
        problems: are recorded here, not raised.
        config, horizon: None where they could not be made.
        row_len: positions of a row; None for the model's context.
        fingerprints: see `refuse_differences`.
    """
    device = problems.attempt(lambda: ranks.device(pick_device(settings.device)))
    dtype = problems.attempt(lambda: pick_dtype(settings.dtype, device)) if device else None
    rows, resume_from, notes = None, None, []
    if horizon:
        length = row_len or config.sequence_len
        rows = problems.attempt(lambda: rows_per_device(settings, horizon, length, ranks.world_size))
    if horizon and dtype and not settings.dry_run:
        resolved = resolve(settings, horizon, dtype)
        refuse = partial(refuse_differences, resolved, folder, config, fingerprints or {})
        resumed = problems.attempt(lambda: find_resume(folder, settings.resume, settings.overwrite, refuse))
        resume_from, notes = resumed or (None, [])
    if problems.lines:
        return {}
    compiled, reason = False, "nothing to compute"
    if not settings.dry_run and not is_complete(folder, resume_from, horizon):
        compiled, reason = problems.attempt(lambda: decide_compile(settings.compile, device, horizon)) or (False, "")
    return {
        "device": device,
        "dtype": dtype,
        "device_batch_size": rows,
        "folder": folder,
        "hardware": describe_hardware(device),
        "accounting": count(config),
        "compile": compiled,
        "compile_reason": reason,
        "resume_from": resume_from,
        "found": tuple(path.name for path in list_checkpoints(folder / "checkpoints")),
        "notes": tuple(notes),
    }


# ---- the parts ----


def build_horizon(settings: TrainSettings, config: GPTConfig) -> Horizon:
    """The horizon that the settings ask for."""
    return plan_horizon(
        config,
        num_iterations=settings.num_iterations,
        target_flops=settings.target_flops,
        target_param_data_ratio=settings.target_param_data_ratio,
        total_batch_size=settings.total_batch_size,
    )


def rows_per_device(settings: LoopSettings, horizon: Horizon, sequence_len: int, world_size: int) -> int:
    """Rows per device and micro-batch: as set, or the most up to 32 that divide the batch."""
    total = horizon.total_batch_size
    if total % (sequence_len * world_size):
        raise ValueError(
            f"--total-batch-size: got {total:,} tokens, takes a multiple of sequence length × devices = "
            f"{sequence_len} × {world_size} = {sequence_len * world_size:,}"
        )
    rows = total // (sequence_len * world_size)
    if settings.device_batch_size is None:
        return max(n for n in range(1, min(MAX_DEVICE_ROWS, rows) + 1) if rows % n == 0)
    if rows % settings.device_batch_size:
        raise ValueError(
            f"--device-batch-size: got {settings.device_batch_size}, takes a divisor of {rows}, the rows that "
            f"--total-batch-size {total:,} gives each device"
        )
    return settings.device_batch_size


def load_tokenizer(name: str) -> Tokenizer:
    """A tokenizer by name or folder. Raises ValueError if there is none, with the command that makes one."""
    folder = tokenizer_folder(name)
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(
            f"--tokenizer: got {name!r}, but there is no {folder / 'tokenizer.json'}; train one with "
            f"`python -m scripts.tok_train`"
        )
    return Tokenizer.load(folder)


def fetch_corpus(settings: TrainSettings, horizon: Horizon, ranks: Ranks) -> Corpus:
    """FineWeb-Edu, its missing shards fetched first: by one process of each node, for which the others wait."""
    shards = settings.shards or shards_needed(horizon.tokens)
    fetch_fineweb(shards, log=print if ranks.local_rank == 0 else lambda line: None)
    return open_fineweb(shards)


def check_validation(corpus: Corpus, tokenizer: Tokenizer, sequence_len: int, ranks: Ranks) -> None:
    """Make a row of validation text, which is otherwise not wanted before the last step. Raises ValueError."""
    shape = {"batch_size": 1, "sequence_len": sequence_len, "rank": ranks.rank, "world_size": ranks.world_size}
    try:
        next(validation_batches(corpus, tokenizer, **shape))
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


def resolve(settings: LoopSettings, horizon: Horizon, dtype: torch.dtype) -> LoopSettings:
    """The settings with everything that decides the losses filled in, however it was asked for."""
    name = str(dtype).removeprefix("torch.")
    return settings.resolved(horizon.num_iterations, horizon.total_batch_size, name)


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


# ---- the run's folder: resume, start, or refuse ----


def find_resume(
    folder: Path, resume: str, overwrite: bool, refuse: Callable[[], None], results: Sequence[str] = RESULTS
) -> tuple[Path | None, list[str]]:
    """The checkpoint to resume from (None: start anew), and notes.

    Nothing that was computed is given up without `--overwrite`: neither checkpoints nor what was made from them.

    Args:
        folder: of the run.
        resume, overwrite: the settings of that name.
        refuse: raises ValueError if the run in the folder is another one.
        results: names in the folder of what was made from checkpoints.

    Raises:
        ValueError: if the folder holds a run that the settings neither continue nor overwrite, a different run, or
            one of which nothing can be used.
    """
    if overwrite:
        return None, []
    advice = "--overwrite deletes it, --run NAME makes another"
    try:
        checkpoints = list_checkpoints(folder / "checkpoints")
        found = [path.name for path in checkpoints] + [name for name in results if (folder / name).exists()]
        if not (folder / CONFIG).exists():
            if found:
                raise ValueError(f"--run: {folder} has no {CONFIG}, but holds {', '.join(found)}; {advice}")
            return None, []
        if resume == "never":
            if not found:
                return None, []
            raise ValueError(f"--run: {folder} holds a run already; --resume auto continues it, {advice}")
        refuse()
        if not found:
            return None, []
        lines = read_metrics(folder / METRICS)
        check_metrics(folder, read_config(folder), lines)
        path, notes = latest_valid(folder / "checkpoints")
    except OSError as error:
        raise ValueError(f"--run: {folder} cannot be read ({error}); it is left as it is") from error
    if path is None:
        why = "".join(f"\n  {note}" for note in notes)
        there = ", ".join(found)
        raise ValueError(f"--run: {folder} has no checkpoint to resume from, but holds {there}; {advice}{why}")
    done = step_of(path)
    if lacking := done - len({line["step"] for line in lines if line["kind"] == "train" and line["step"] <= done}):
        notes.append(f"{METRICS} lacks {lacking} of the {done} steps before")
    return path, [*notes, f"resuming from {path.name}"]


def refuse_differences(
    settings: LoopSettings, folder: Path, config: GPTConfig, fingerprints: dict[str, str | None]
) -> None:
    """Raise ValueError naming every way in which the run in `folder` is another one.

    `fingerprints`: of corpus, its footers and tokenizer, None for what could not be opened.
    """
    saved = read_config(folder)
    now, before, problems = settings.to_dict(), saved["settings"], Problems()
    for name in now:
        known = name in before or name in mixer_options()  # which the run had not if its file does not say so
        differs = known and name not in FREE_ON_RESUME and before.get(name) != now[name]
        problems.check(not differs, flag_name(name), now[name], f"{before.get(name)!r}, as {folder} has")
    for name, flag, what in (
        ("corpus", "data", "other text, or its files have changed"),
        ("footers", "data", "the same files with other contents"),
        ("tokenizer", "tokenizer", "another vocabulary"),
    ):
        if name == "footers" and any(line.startswith("--data:") for line in problems.lines):
            continue  # it is another corpus altogether
        here, there = fingerprints.get(name), (saved.get("run") or {}).get(name)
        if here and there and here != there:
            problems.lines.append(
                f"--{flag}: got {now[flag]!r} ({here[:12]}…), takes what {folder} was trained with, "
                f"{before.get(flag)!r} ({there[:12]}…): it is {what}"
            )
    model, other = config.to_dict(), model_config(saved, folder).to_dict()
    for name in {**other, **model}:
        same = other.get(name) == model.get(name)
        problems.check(same, f"model {name}", model.get(name), f"{other.get(name)!r}, as {folder} has")
    problems.raise_any()


def is_complete(folder: Path, resume_from: Path | None, horizon: Horizon) -> bool:
    """True if the last step was saved and, since a crash may come between, evaluated."""
    last = horizon.num_iterations
    if resume_from is None or step_of(resume_from) != last:
        return False
    return any(line["kind"] == "eval" and line["step"] == last for line in read_metrics(folder / METRICS))
