"""A run's folder: which run, its configuration, its metrics, its evaluation, its trained model."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import yaml

from nanogka.checkpoint import (
    STATE,
    WEIGHTS,
    check_finite,
    check_weights,
    latest_valid,
    list_checkpoints,
    read_state,
    read_weights,
    step_of,
    verify_checkpoint,
)
from nanogka.common.files import (
    MAX_DATA_BYTES,
    atomic_write,
    base_dir,
    expand_path,
    first_line,
    open_regular,
    read_json,
    read_yaml,
)
from nanogka.common.formatting import as_started, one_line, say
from nanogka.model import GPT, MIXERS, Accounting, GPTConfig, attention_name, count
from nanogka.tokenizer import Tokenizer

T = TypeVar("T")

CONFIG, METRICS = "config.yaml", "metrics.jsonl"
MAX_LINE_BYTES = 2**20  # of metrics
READ = (WEIGHTS, STATE)  # the files of a checkpoint that are read here: the optimizer's is the largest, and not hashed
EVALUATIONS = {"base": "evaluation.json", "chat": "chat_evaluation.json"}  # by the kind of run


@dataclass(frozen=True)
class Run:
    """One training run, read when asked for; what its folder does not hold is None or empty."""

    folder: Path
    config: dict  # see `read_config`

    @classmethod
    def open(cls, folder: Path) -> "Run":
        return Run(folder, read_config(folder))

    def part(self, name: str) -> dict:
        return self.config.get(name) or {}

    def fact(self, name: str) -> object | None:
        """`name` in the part `run`, `settings` or `model` of config.yaml, in this order."""
        return next((v for p in ("run", "settings", "model") if (v := self.part(p).get(name)) is not None), None)

    @property
    def tag(self) -> str:
        return one_line(self.folder.resolve().name)

    @property
    def kind(self) -> str:
        """A "base" model continues text, a "chat" model replies."""
        return str(self.part("run").get("kind") or "base")

    @cached_property
    def lines(self) -> list[dict]:
        return read_metrics(self.folder / METRICS)

    @cached_property
    def train(self) -> list[dict]:
        return self._sorted("train")

    @cached_property
    def validations(self) -> list[dict]:
        return self._sorted("eval")

    def _sorted(self, kind: str) -> list[dict]:
        return sorted((line for line in self.lines if line["kind"] == kind), key=lambda line: line["step"])

    @cached_property
    def evaluation(self) -> dict:
        path = self.folder / EVALUATIONS.get(self.kind, EVALUATIONS["base"])
        document = read_json(path) if path.exists() else {}
        tasks, bpb = document.get("tasks") or [], document.get("bpb") or {}
        sound = isinstance(tasks, list) and isinstance(bpb, dict)
        if not (sound and all(map(_is_task, tasks)) and all(map(_is_number, bpb.values()))):
            raise ValueError(f"{path}: damaged, expected `bpb` and `tasks` as an evaluation writes them")
        return document

    @cached_property
    def gpt_config(self) -> GPTConfig | None:
        """The model's configuration, None if config.yaml does not hold a valid one."""
        try:
            return model_config(self.config, self.folder) if self.part("model") else None
        except ValueError:
            return None

    @cached_property
    def accounting(self) -> Accounting | None:
        return count(self.gpt_config) if self.gpt_config else None

    @property
    def attention(self) -> str:
        """Name of the mixer, a pattern of several, or `unknown`."""
        if self.gpt_config:
            return attention_name(self.gpt_config.mixer_pattern)
        return one_line(self.fact("attention") or "unknown")

    @property
    def label(self) -> str:
        if self.attention in MIXERS:
            return MIXERS[self.attention].label
        return f"hybrid {self.attention}" if self.gpt_config else self.attention

    @property
    def finished(self) -> bool:
        planned = self.fact("num_iterations")
        return bool(self.train) and isinstance(planned, int) and self.train[-1]["step"] >= planned

    def column(self, name: str) -> np.ndarray:
        return _column(self.train, name)

    def validation(self, name: str) -> np.ndarray:
        return _column(self.validations, name)

    def last(self, name: str) -> float | None:
        return self.train[-1].get(name)

    def median(self, name: str) -> float | None:
        """Median over the training lines: the first steps, which wait for the compiler, do not move it."""
        values = self.column(name)
        return float(np.nanmedian(values)) if np.isfinite(values).any() else None

    @property
    def training_seconds(self) -> float | None:
        values = self.column("seconds")
        return float(np.nansum(values)) if np.isfinite(values).any() else None

    @property
    def model_flops_utilization(self) -> float | None:
        """Median FLOP/s over the devices' peak; None where the peak is not known."""
        rate, peak, devices = self.median("flops_per_second"), self.fact("peak_flops"), self.fact("world_size") or 1
        return rate / (peak * devices) if rate and peak else None

    def evaluated_bpb(self, split: str) -> float | None:
        return (self.evaluation.get("bpb") or {}).get(split)

    @property
    def tasks(self) -> list[dict]:
        return self.evaluation.get("tasks") or []

    @property
    def last_validation(self) -> float | None:
        return self.validations[-1].get("val_bpb") if self.validations else None

    @property
    def validation_bpb(self) -> float | None:
        """Validation bits per byte of the trained model: the evaluation's, else what training measured last."""
        found = self.evaluated_bpb("val")
        return self.last_validation if found is None else found

    @cached_property
    def bandwidths(self) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Tokens (N,), σ (N, layers, heads) over training, and the layers' indices; no layers without a bandwidth."""
        lines = [line for line in self.train if line.get("bandwidth")]
        if not lines:
            return np.zeros(0), np.zeros((0, 0, 0)), []
        try:
            sigma = np.array([line["bandwidth"] for line in lines], dtype=float)
        except ValueError as error:
            raise ValueError(f"{self.folder / METRICS}: `bandwidth` differs in shape from line to line") from error
        return _column(lines, "tokens"), sigma, list(lines[0].get("bandwidth_layers") or range(sigma.shape[1]))

    @property
    def bandwidth_start(self) -> float | None:
        config = self.gpt_config
        return (config.bandwidth_init or config.head_dim**0.25) if config else None

    def load(
        self, device: torch.device | str = "cpu", step: int | None = None, dtype: torch.dtype | None = None
    ) -> "LoadedRun":
        folder, path = self.folder, find_checkpoint(self.folder, step)
        gpt_config, tokenizer = model_config(self.config, folder), load_tokenizer_of(folder, self.config)
        learned = (read_state(path).get("loader") or {}).get("corpus")
        if learned and learned != self.part("run").get("corpus", learned):
            raise ValueError(f"--run: {folder / CONFIG} is another run's: {path.name} has learned from another corpus")
        weights = read_weights(path, device)
        try:
            with torch.device("meta"):
                model = GPT(gpt_config)
        except RuntimeError as error:  # sizes that no tensor can have
            raise ValueError(f"--run: {folder / CONFIG} has no model: {first_line(error)}") from error
        check_weights(model, weights, f"--run: {path}")  # before a forged size takes memory
        check_finite(weights, f"--run: {path}")
        model = model.to_empty(device=device)
        model.load_state_dict(weights)
        del weights  # before `to_compute` makes another copy
        model.to_compute(dtype or torch.float32).eval()
        return LoadedRun(folder, self.config, model, tokenizer, step_of(path), path)


