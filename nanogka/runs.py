"""Read a run's folder: find the run, then its configuration, metrics, evaluation and trained model."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import yaml
from typing_extensions import NotRequired, TypedDict  # pydantic needs these before Python 3.12

from nanogka.checkpoint import (
    MANIFEST,
    STATE,
    WEIGHTS,
    check_finite,
    check_weights,
    latest_valid,
    list_checkpoints,
    read_weights,
    step_of,
    verify_checkpoint,
)
from nanogka.common.files import (
    atomic_write,
    base_dir,
    expand_path,
    first_line,
    read_bytes,
    read_json,
    read_text,
    read_yaml,
)
from nanogka.common.formatting import as_started, one_line, say
from nanogka.model import GPT, MIXERS, GPTConfig, ModelCosts, attention_name, model_costs
from nanogka.tokenizer import Tokenizer, check_text

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

CONFIG, METRICS, EXAMPLES = "config.yaml", "metrics.jsonl", "examples.json"
MAX_EXAMPLES, MAX_EXAMPLE_CHARS, MAX_EXAMPLES_BYTES = 8, 200, 2**20
EXAMPLES_SHOWN, LONGEST_SHOWN = 4, 80  # of an evaluation: questions, characters of a question
FILES_TO_VERIFY = (WEIGHTS, STATE)  # not the optimizer's file, which is the largest and not read here
EVALUATIONS = {"base": "evaluation.json", "chat": "chat_evaluation.json"}  # {kind of run: file}


@dataclass(frozen=True)
class Run:
    """A run's folder, whose files are read on first use."""

    folder: Path
    config: dict  # see `read_config`

    @classmethod
    def open(cls, folder: Path) -> "Self":
        """Read config.yaml of a folder. Raises ValueError if it is missing, damaged, or has no model that we know."""
        run = cls(folder, read_config(folder))
        _ = run.gpt_config
        return run

    def part(self, name: str) -> dict:
        """The section `run`, `settings` or `model` of config.yaml, empty if it is missing."""
        return self.config.get(name) or {}

    def fact(self, name: str) -> Any:
        """The value `name` of the section `run`, `settings` or `model`, in this order."""
        return next((v for p in ("run", "settings", "model") if (v := self.part(p).get(name)) is not None), None)

    @property
    def tag(self) -> str:
        """The name of the folder, safe to print."""
        return one_line(self.folder.resolve().name)

    @property
    def kind(self) -> str:
        """`base` for a model that continues text, `chat` for one that replies."""
        return str(self.part("run").get("kind") or "base")

    @property
    def base_folder(self) -> Path | None:
        """The folder of the run that a chat run was fine-tuned from; None if this is no chat run, or does not say it.

        A base run outside of the runs' folder is known by its path. Others are next to this run (where the folder's
        name says it is, or where a link leads), or in the runs' folder, if this run has left it.
        """
        base = self.part("run").get("base")
        if self.kind != "chat" or not isinstance(base, dict) or not base.get("run"):
            return None
        names = [str(name) for name in (self.part("settings").get("base"), base["run"]) if name]
        places = (self.folder.absolute().parent, self.folder.resolve().parent, base_dir() / "runs")
        found = [place / name for name in names for place in places]
        return next((folder for folder in found if (folder / CONFIG).is_file()), found[-1])

    def state(self, step: int) -> dict:
        """The state of the training loop in the checkpoint of a step. Raises OSError or ValueError if there is none."""
        return read_json(self.folder / "checkpoints" / f"step_{step:06d}" / STATE)

    @cached_property
    def lines(self) -> list[dict]:
        """All lines of metrics.jsonl."""
        return read_metrics(self.folder / METRICS)

    @cached_property
    def train(self) -> list[dict]:
        """The training lines, by step."""
        return self._lines("train")

    @cached_property
    def validations(self) -> list[dict]:
        """The validation lines, by step."""
        return self._lines("eval")

    def _lines(self, kind: str) -> list[dict]:
        return sorted((line for line in self.lines if line["kind"] == kind), key=lambda line: line["step"])

    @cached_property
    def evaluation(self) -> dict:
        """The results of base_eval or chat_eval, empty if there are none. Raises ValueError if they are damaged."""
        import pydantic  # here, because most readers of a run need no evaluation

        path = self.folder / EVALUATIONS.get(self.kind, EVALUATIONS["base"])
        document = read_json(path) if path.exists() else {}
        try:
            pydantic.TypeAdapter(_Evaluation).validate_python(document, strict=True)
        except pydantic.ValidationError as error:
            fault = error.errors()[0]
            raise ValueError(f"{path}: damaged, {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
        return document

    @property
    def promise(self) -> str:
        """A sentence on what a chat run can do; empty if its conversations promise nothing."""
        return str(self.part("run").get("promise", ""))

    @cached_property
    def examples(self) -> list[str]:
        """Questions that show what a chat run learned; [] for a run that has none.

        They are held-out questions. After an evaluation they are those of its questions that the model answered
        rightly, one of each task. The file may come from another person: of its texts, the first few that a page can
        show are taken.
        """
        right = [reply["prompt"] for reply in self._first_right_replies() if len(reply["prompt"]) <= LONGEST_SHOWN]
        if right:
            return right[:EXAMPLES_SHOWN]
        try:
            found = json.loads(read_text(self.folder / EXAMPLES, MAX_EXAMPLES_BYTES))
            texts = (
                [text for text in found if isinstance(text, str) and text.strip()] if isinstance(found, list) else []
            )
            return [check_text(text) for text in texts if len(text) <= MAX_EXAMPLE_CHARS][:MAX_EXAMPLES]
        except (OSError, ValueError, RecursionError):  # a run needs no examples
            return []

    def _first_right_replies(self) -> list[dict]:
        """The first right reply of each task of a chat evaluation."""
        try:
            tasks = self.evaluation.get("tasks") or [] if self.kind == "chat" else []
        except ValueError:  # a run needs no examples
            return []
        found = ([reply for reply in task.get("replies") or [] if reply.get("right")] for task in tasks)
        return [replies[0] for replies in found if replies]

    @cached_property
    def gpt_config(self) -> GPTConfig:
        """The model's configuration."""
        return model_config(self.config, self.folder)

    @cached_property
    def accounting(self) -> ModelCosts:
        """Parameters and FLOPs of the model."""
        return model_costs(self.gpt_config)

    @property
    def attention(self) -> str:
        """The mixer's name, or the pattern of a hybrid."""
        return attention_name(self.gpt_config.mixer_pattern)

    @property
    def label(self) -> str:
        """The name of the attention in reports and plots."""
        return MIXERS[self.attention].label if self.attention in MIXERS else f"hybrid {self.attention}"

    def column(self, name: str) -> np.ndarray:
        """(N,) float: the value `name` of each training line."""
        return column(self.train, name)

    def median(self, name: str) -> float | None:
        """Median over the training lines. The first, slow steps of a compiled model do not affect it."""
        values = self.column(name)
        return float(np.nanmedian(values)) if np.isfinite(values).any() else None

    @property
    def bandwidth_start(self) -> float:
        """The initial value of every σ."""
        return self.gpt_config.bandwidth_init or self.gpt_config.head_dim**0.25

    def saved(self, step: int | None = None, flag: str = "step") -> "SavedRun":
        """Choose the checkpoint at `step`, or the newest valid one. `flag` names the step in errors."""
        path, tokenizer = find_checkpoint(self.folder, step, flag), load_tokenizer_of(self.folder, self.config)
        if tokenizer.vocab_size > self.gpt_config.vocab_size:
            raise ValueError(
                f"run: {self.folder / 'tokenizer'} has {tokenizer.vocab_size:,} ids, expected at most the "
                f"{self.gpt_config.vocab_size:,} of the model"
            )
        return SavedRun(self.folder, self.config, tokenizer, step_of(path), path)

    def load(
        self, device: torch.device | str = "cpu", step: int | None = None, dtype: torch.dtype | None = None
    ) -> "LoadedRun":
        """Load the model, in eval mode on `device`, and the tokenizer; see `load_run`."""
        saved = self.saved(step)
        folder, path = self.folder, saved.checkpoint_folder
        weights = read_weights(path, device)
        try:
            with torch.device("meta"):
                model = GPT(self.gpt_config)
        except RuntimeError as error:  # sizes that no tensor can have
            raise ValueError(f"run: {folder / CONFIG} has no model: {first_line(error)}") from error
        check_weights(model, weights, f"run: {path}")  # before a forged size takes memory
        check_finite(weights, f"run: {path}")
        # `to_empty` would import sympy, which takes half a second.
        model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=device))
        model.load_state_dict(weights)
        del weights  # before `to_compute` makes another copy
        model.to_compute(dtype or torch.float32).eval()
        return LoadedRun(folder, self.config, saved.tokenizer, saved.step, path, model)


