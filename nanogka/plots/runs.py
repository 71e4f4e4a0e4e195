"""A finished (or stopped) run as its folder tells it: config.yaml, metrics.jsonl, evaluation.json.

Nothing here needs the weights. What a folder does not tell is None, and the report says so.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np
import yaml

from nanogka.model import Accounting, GPTConfig, attention_name, count
from nanogka.runtime import PEAK_FLOPS


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        config: config.yaml, a mapping with `model`, `settings` and `run`.
        lines: metrics.jsonl, one mapping a line.
        evaluation: evaluation.json, empty if there is none.
    """

    folder: Path
    config: dict
    lines: list[dict]
    evaluation: dict

    def part(self, name: str) -> dict:
        """The mapping `name` of config.yaml, empty if it is missing."""
        part = self.config.get(name)
        return part if isinstance(part, dict) else {}

    def fact(self, *names: str) -> object | None:
        """The first of `names` that is recorded, in the metrics' first line, in config.yaml's `run`, `settings` or
        `model`; None if none is."""
        header = next((line for line in self.lines if line.get("kind") == "run"), {})
        for name in names:
            for place in (header, self.part("run"), self.part("settings"), self.part("model")):
                if place.get(name) is not None:
                    return place[name]
        return None

    @property
    def tag(self) -> str:
        """The run's name: its folder's."""
        return self.folder.name

    @cached_property
    def train(self) -> list[dict]:
        """The training lines, by step."""
        return sorted((line for line in self.lines if line.get("kind") == "train"), key=lambda line: line["step"])

    @cached_property
    def evals(self) -> list[dict]:
        """The validation lines, by step."""
        return sorted((line for line in self.lines if line.get("kind") == "eval"), key=lambda line: line["step"])

    @cached_property
    def gpt_config(self) -> GPTConfig | None:
        """The model's configuration, None if config.yaml does not hold a valid one."""
        if not self.part("model"):
            return None
        try:
            return GPTConfig(**self.part("model"))
        except (TypeError, ValueError):
            return None

    @cached_property
    def accounting(self) -> Accounting | None:
        """Parameters and FLOPs, counted from the configuration."""
        return count(self.gpt_config) if self.gpt_config else None

    @property
    def attention(self) -> str:
        """The mixer's name, a pattern of mixers, or `unknown`."""
        if self.gpt_config:
            return attention_name(self.gpt_config.mixer_pattern)
        return str(self.fact("attention") or "unknown")

    @property
    def depth(self) -> int | None:
        """Number of layers."""
        return self.fact("n_layer", "depth")

    @property
    def parameters(self) -> int | None:
        """Number of parameters."""
        if self.accounting:
            return self.accounting.total_parameters
        recorded = self.fact("parameters")
        return recorded if isinstance(recorded, int) else None

    @property
    def flops_per_token(self) -> int | None:
        """Of training: forward and backward."""
        return self.accounting.flops_per_token if self.accounting else self.fact("flops_per_token")

    @property
    def planned_steps(self) -> int | None:
        """Steps of the whole run."""
        return self.fact("num_iterations")

    @property
    def finished(self) -> bool:
        """Whether training reached its last step."""
        return bool(self.train) and self.planned_steps is not None and self.train[-1]["step"] >= self.planned_steps

    def column(self, name: str) -> np.ndarray:
        """(N,) float64: `name` in every training line, NaN where it is missing."""
        return _column(self.train, name)

    def last(self, name: str) -> float | None:
        """`name` in the last training line."""
        return self.train[-1].get(name) if self.train else None

    def median_of(self, name: str) -> float | None:
        """Median of `name` over all training lines, None if no line has it."""
        values = [line[name] for line in self.train if isinstance(line.get(name), int | float)]
        return float(median(values)) if values else None

    @property
    def tokens_per_second(self) -> float | None:
        """Median over the training lines: steps that waited (the first, say) do not move it."""
        return self.median_of("tokens_per_second")

    @property
    def training_seconds(self) -> float | None:
        """Sum of the steps' durations; validation and saving are not in it."""
        values = self.column("seconds")
        return float(np.nansum(values)) if np.isfinite(values).any() else None

    @property
    def hardware(self) -> str | None:
        """What it ran on, as people call it."""
        found = self.fact("hardware", "hardware_name", "device_name")
        return str(found.get("name")) if isinstance(found, dict) else found and str(found)

    @property
    def model_flops_utilisation(self) -> float | None:
        """Median FLOP/s over the devices' peak; None where the peak is not known."""
        recorded, rate = self.median_of("mfu"), self.median_of("flops_per_second")
        if recorded is not None or rate is None:
            return recorded
        peak = self.fact("peak_flops") or next((f for p, f in PEAK_FLOPS.items() if p in (self.hardware or "")), None)
        devices = self.fact("world_size", "devices") or 1
        return rate / (peak * devices) if isinstance(peak, int | float) and isinstance(devices, int) else None

    def validation(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, FLOPs and validation BPB of every validation: (E,) float64 each."""
        return tuple(_column(self.evals, name) for name in ("tokens", "flops", "val_bpb"))

    @property
    def last_validation(self) -> float | None:
        """Validation BPB that training measured last."""
        return self.evals[-1].get("val_bpb") if self.evals else None

    @property
    def evaluated(self) -> dict:
        """BPB by split (`train`, `val`) that the evaluation measured; empty if there was none."""
        found = self.evaluation.get("bpb")
        return found if isinstance(found, dict) else {}

    @property
    def validation_bpb(self) -> float | None:
        """Validation BPB of the trained model: the evaluation's, else what training measured last."""
        found = self.evaluated.get("val")
        return self.last_validation if found is None else found

    @property
    def scored_bytes(self) -> int | None:
        """How many bytes of validation text the evaluation scored."""
        counts = self.evaluation.get("bpb_counts")
        split = counts.get("val") if isinstance(counts, dict) else None
        return split.get("bytes") if isinstance(split, dict) else None

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
        """First value of every σ."""
        config = self.gpt_config
        return (config.bandwidth_init or config.head_dim**0.25) if config else None


def load_run(folder: Path) -> Run:
    """Read a run's folder.

    Raises:
        ValueError: if there is no training in it or a file is damaged; the text names the file.
    """
    config = _read(folder / "config.yaml", yaml.safe_load, (yaml.YAMLError, ValueError))
    path = folder / "metrics.jsonl"
    lines = _read_metrics(path)
    if not any(line.get("kind") == "train" for line in lines):
        raise ValueError(f"{path}: no training lines in it; train first with `python -m scripts.base_train`")
    evaluation = {}
    if (folder / "evaluation.json").exists():
        evaluation = _read(folder / "evaluation.json", json.loads, (ValueError,))
    return Run(folder, config, lines, evaluation)


def _read(path: Path, parse, errors: tuple[type[Exception], ...]) -> dict:
    """A file that holds one mapping."""
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; takes the folder of a run") from None
    except errors as error:
        raise ValueError(f"{path}: damaged ({' '.join(str(error).split())})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: got {type(value).__name__}, takes a mapping")
    return value


def _read_metrics(path: Path) -> list[dict]:
    """The lines of a metrics file. A last line that a crash cut short is left out."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; train first with `python -m scripts.base_train`")
    texts = path.read_text(encoding="utf-8").split("\n")
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text) if text.strip() else None
        except ValueError as error:
            if number == len(texts):  # no line end after it: the write was interrupted
                continue
            raise ValueError(f"{path}: line {number} is damaged ({error})") from error
        if line is not None:
            if not isinstance(line, dict) or not isinstance(line.get("step"), int):
                raise ValueError(f"{path}: line {number}: got {text[:60]!r}, takes a mapping with `kind` and `step`")
            lines.append(line)
    return lines


def _column(lines: list[dict], name: str) -> np.ndarray:
    values = (line.get(name) for line in lines)
    return np.array([value if isinstance(value, int | float) else np.nan for value in values], dtype=float)
