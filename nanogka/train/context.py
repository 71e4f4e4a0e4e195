"""A run that can start, and the run's folder: resume, start or refuse.

Pretraining (`nanogka.train.setup`), fine-tuning on conversations (`nanogka.train.chat`) and images
(`nanogka.vision.run`) share the loop. They differ in model, data, loss and optimiser: the methods of a `RunContext`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from nanogka.checkpoint import latest_valid, list_checkpoints, load_weights, step_of
from nanogka.cli import flag_name
from nanogka.distributed import Ranks
from nanogka.model import mixer_options
from nanogka.problems import Problems
from nanogka.runs import CONFIG, METRICS, check_metrics, model_config, read_config, read_metrics
from nanogka.runtime import Hardware
from nanogka.train.settings import RunSettings

# Made from a run, kept in its folder.
RESULTS = ("evaluation.json", "chat_evaluation.json", "report.md", "report.html", "plots", "visualization", "maps")
# Fingerprints of data in config.yaml: the flag that names it, and the meaning of a difference.
DATA_FINGERPRINTS = {
    "corpus": ("data", "other text, or its files have changed"),
    "footers": ("data", "the same files with other contents"),
    "tokenizer": ("tokenizer", "another vocabulary"),
    "data": ("data", "other pictures"),
}
LossFunction = Callable[[Tensor, Tensor], Tensor]  # of the inputs and targets of a micro-batch


class Optimizer(Protocol):
    """The loop's view of the optimisers of a run, whatever they are and on however many ranks."""

    def reduce_gradients(self, loss: Tensor) -> tuple[float, list[float]]:
        """Average the gradients over ranks; returns their norm and the losses whose mean the ranks share."""

    def zero_grad(self) -> None:
        """Drop the gradients."""

    def step(self) -> None:
        """Update the weights and drop the gradients."""

    def state_dict(self) -> dict | None:
        """The state that a checkpoint keeps."""

    def load_state_dict(self, saved: dict) -> None:
        """Take a state that `state_dict` gave."""


@dataclass(frozen=True)
class Entry:
    """The folder of a run, not created yet, and the place in it where training begins.

    Attributes:
        resume_from: the checkpoint to resume from; None starts anew.
        found: names of the checkpoints in the folder.
        notes: lines for the user.
    """

    folder: Path
    resume_from: Path | None
    found: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(kw_only=True)
class RunContext(ABC):
    """A run that can start. A kind of run implements the abstract methods.

    Attributes:
        settings: with everything filled in that decides the losses.
        num_iterations: updates in all.
        device_batch_size: rows per device and micro-batch, which `fit_batch` lowers if they do not fit; None where the
            settings alone decide.
    """

    settings: RunSettings
    ranks: Ranks
    device: torch.device
    dtype: torch.dtype
    hardware: Hardware
    entry: Entry
    num_iterations: int
    device_batch_size: int | None = None
    compile: bool = False

    kind = "base"  # as config.yaml names it
    score = "val_bpb"  # the evaluation by which a checkpoint is better than another; lower is better
    period = 1  # steps in the unit of --eval-every and --save-every
    rate_flag = "--lr-scale"  # lowers all learning rates
    accumulation = 1  # micro-batches per step on each device
    repeats_bad_batches = True  # row by row, to name the documents behind a number that is not finite

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.entry.folder

    @property
    def resume_from(self) -> Path | None:
        """The checkpoint to resume from, if any."""
        return self.entry.resume_from

    @property
    def complete(self) -> bool:
        """True if there is nothing left to train or evaluate."""
        return is_complete(self.folder, self.resume_from, self.num_iterations)

    # ---- what learns, and by which rule ----

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The model with initial weights, on the device."""

    @abstractmethod
    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """The optimisers of the model."""

    @abstractmethod
    def build_loss(self, model: nn.Module) -> LossFunction:
        """The function from inputs and targets to the mean loss, through which gradients flow to the model."""

    @abstractmethod
    def set_rates(self, optimizer: Optimizer, step: int) -> dict[str, float]:
        """Set the learning rates of the update after `step`; returns what to log of them."""

    def state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights that a checkpoint keeps."""
        return model.state_dict()

    def load_weights(self, model: nn.Module, weights: dict[str, Tensor], source: str) -> None:
        """Take weights that `state_dict` gave. Raises ValueError naming `source` if they are another model's."""
        load_weights(model, weights, source)

    def initial_weights(self) -> dict[str, Tensor] | None:
        """The weights to begin with, if they are not random."""
        return None

    # ---- what it learns from ----

    @abstractmethod
    def loader(self, state: dict | None, step: int) -> AbstractContextManager:
        """The batches to learn from: from the start, or as a checkpoint of `step` says."""

    def merge_states(self, states: list[dict | None]) -> dict | None:
        """The loader states of all ranks as one."""
        return states[0]

    def locate(self, document: int) -> str:
        """The place of a document that a batch names, for people."""
        return str(document)

    # ---- what is written and shown ----

    @abstractmethod
    def costs(self, step: int, seconds: float | None = None) -> dict[str, float]:
        """Data and compute up to a step, and their rates in a step that took so many seconds."""

    def observe(self, model: nn.Module, batches: list) -> dict[str, object]:
        """Further values to log of a step; all ranks call it."""
        return {}

    @abstractmethod
    def summary(self, values: dict) -> str:
        """A step in half a line, for the progress bar."""

    @abstractmethod
    def model_config(self) -> dict:
        """The model, as config.yaml has it."""

    @abstractmethod
    def facts(self) -> dict:
        """Facts for config.yaml beyond the settings and those of every run."""

    def add_files(self, folder: Path) -> None:  # noqa: B027 - most kinds have none
        """Write the files that this kind of run keeps in its folder beyond those of every run."""

    def settings_as_run(self) -> RunSettings:
        """The settings as config.yaml keeps them."""
        return replace(self.settings, run=self.folder.name)