@dataclass(frozen=True)
class SavedRun(Run):
    """A run and one of its checkpoints."""

    tokenizer: Tokenizer
    step: int
    checkpoint_folder: Path


@dataclass(frozen=True)
class LoadedRun(SavedRun):
    """A run with the model of one of its checkpoints."""

    model: GPT


def load_run(
    run: str | Path | None = None,
    device: torch.device | str = "cpu",
    step: int | None = None,
    dtype: torch.dtype | None = None,
    kind: str | None = None,
    prefer: str | None = None,
) -> LoadedRun:
    """Load a trained model and its tokenizer.

    The latest run that can be loaded is used if neither `run` nor `step` is given, and the newest valid checkpoint if
    no `step` is. `dtype` is that of computation (None: float32). `kind` and `prefer` limit and order the runs, see
    `open_latest`. Raises ValueError naming the run or checkpoint.
    """
    if run is None and step is None:
        return open_latest(lambda folder: Run.open(folder).load(device, None, dtype), kind, prefer)
    return Run.open(find_run(run, kind, prefer=prefer)).load(device, step, dtype)


def open_latest(read: Callable[[Path], T], kind: str | None = None, prefer: str | None = None) -> T:
    """Try the runs of `kind` from the latest to the first and return the first result of `read`.

    Runs of the kind `prefer` come before all others. Each skipped run gets a note.
    """
    first: Exception | None = None
    for folder in latest_runs(kind, prefer):
        try:
            return read(folder)
        except torch.OutOfMemoryError:  # an older run would not fit either
            raise
        except Exception as error:  # another person's run may fail in any way
            first = first or error
            say(f"skipped: {first_line(error)}")
    if first is not None:
        raise first
    return read(find_run(None, kind))


