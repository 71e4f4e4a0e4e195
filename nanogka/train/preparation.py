"""From settings to everything a run needs, checked: every problem is reported at once, before anything is created."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import yaml

from nanogka.data import Corpus, PackingLoader, merge_states, open_corpus
from nanogka.data.corpus import FINEWEB
from nanogka.distributed import Ranks
from nanogka.model import Accounting, GPTConfig, attention_name, count
from nanogka.problems import Problems
from nanogka.runtime import Hardware, base_dir, can_compile, describe_hardware, pick_device, pick_dtype
from nanogka.tokenizer import Tokenizer, tokenizer_folder
from nanogka.train.arriving_data import open_fineweb
from nanogka.train.checkpoint import list_checkpoints, newest_sound
from nanogka.train.horizon import Horizon, plan_horizon
from nanogka.train.settings import FREE_ON_RESUME, LoopSettings, TrainSettings

ROWS_A_DEVICE = 32
# Compiling takes about a minute on a CPU; below this much work it does not pay.
COMPILE_WORTH_FLOPS = 2e13


@dataclass(frozen=True)
class Preparation:
    """A run that can start.

    Attributes:
        folder: the run's; not created yet.
        compile, compile_reason: whether to compile the model, and why (not).
        resume_from: the checkpoint to go on from; None starts anew.
        notes: what the user should know.
    """

    settings: LoopSettings
    ranks: Ranks
    device: torch.device
    dtype: torch.dtype
    hardware: Hardware
    corpus: Corpus
    tokenizer: Tokenizer
    config: GPTConfig
    accounting: Accounting
    horizon: Horizon
    device_batch_size: int
    folder: Path
    compile: bool
    compile_reason: str
    resume_from: Path | None
    notes: tuple[str, ...]

    kind = "base"  # see `nanogka.train.checkpoint.kind_of`
    score = "val_bpb"  # the evaluation by which a checkpoint is better than another

    @property
    def row_len(self) -> int:
        """Positions of a row."""
        return self.config.sequence_len

    @property
    def accumulation(self) -> int:
        """Micro-batches a step on each device."""
        rows = self.horizon.total_batch_size // self.row_len
        return rows // (self.device_batch_size * self.ranks.world_size)

    def loader(self, state: dict | None) -> PackingLoader:
        """What the loop learns from, from the start or as a checkpoint's state says."""
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
        """The loaders' states of all ranks as one."""
        return merge_states(states)

    def locate(self, document: int) -> str:
        """Where a document that a batch names lies, for people."""
        return self.corpus.locate("train", document)

    def initial_weights(self) -> dict[str, torch.Tensor] | None:
        """The weights to begin with, where they are not random."""
        return None

    def facts(self) -> dict:
        """What config.yaml says of the run beyond its settings and what every run says."""
        return {"corpus": self.corpus.fingerprint}

    def add_files(self, folder: Path) -> None:
        """Write what this kind of run keeps in its folder beyond what every run does."""

    def settings_as_run(self) -> LoopSettings:
        """The settings with everything that was computed filled in, as config.yaml keeps them."""
        return replace(
            resolve(self.settings, self.horizon, self.dtype),
            run=self.folder.name,
            device_batch_size=self.device_batch_size,
            compile="on" if self.compile else "off",
        )

    def describe(self) -> str:
        """The run in a few lines, for people."""
        horizon, accounting = self.horizon, self.accounting
        lines = [
            f"model      depth {self.config.n_layer}, {attention_name(self.config.mixer_pattern)}, width "
            f"{self.config.n_embd}, {self.config.n_head} heads, {accounting.total_parameters:,} parameters, "
            f"{accounting.flops_per_token:.4g} FLOPs a token",
            f"horizon    {horizon.num_iterations:,} steps × {horizon.total_batch_size:,} tokens = {horizon.tokens:,} "
            f"tokens ({horizon.ratio:.2f} a parameter), {horizon.flops:.3g} FLOPs",
            f"batch      {self.ranks.world_size} device(s) × {self.accumulation} micro-batches × "
            f"{self.device_batch_size} rows × {self.row_len} tokens",
            f"data       {self.corpus.describe()}",
            f"machine    {self.hardware.name}, {str(self.dtype).removeprefix('torch.')}, compile "
            f"{'on' if self.compile else 'off'} ({self.compile_reason})",
            f"folder     {self.folder}",
        ]
        return "\n".join([*lines, *self.notes])