def find_entry(
    settings: RunSettings,
    folder: Path,
    model: dict,
    fingerprints: Mapping[str, str | None],
    problems: Problems,
) -> Entry | None:
    """The run's folder and the start in it; problems are recorded. `settings`, `model`: as config.yaml has them."""
    resumed: tuple[Path | None, list[str]] | None = (None, [])
    if not settings.dry_run:
        resumed = problems.attempt(
            lambda: find_resume(
                folder,
                settings.resume,
                settings.overwrite,
                lambda: refuse_differences(settings, folder, model, fingerprints),
            )
        )
    if resumed is None:
        return None
    found = tuple(path.name for path in list_checkpoints(folder / "checkpoints"))
    return Entry(folder, resumed[0], found, tuple(resumed[1]))


def find_resume(
    folder: Path, resume: str, overwrite: bool, refuse: Callable[[], None]
) -> tuple[Path | None, list[str]]:
    """The checkpoint to resume from (None: start anew), and notes.

    Refuses to delete checkpoints and results without `--overwrite`, and to continue a run of which nothing can be used
    or that `refuse` raises for.
    """
    if overwrite:
        return None, []
    advice = "--overwrite deletes it, --run NAME makes another"
    try:
        checkpoints = list_checkpoints(folder / "checkpoints")
        found = [path.name for path in checkpoints] + [name for name in RESULTS if (folder / name).exists()]
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
    settings: RunSettings, folder: Path, model: dict, fingerprints: Mapping[str, str | None]
) -> None:
    """Raise ValueError naming every way in which the run in `folder` is another one.

    `fingerprints`: of the data, by the names of `DATA_FINGERPRINTS`; None for what could not be opened.
    """
    saved = read_config(folder)
    now, before, problems = settings.to_dict(), saved["settings"], Problems()
    for name in now:
        known = name in before or name in mixer_options()  # which the run had not if its file does not say so
        differs = known and name not in settings.free_on_resume and before.get(name) != now[name]
        problems.check(not differs, flag_name(name), now[name], f"{before.get(name)!r}, as {folder} has")
    for name, here in fingerprints.items():
        flag, difference = DATA_FINGERPRINTS[name]
        if name == "footers" and any(line.startswith("--data:") for line in problems.lines):
            continue  # it is another corpus altogether
        there = (saved.get("run") or {}).get(name)
        if here and there and here != there:
            problems.lines.append(
                f"--{flag}: got {now[flag]!r} ({here[:12]}…), takes what {folder} was trained with, "
                f"{before.get(flag)!r} ({there[:12]}…): it is {difference}"
            )
    other = saved["model"]
    if "mixer_pattern" in model:  # a language model, whose file may lack an option that is younger
        other = model_config(saved, folder).to_dict()
    for name in {**other, **model}:
        same = other.get(name) == model.get(name)
        problems.check(same, f"model {name}", model.get(name), f"{other.get(name)!r}, as {folder} has")
    problems.raise_any()


def is_complete(folder: Path, resume_from: Path | None, last: int) -> bool:
    """True if step `last` was saved and, since a crash may come between, evaluated."""
    if resume_from is None or step_of(resume_from) != last:
        return False
    return any(line["kind"] == "eval" and line["step"] == last for line in read_metrics(folder / METRICS))