def find_run(
    run: str | Path | None = None, kind: str | None = None, flag: str = "run", prefer: str | None = None
) -> Path:
    """The folder of a run: `run` is a folder, a tag under base_dir()/runs, or None for the latest run of `kind`.

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
    found = next(latest_runs(kind, prefer), None)
    if found is None:
        which = "trained run" if kind is None else f"trained {kind} run"
        raise ValueError(f"{flag}: no {which} under {runs}; {hint}")
    return found


def latest_runs(kind: str | None = None, prefer: str | None = None, runs: Path | None = None) -> Iterator[Path]:
    """The runs of a kind that have a checkpoint: those of the kind `prefer` first, then by the end of their training.

    `runs` is their folder, by default base_dir()/runs.
    """
    folders = [config.parent for config in (runs or base_dir() / "runs").glob(f"*/{CONFIG}")]
    ends = {folder: end for folder in folders if (end := trained_at(folder))}
    others = []
    for folder in sorted(ends, key=ends.__getitem__, reverse=True):
        try:
            found = Run.open(folder).kind
        except ValueError as error:
            say(f"skipped: {first_line(error)}")
            continue
        if kind in (None, found) and prefer in (None, found):
            yield folder
        elif kind in (None, found):
            others.append(folder)
    yield from others


def trained_at(folder: Path) -> tuple[float, float] | None:
    """Time at which a run's newest checkpoint was made, in seconds since 1970, and that of its file; None without one.

    A copy of a folder has new file times. They decide only for runs whose checkpoints do not say when they were made.
    """
    with suppress(OSError):
        for path in reversed(list_checkpoints(folder / "checkpoints")):
            if (path / MANIFEST).is_file():
                written, saved = (path / MANIFEST).stat().st_mtime, None
                with suppress(ValueError):
                    saved = read_json(path / STATE).get("saved")
                return (saved if isinstance(saved, int | float) and math.isfinite(saved) else written), written
    return None


def write_config(folder: Path, config: dict) -> None:
    """Write a run's config.yaml."""
    atomic_write(folder / CONFIG, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


def read_config(folder: Path) -> dict:
    """The content of a run's config.yaml: mappings `model`, `settings` and, except in old runs, `run`."""
    path = folder / CONFIG
    try:
        content = read_yaml(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"run: {error}") from error
    parts = content if isinstance(content, dict) else {}
    if not (isinstance(parts.get("settings"), dict) and isinstance(parts.get("model"), dict)):
        raise ValueError(f"run: {path} cannot be used (it has no settings and model)")
    if not isinstance(parts.get("run", {}), dict):
        raise ValueError(f"run: {path} cannot be used (`run` is not a mapping)")
    return content


def read_metrics(path: Path) -> list[dict]:
    """The lines of a metrics file. Damaged ones, such as a last line that a crash cut, are left out with a note."""
    lines, damaged = [], 0
    for text in read_bytes(path).splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if isinstance(line, dict) and "kind" in line and type(line.get("step")) is int:
            lines.append(line)
        else:
            damaged += 1
    if damaged:
        say(f"{path}: {damaged} damaged lines left out")
    return lines


def find_checkpoint(folder: Path, step: int | None = None, flag: str = "step") -> Path:
    """The checkpoint at `step`, or the newest valid one. Each newer, damaged one gets a note."""
    checkpoints = folder / "checkpoints"
    if step is None:
        path, notes = latest_valid(checkpoints, FILES_TO_VERIFY)
        if path is None:
            raise ValueError("\n".join([f"run: {folder} has no usable checkpoint", *notes]))
        for note in notes:
            say(f"{folder.name}: {note}; using {path.name} instead")
        return path
    path = checkpoints / f"step_{step:06d}"
    if not path.is_dir():
        steps = ", ".join(str(step_of(p)) for p in list_checkpoints(checkpoints)) or "none"
        raise ValueError(f"{flag}: got {step}, expected a saved step of {folder}: {steps}")
    if reason := verify_checkpoint(path, FILES_TO_VERIFY):
        raise ValueError(f"{flag}: checkpoint {path} is unusable: {reason}")
    return path


def model_config(config: dict, folder: Path) -> GPTConfig:
    """The model's configuration in a run's config.yaml. Raises ValueError naming the file."""
    try:
        return GPTConfig.from_dict(config["model"])
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"run: {folder / CONFIG} has no model that this version knows: {error}") from error