@dataclass(frozen=True)
class LoadedRun(Run):
    """A run with its trained model, in eval mode on its device."""

    model: GPT
    tokenizer: Tokenizer
    step: int
    checkpoint_folder: Path


def load_run(
    run: str | Path | None = None,
    device: torch.device | str = "cpu",
    step: int | None = None,
    dtype: torch.dtype | None = None,
    kind: str | None = None,
) -> LoadedRun:
    """Load a trained model with its tokenizer, computing in `dtype` (None: float32).

    With neither run nor step, newer runs that cannot be loaded are skipped with a warning. `step`: None for the newest
    checkpoint that verifies.
    """
    if run is None and step is None:
        return open_latest(lambda folder: Run.open(folder).load(device, None, dtype), kind)
    return Run.open(find_run(run, kind)).load(device, step, dtype)


def open_latest(read: Callable[[Path], T], kind: str | None = None) -> T:
    """`read(folder)` of the run of `kind` trained last that `read` accepts; newer ones are skipped with a warning."""
    first: Exception | None = None
    for folder in _trained_last(kind):
        try:
            return read(folder)
        except torch.OutOfMemoryError:  # of which the machine is to blame
            raise
        except Exception as error:  # another's run may fail in any way
            first = first or error
            _warn_skipped(error)
    if first is not None:
        raise first
    return read(find_run(None, kind))


def find_run(run: str | Path | None = None, kind: str | None = None, flag: str = "--run") -> Path:
    """The folder of a run: `run` is a folder, a tag under base_dir()/runs, or None for that of `kind` trained last.

    `flag` names the run in errors.
    """
    runs = base_dir() / "runs"
    hint = as_started("train one with `python -m scripts.base_train` or `bash speedrun.sh`")
    if run is not None:
        for folder in (expand_path(run), runs / run):
            if (folder / CONFIG).is_file():
                return folder
        tags = sorted(path.parent.name for path in runs.glob(f"*/{CONFIG}"))
        known = f"one of {', '.join(tags)}" if tags else "nothing yet: there are no runs"
        raise ValueError(f"{flag}: got {str(run)!r}, expected a run's folder or a tag under {runs} ({known}; {hint})")
    found = next(_trained_last(kind), None)
    if found is None:
        which = "trained run" if kind is None else f"trained {kind} run"
        raise ValueError(f"{flag}: no {which} under {runs}; {hint}")
    return found