def prepare(settings: TrainSettings, ranks: Ranks, problems: Problems | None = None) -> Preparation:
    """Check the settings against the machine, the data and the run's folder.

    Args:
        settings: of the run.
        ranks: the processes that share it.
        problems: found already, to be reported with the rest.

    Raises:
        ValueError: one line for each problem, naming the flag, what it got and what it takes.
    """
    problems = problems or Problems()
    settings.check(problems)
    sound = not problems.lines  # else what is computed from the settings would only repeat what is wrong

    tokenizer = problems.attempt(lambda: load_tokenizer(settings.tokenizer))
    arrives = settings.data == FINEWEB
    corpus = None if arrives else problems.attempt(lambda: open_corpus(settings.data))
    vocab_size = tokenizer.vocab_size if tokenizer else GPTConfig.vocab_size
    config = problems.attempt(lambda: build_config(settings, vocab_size))
    horizon = problems.attempt(lambda: build_horizon(settings, config)) if config and sound else None
    prints = {"corpus": corpus and corpus.fingerprint, "tokenizer": tokenizer and tokenizer.fingerprint}
    machine = prepare_machine(settings, ranks, problems, run_folder(settings), config, horizon, fingerprints=prints)
    problems.raise_any()
    if arrives:  # last, so that nothing is fetched for a run that cannot start
        corpus = open_fineweb(settings, horizon, ranks, machine["resume_from"])
    return Preparation(
        settings=settings, ranks=ranks, corpus=corpus, tokenizer=tokenizer, config=config, horizon=horizon, **machine
    )


def prepare_machine(
    settings: LoopSettings,
    ranks: Ranks,
    problems: Problems,
    folder: Path,
    config: GPTConfig | None,
    horizon: Horizon | None,
    row_len: int | None = None,
    fingerprints: dict[str, str | None] | None = None,
) -> dict:
    """The fields of a `Preparation` that any run finds in one way: machine, batch, folder and checkpoint.

    `config` and `horizon` are None where they could not be made; what then cannot be told is missing. Problems are
    recorded, not raised. `row_len`: positions of a row; None for the model's context. `fingerprints`: of `find_resume`.
    """

    device = problems.attempt(lambda: ranks.device(pick_device(settings.device)))
    dtype = problems.attempt(lambda: pick_dtype(settings.dtype, device)) if device else None
    rows, resume_from, notes = None, None, []
    if horizon:
        length = row_len or config.sequence_len
        rows = problems.attempt(lambda: rows_a_device(settings, horizon, length, ranks.world_size))
    if horizon and dtype:
        resolved = resolve(settings, horizon, dtype)
        found = problems.attempt(lambda: find_resume(resolved, folder, config, fingerprints or {}))
        resume_from, notes = found or (None, [])
    found = {"device": device, "dtype": dtype, "device_batch_size": rows, "folder": folder}
    if problems.lines:
        return found
    compiled, reason = problems.attempt(lambda: decide_compile(settings.compile, device, horizon)) or (False, "")
    return found | {
        "hardware": describe_hardware(device),
        "accounting": count(config),
        "compile": compiled,
        "compile_reason": reason,
        "resume_from": resume_from,
        "notes": tuple(notes),
    }


def build_config(settings: TrainSettings, vocab_size: int) -> GPTConfig:
    """The model that the settings ask for."""
    return GPTConfig.from_depth(
        settings.depth,
        settings.attention,
        vocab_size=vocab_size,
        sequence_len=settings.sequence_len,
        window_pattern=settings.window_pattern,
        bandwidth_init=settings.bandwidth_init,
    )


def build_horizon(settings: TrainSettings, config: GPTConfig) -> Horizon:
    """The horizon that the settings ask for."""
    return plan_horizon(
        config,
        num_iterations=settings.num_iterations,
        target_flops=settings.target_flops,
        target_param_data_ratio=settings.target_param_data_ratio,
        total_batch_size=settings.total_batch_size,
    )


def rows_a_device(settings: LoopSettings, horizon: Horizon, sequence_len: int, world_size: int) -> int:
    """Rows a device takes at once: as set, or the most up to 32 that divide the batch."""
    total = horizon.total_batch_size
    if total % (sequence_len * world_size):
        raise ValueError(
            f"--total-batch-size: got {total:,} tokens, takes a multiple of sequence length × devices = "
            f"{sequence_len} × {world_size} = {sequence_len * world_size:,}"
        )
    rows = total // (sequence_len * world_size)
    if settings.device_batch_size is None:
        return max(n for n in range(1, min(ROWS_A_DEVICE, rows) + 1) if rows % n == 0)
    if rows % settings.device_batch_size:
        raise ValueError(
            f"--device-batch-size: got {settings.device_batch_size}, takes a divisor of {rows}, the rows that "
            f"--total-batch-size {total:,} gives each device"
        )
    return settings.device_batch_size


def run_folder(settings: TrainSettings) -> Path:
    """Where the run lives."""
    tag = settings.run or f"d{settings.depth}-{settings.attention}"
    return base_dir() / "runs" / tag