def load_tokenizer_of(folder: Path, config: dict) -> Tokenizer:
    """The tokenizer of a run. Raises ValueError if its fingerprint is not the one in config.yaml."""
    tokenizer = Tokenizer.load(folder / "tokenizer")
    expected = (config.get("run") or {}).get("tokenizer", tokenizer.fingerprint)
    if tokenizer.fingerprint != expected:
        raise ValueError(
            f"run: {folder / 'tokenizer'} is another tokenizer ({tokenizer.fingerprint[:12]}…) than the run was "
            f"trained with ({str(expected)[:12]}…)"
        )
    return tokenizer


def column(lines: list[dict], name: str) -> np.ndarray:
    """(N,) float: the value `name` of each line, nan where it is missing."""
    values = (line.get(name) for line in lines)
    return np.array([value if isinstance(value, int | float) else np.nan for value in values], dtype=float)


class _Reply(TypedDict):
    prompt: str


class _Task(TypedDict):
    name: str
    accuracy: float
    chance: NotRequired[float | None]
    items: NotRequired[float | None]
    replies: NotRequired[list[_Reply] | None]


class _Evaluation(TypedDict):
    """The parts of an evaluation's document that are read without further checks."""

    bpb: NotRequired[dict[str, float | None] | None]
    tasks: NotRequired[list[_Task] | None]
    samples: NotRequired[list[dict] | None]
