"""A run as its folder describes it, and which two runs may be compared. Nothing here needs the weights."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from zlib import crc32

import numpy as np
import yaml

from nanogka.formatting import one_line
from nanogka.model import Accounting, GPTConfig, attention_name, count, mixer_options
from nanogka.model.mixers import MIXERS
from nanogka.runs import check_metrics, read_metrics

EVALUATIONS = {"base": "evaluation.json", "chat": "chat_evaluation.json"}  # by the kind of run
SPARE_COLORS = ("#8C564B", "#CC79A7", "#56B4E9", "#E69F00", "#7A5195")  # of hybrids, and of mixers that are not known

# Settings in which two comparable runs may differ: the mixer, its options and rates, what touches neither losses nor
# speed, how the horizon was asked for (OUTCOMES are compared instead), and what MACHINE covers.
FREE_MODEL_FIELDS = {"mixer_pattern", "bandwidth_init", "smear"}
CHOICES = {f"{rate}_lr" for rate in ("matrix", "embedding", "unembedding", "scalar", "vector", "bandwidth")}
CHOICES |= {"lr_scale", "weight_decay", "bandwidth_init", "smear"}
FREE_SETTINGS = CHOICES | {"attention", "device", "compile", "device_batch_size"}
FREE_SETTINGS |= {"run", "resume", "overwrite", "keep", "keep_best", "save_every", "eval_every", "tracker"}
FREE_SETTINGS |= {"num_iterations", "target_flops", "target_param_data_ratio", "total_batch_size"}
OUTCOMES = ("total_batch_size", "num_iterations")
FINGERPRINTS = {"corpus": "data", "tokenizer": "tokenizer"}  # recorded fingerprint: the setting whose path it replaces
MACHINE = ("hardware", "world_size", "device", "dtype", "compiled", "torch")


@dataclass(frozen=True)
class Run:
    """One training run; what its folder does not hold is None or empty.

    Attributes:
        folder: of the run.
        config: config.yaml, a mapping with `model`, `settings` and `run`.
    """

    folder: Path
    config: dict

    def part(self, name: str) -> dict:
        """The mapping `name` of config.yaml, empty if it is missing."""
        part = self.config.get(name)
        return part if isinstance(part, dict) else {}

    def fact(self, name: str) -> object | None:
        """`name` in the part `run`, `settings` or `model` of config.yaml, in this order."""
        return next((v for p in ("run", "settings", "model") if (v := self.part(p).get(name)) is not None), None)

    @property
    def tag(self) -> str:
        """Name of the run (its folder's), fit to print."""
        return one_line(self.folder.resolve().name)

    @property
    def kind(self) -> str:
        """`base` or `chat`."""
        return str(self.part("run").get("kind") or "base")

    @cached_property
    def lines(self) -> list[dict]:
        """The lines of metrics.jsonl."""
        lines = read_metrics(self.folder / "metrics.jsonl")
        return [line for line in lines if isinstance(line, dict) and isinstance(line.get("step"), int)]

    @cached_property
    def train(self) -> list[dict]:
        """The training lines, by step."""
        return sorted((line for line in self.lines if line.get("kind") == "train"), key=lambda line: line["step"])

    @cached_property
    def validations(self) -> list[dict]:
        """The validation lines, by step."""
        return sorted((line for line in self.lines if line.get("kind") == "eval"), key=lambda line: line["step"])

    @cached_property
    def evaluation(self) -> dict:
        """The evaluation's document, empty if there is none yet. Raises ValueError if it is damaged."""
        path = self.folder / EVALUATIONS.get(self.kind, EVALUATIONS["base"])
        return _read(path, json.loads) if path.exists() else {}

    @cached_property
    def gpt_config(self) -> GPTConfig | None:
        """The model's configuration, None if config.yaml does not hold a valid one."""
        try:
            return GPTConfig.from_dict(self.part("model")) if self.part("model") else None
        except (TypeError, ValueError):
            return None

    @cached_property
    def accounting(self) -> Accounting | None:
        """Parameters and FLOPs, counted from the configuration."""
        return count(self.gpt_config) if self.gpt_config else None

    @property
    def attention(self) -> str:
        """Name of the mixer, a pattern of several, or `unknown`."""
        if self.gpt_config:
            return attention_name(self.gpt_config.mixer_pattern)
        return one_line(self.fact("attention") or "unknown")

    @property
    def label(self) -> str:
        """Name of the mixer for people."""
        mixer = MIXERS.get(self.attention)
        if mixer is None:
            return f"hybrid {self.attention}" if self.gpt_config else self.attention
        return mixer.label

    @property
    def color(self) -> str:
        """Color of the mixer in every figure: its own, or a spare one by its name."""
        spare = SPARE_COLORS[crc32(self.attention.encode()) % len(SPARE_COLORS)]
        return MIXERS[self.attention].color if self.attention in MIXERS else spare

    @property
    def finished(self) -> bool:
        """True if training reached its last step."""
        planned = self.fact("num_iterations")
        return bool(self.train) and isinstance(planned, int) and self.train[-1]["step"] >= planned

    def column(self, name: str) -> np.ndarray:
        """(N,) float64: `name` in every training line, NaN where it is missing."""
        return _column(self.train, name)

    def validation(self, name: str) -> np.ndarray:
        """(E,) float64: `name` in every validation line, NaN where it is missing."""
        return _column(self.validations, name)

    def last(self, name: str) -> float | None:
        """`name` in the last training line."""
        return self.train[-1].get(name)

    def median(self, name: str) -> float | None:
        """Median of `name` over the training lines, which steps that waited (the first, say) do not move."""
        values = self.column(name)
        return float(np.nanmedian(values)) if np.isfinite(values).any() else None

    @property
    def training_seconds(self) -> float | None:
        """Sum of the steps' durations; validation and saving are not in it."""
        values = self.column("seconds")
        return float(np.nansum(values)) if np.isfinite(values).any() else None

    @property
    def model_flops_utilisation(self) -> float | None:
        """Median FLOP/s over the devices' peak; None where the peak is not known."""
        rate, peak, devices = self.median("flops_per_second"), self.fact("peak_flops"), self.fact("world_size") or 1
        return rate / (peak * devices) if rate and peak else None

    def evaluated_bpb(self, split: str) -> float | None:
        """Bits per byte of `train` or `val` that the evaluation measured."""
        found = self.evaluation.get("bpb")
        return found.get(split) if isinstance(found, dict) else None

    @property
    def last_validation(self) -> float | None:
        """Validation bits per byte that training measured last."""
        return self.validations[-1].get("val_bpb") if self.validations else None

    @property
    def validation_bpb(self) -> float | None:
        """Validation bits per byte of the trained model: the evaluation's, else what training measured last."""
        found = self.evaluated_bpb("val")
        return self.last_validation if found is None else found

    @property
    def tasks(self) -> list[dict]:
        """The evaluated tasks, those with a name and an accuracy."""
        tasks = self.evaluation.get("tasks")
        found = tasks if isinstance(tasks, list) else []
        return [t for t in found if isinstance(t, dict) and "name" in t and isinstance(t.get("accuracy"), int | float)]

    @cached_property
    def bandwidths(self) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Tokens (N,), σ (N, layers, heads) over training, and the layers' indices; no layers without a bandwidth.

        Raises:
            ValueError: if the lines do not agree on layers and heads.
        """
        lines = [line for line in self.train if line.get("bandwidth")]
        if not lines:
            return np.zeros(0), np.zeros((0, 0, 0)), []
        try:
            sigma = np.array([line["bandwidth"] for line in lines], dtype=float)
        except ValueError as error:
            path = self.folder / "metrics.jsonl"
            raise ValueError(f"{path}: `bandwidth` differs in shape from line to line") from error
        return _column(lines, "tokens"), sigma, list(lines[0].get("bandwidth_layers") or range(sigma.shape[1]))

    @property
    def bandwidth_start(self) -> float | None:
        """Initial value of every σ."""
        config = self.gpt_config
        return (config.bandwidth_init or config.head_dim**0.25) if config else None


def load_run(folder: Path) -> Run:
    """Read a run's folder.

    Raises:
        ValueError: if there is no training in it or a file is damaged; the text names the file.
    """
    run = Run(folder, _read(folder / "config.yaml", yaml.safe_load))
    if not run.train:
        raise ValueError(f"{folder / 'metrics.jsonl'}: no training lines; train first, `python -m scripts.base_train`")
    check_metrics(folder, run.config, run.lines)
    _ = run.evaluation, run.bandwidths  # damage is told before anything is written
    return run


def differing_settings(one: Run, other: Run, choices: bool = False) -> dict[str, tuple[object, object]]:
    """The settings beside the mixer in which two runs differ, each with its two values.

    Args:
        choices: with the options and rates, in which comparable runs may differ.
    """
    pairs = {name: (one.fact(name), other.fact(name)) for name in OUTCOMES}
    options = mixer_options().keys()
    free_settings = FREE_SETTINGS - CHOICES if choices else FREE_SETTINGS | options
    for part, free in (("settings", free_settings), ("model", FREE_MODEL_FIELDS | options)):
        first, second = one.part(part), other.part(part)
        pairs |= {name: (first.get(name), second.get(name)) for name in {*first, *second} - free}
    for fingerprint, setting in FINGERPRINTS.items():
        found = tuple(run.part("run").get(fingerprint) for run in (one, other))
        if None not in found:
            pairs[setting] = (None, None) if found[0] == found[1] else tuple(value[:12] for value in map(str, found))
    return {name: pair for name, pair in sorted(pairs.items()) if pair[0] != pair[1]}


def same_machine(one: Run, other: Run) -> bool:
    """Return whether both ran on the same machine in the same way, so that their speeds compare."""
    return all(one.part("run").get(name) == other.part("run").get(name) for name in MACHINE)


def find_counterparts(run: Run, runs: Path) -> list[Run]:
    """The newest finished run under `runs` of each other mixer, with otherwise the same settings."""
    if run.gpt_config is None or run.fact("num_iterations") is None:
        return []  # its configuration does not say what it was
    found: dict[str, Run] = {}
    for other in _newest_first(runs):
        if other.attention == run.attention or other.attention in found or other.gpt_config is None:
            continue
        if not differing_settings(run, other) and other.finished:
            found[other.attention] = other
    return list(found.values())


def find_chat_run(run: Run) -> Run | None:
    """The newest chat run beside `run` that was made from it."""
    name = run.folder.resolve().name

    def tuned(other: Run) -> bool:
        base = base_folder(other)
        return base is not None and base.name == name

    return next(filter(tuned, _newest_first(run.folder.resolve().parent)), None)


def base_folder(run: Run) -> Path | None:
    """The folder of the run that a chat run was made from; None for any other run."""
    base = run.part("run").get("base")
    made = run.kind == "chat" and isinstance(base, dict) and base.get("run")
    return run.folder.resolve().parent / str(base["run"]) if made else None


def _newest_first(runs: Path) -> Iterator[Run]:
    """The runs in a folder of runs, the newest first; those only just starting, or damaged, are passed over."""
    for path in sorted(runs.glob("*/config.yaml"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            yield load_run(path.parent)
        except (ValueError, OSError):
            continue


def _read(path: Path, parse: Callable[[str], object]) -> dict:
    """A file that holds one mapping."""
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; takes the folder of a run") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged ({' '.join(str(error).split())})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: got {type(value).__name__}, takes a mapping")
    return value


def _column(lines: list[dict], name: str) -> np.ndarray:
    values = (line.get(name) for line in lines)
    return np.array([value if isinstance(value, int | float) else np.nan for value in values], dtype=float)