def load_tokenizer(name: str) -> Tokenizer:
    """A tokenizer by name or folder.

    Raises:
        ValueError: if there is none, with the command that makes one.
    """
    folder = Path(name).expanduser()
    if not (folder / "tokenizer.json").is_file():
        folder = tokenizer_folder(name)
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(
            f"--tokenizer: got {name!r}, but there is no {folder / 'tokenizer.json'}; train one with "
            f"`python -m scripts.tok_train`"
        )
    return Tokenizer.load(folder)


def decide_compile(wanted: str, device: torch.device, horizon: Horizon) -> tuple[bool, str]:
    """Whether to compile, and why. `on` where it cannot is an error."""
    if wanted == "off":
        return False, "--compile off"
    if wanted == "auto" and device.type == "cpu" and horizon.flops < COMPILE_WORTH_FLOPS:
        return False, "the run is too short for it to pay"
    able, reason = can_compile(device)
    if wanted == "on" and not able:
        raise ValueError(f"--compile: got 'on', but {reason}")
    return able, reason


def find_resume(
    settings: LoopSettings, folder: Path, config: GPTConfig, fingerprints: dict[str, str | None]
) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from, and notes; `settings` with what is computed filled in.

    `fingerprints`: of corpus and tokenizer, None for what could not be opened.

    Raises:
        ValueError: if the folder holds a run that the settings neither continue nor overwrite, or a different one.
    """
    saved = folder / "config.yaml"
    if settings.overwrite or not saved.is_file():
        return None, []
    checkpoints = folder / "checkpoints"
    if settings.resume == "never":
        if not list_checkpoints(checkpoints):
            return None, []
        raise ValueError(
            f"--run: {folder} holds a run already; --resume auto continues it, --overwrite deletes it, "
            "--run NAME makes another"
        )
    refuse_differences(read_config(saved), settings, config, fingerprints, folder)
    path, notes = newest_sound(checkpoints)
    if path is None:
        return None, [*notes, "no sound checkpoint to resume from: starting at step 0"]
    return path, [*notes, f"resuming from {path.name}"]


def read_config(path: Path) -> dict:
    """A run's config.yaml. Raises ValueError if it is none (any more)."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"--run: {path} cannot be read ({why}); put it right, or --overwrite the run") from error
    if not isinstance(content, dict) or not {"settings", "model"} <= set(content):
        raise ValueError(f"--run: {path} has no settings and model; put it right, or --overwrite the run")
    return content


def refuse_differences(
    saved: dict, settings: LoopSettings, config: GPTConfig, fingerprints: dict[str, str | None], folder: Path
) -> None:
    """Raise ValueError naming every way in which the saved run is another one."""
    now, before = settings.to_dict(), saved["settings"]
    problems = Problems()
    for name in now:
        differs = name in before and name not in FREE_ON_RESUME and before[name] != now[name]
        problems.check(not differs, "--" + name.replace("_", "-"), now[name], f"{before.get(name)!r}, as {folder} has")
    model = config.to_dict()
    for name, flag, what in (
        ("corpus", "data", "other text, or its files have changed"),
        ("tokenizer", "tokenizer", "another vocabulary"),
    ):
        here, there = fingerprints.get(name), saved.get("run", {}).get(name)
        if here and there and here != there:
            problems.lines.append(
                f"--{flag}: got {now[flag]!r} ({here[:12]}…), takes what {folder} was trained with, "
                f"{before.get(flag)!r} ({there[:12]}…): it is {what}"
            )
    for name in model:
        differs = saved["model"].get(name, model[name]) != model[name]
        problems.check(not differs, f"model {name}", model[name], f"{saved['model'].get(name)!r}, as {folder} has")
    problems.raise_any()


def resolve(settings: LoopSettings, horizon: Horizon, dtype: torch.dtype) -> LoopSettings:
    """The settings with what decides the losses filled in, however it was asked for."""
    name = str(dtype).removeprefix("torch.")
    return settings.resolved(horizon.num_iterations, horizon.total_batch_size, name)


def expected_seconds(flops: float, hardware: Hardware, device: torch.device, dtype: torch.dtype) -> float:
    """A rough forecast of a run's time, from the peak of known GPUs or a quick matrix product.

    Assumes that training reaches 40 % of it, as runs of this kind do.
    """
    peak = hardware.peak_flops
    if peak is None:
        peak = measure_matmul(device, dtype)
    return flops / (0.4 * peak * hardware.devices) if peak else math.inf


def measure_matmul(device: torch.device, dtype: torch.dtype, size: int = 1024) -> float:
    """FLOP/s of a square matrix product, the best of a few."""
    import time

    a = torch.randn(size, size, device=device).to(dtype)
    best = math.inf
    for _ in range(6):
        began = time.perf_counter()
        (a @ a).float().sum().item()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