def newest_first(paths: Iterator[Path]) -> list[Path]:
    """Paths by their time of change, the newest first, without those removed meanwhile and dangling links."""
    times: dict[Path, float] = {}
    for path in paths:
        with suppress(OSError):
            times[path] = path.stat().st_mtime
    return sorted(times, key=times.get, reverse=True)


def _trained_last(kind: str | None) -> Iterator[Path]:
    """The runs of a kind that have a checkpoint, the one trained last first."""
    manifests = newest_first((base_dir() / "runs").glob("*/checkpoints/step_*/manifest.json"))
    for folder in dict.fromkeys(manifest.parents[2] for manifest in manifests):
        try:
            run = Run.open(folder)
            model_config(run.config, folder)
        except ValueError as error:
            _warn_skipped(error)
            continue
        if kind in (None, run.kind):
            yield folder


def _warn_skipped(error: Exception) -> None:
    say(f"skipped: {first_line(error)}")


def write_config(folder: Path, config: dict) -> None:
    atomic_write(folder / CONFIG, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


def read_config(folder: Path) -> dict:
    """The content of a run's config.yaml: a mapping with `model`, `settings` and, except in old runs, `run`."""
    path = folder / CONFIG
    try:
        content = read_yaml(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"--run: {error}") from error
    parts = content if isinstance(content, dict) else {}
    if not (isinstance(parts.get("settings"), dict) and isinstance(parts.get("model"), dict)):
        raise ValueError(f"--run: {path} cannot be used (it has no settings and model)")
    if not isinstance(parts.get("run", {}), dict):
        raise ValueError(f"--run: {path} cannot be used (`run` is not a mapping)")
    return content


def check_metrics(folder: Path, config: dict, lines: list[dict]) -> None:
    """Raise ValueError if the metrics in a run's folder are those of another run."""
    facts = {name: value for name, value in (config.get("run") or {}).items() if name in ("tag", "created")}
    for line in lines:
        if line["kind"] == "run" and any(line.get(name, value) != value for name, value in facts.items()):
            raise ValueError(f"--run: {folder / METRICS} is another run's ({line.get('tag')}, {line.get('created')})")


def read_metrics(path: Path) -> list[dict]:
    """The lines of a metrics file; damaged ones, such as a last one that a crash cut, are left out and counted."""
    lines, damaged = [], 0
    for text in _read_lines(path) if path.is_file() else ():
        try:
            line = json.loads(text)
            if not isinstance(line, dict) or "kind" not in line or type(line.get("step")) is not int:
                raise ValueError("no line of ours")
        except (ValueError, RecursionError):
            damaged += 1
        else:
            lines.append(line)
    if damaged:
        say(f"{path}: {damaged} damaged lines left out")
    return lines


def _read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file one by one. A line of more than a megabyte comes in pieces."""
    with open_regular(path, MAX_DATA_BYTES) as file:
        while line := file.readline(MAX_LINE_BYTES):
            yield line


def find_checkpoint(folder: Path, step: int | None = None, flag: str = "--step") -> Path:
    """The checkpoint of a run at `step`; None for the newest that verifies, with a note on stderr if others do not."""
    checkpoints = folder / "checkpoints"
    if step is None:
        path, notes = latest_valid(checkpoints, READ)
        if path is None:
            raise ValueError("\n".join([f"--run: {folder} has no usable checkpoint", *notes]))
        for note in notes:
            say(f"{folder.name}: {note}; taking {path.name} instead")
        return path
    path = checkpoints / f"step_{step:06d}"
    if not path.is_dir():
        steps = ", ".join(str(step_of(p)) for p in list_checkpoints(checkpoints)) or "none"
        raise ValueError(f"{flag}: got {step}, expected a saved step of {folder}: {steps}")
    if reason := verify_checkpoint(path, READ):
        raise ValueError(f"{flag}: checkpoint {path} is unusable: {reason}")
    return path


def model_config(config: dict, folder: Path) -> GPTConfig:
    try:
        return GPTConfig.from_dict(config["model"])
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"--run: {folder / CONFIG} has no model that this version knows: {error}") from error


def load_tokenizer_of(folder: Path, config: dict) -> Tokenizer:
    """The tokenizer that a run was trained with, by its fingerprint in config.yaml."""
    tokenizer = Tokenizer.load(folder / "tokenizer")
    expected = (config.get("run") or {}).get("tokenizer", tokenizer.fingerprint)
    if tokenizer.fingerprint != expected:
        raise ValueError(
            f"--run: {folder / 'tokenizer'} is another tokenizer ({tokenizer.fingerprint[:12]}…) than the run was "
            f"trained with ({str(expected)[:12]}…)"
        )
    return tokenizer


def _column(lines: list[dict], name: str) -> np.ndarray:
    values = (line.get(name) for line in lines)
    return np.array([value if isinstance(value, int | float) else np.nan for value in values], dtype=float)


def _is_task(task: object) -> bool:
    named = isinstance(task, dict) and "name" in task and task.get("accuracy") is not None
    return named and all(_is_number(task.get(name)) for name in ("accuracy", "chance", "items"))


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int | float)
