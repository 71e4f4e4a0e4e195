"""A run that can start, and the run's folder: resume, start or refuse.

Pretraining (`nanogka.train.setup`), fine-tuning on conversations (`nanogka.train.chat`) and images
(`nanogka.vision.run`) share the loop. They differ in model, data, loss and optimizer: the methods of a `RunContext`.
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
from nanogka.common.cli import flag_name
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.runtime import Hardware
from nanogka.model import mixer_options
from nanogka.runs import CONFIG, METRICS, check_metrics, model_config, read_config, read_metrics
from nanogka.train.settings import RunSettings

# Made from a run, kept in its folder.
RESULTS = ("evaluation.json", "chat_evaluation.json", "report.md", "report.html")
RESULTS += ("plots", "visualization", "maps", "profile")
# Fingerprints of data in config.yaml: the flag that names it, and the meaning of a difference.
DATA_FINGERPRINTS = {
    "corpus": ("data", "other text, or its files have changed"),
    "footers": ("data", "the same files with other contents"),
    "tokenizer": ("tokenizer", "another vocabulary"),
    "data": ("data", "other pictures"),
}
LossFunction = Callable[[Tensor, Tensor], Tensor]  # of the inputs and targets of a micro-batch


class Optimizer(Protocol):
    """The loop's view of the optimizers of a run, whatever they are and on however many ranks."""

    def reduce_gradients(self, loss: Tensor) -> tuple[float, list[float]]:
        """Average the gradients over ranks; returns their norm and the losses whose mean the ranks share."""

    def zero_grad(self) -> None: ...

    def step(self) -> None:
        """Update the weights and drop the gradients."""

    def state_dict(self) -> dict | None: ...

    def load_state_dict(self, saved: dict) -> None: ...


@dataclass(frozen=True)
class Entry:
    """The folder of a run, not created yet, and the place in it where training begins."""

    folder: Path
    resume_from: Path | None  # the checkpoint; None starts anew
    found: tuple[str, ...]  # names of the checkpoints in the folder
    notes: tuple[str, ...] = ()  # lines for the user


@dataclass(kw_only=True)
class RunContext(ABC):
    """A run that can start. A kind of run implements the abstract methods."""

    settings: RunSettings  # with everything filled in that decides the losses
    ranks: Ranks
    device: torch.device
    dtype: torch.dtype
    hardware: Hardware
    entry: Entry
    num_iterations: int  # updates in all
    # Rows per device and micro-batch; `fit_batch` lowers it if they do not fit. None where the settings alone decide.
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
        return self.entry.folder

    @property
    def resume_from(self) -> Path | None:
        return self.entry.resume_from

    @property
    def complete(self) -> bool:
        """True if the last step was saved and, since a crash may come between, evaluated."""
        last = self.num_iterations
        if self.resume_from is None or step_of(self.resume_from) != last:
            return False
        return any(line["kind"] == "eval" and line["step"] == last for line in read_metrics(self.folder / METRICS))

    # ---- what learns, and by which rule ----

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The model with initial weights, on the device."""

    @abstractmethod
    def build_optimizer(self, model: nn.Module) -> Optimizer: ...

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
        """Take weights that `state_dict` gave; `source` names them in a ValueError if they are another model's."""
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


def find_entry(settings: RunSettings, folder: Path, model: dict, fingerprints: Mapping[str, str | None]) -> Entry:
    """The run's folder and the start in it; `settings` and `model` as config.yaml has them.

    Raises ValueError where checkpoints or results would be lost without `--overwrite`, where nothing in the folder can
    be used, and where the run in it is another one.
    """
    advice = "--overwrite deletes it, --run NAME makes another"
    try:
        checkpoints = tuple(path.name for path in list_checkpoints(folder / "checkpoints"))
        anew = Entry(folder, None, checkpoints)
        if settings.dry_run or settings.overwrite:
            return anew
        found = [*checkpoints, *(name for name in RESULTS if (folder / name).exists())]
        there = ", ".join(found)
        if not (folder / CONFIG).exists():
            if found:
                raise ValueError(f"--run: {folder} has no {CONFIG}, but holds {there}; {advice}")
            return anew
        if settings.resume == "never":
            if found:
                raise ValueError(f"--run: {folder} holds a run already; --resume auto continues it, {advice}")
            return anew
        refuse_differences(settings, folder, model, fingerprints)
        if not found:
            return anew
        lines = read_metrics(folder / METRICS)
        check_metrics(folder, read_config(folder), lines)
        path, notes = latest_valid(folder / "checkpoints")
    except OSError as error:
        raise ValueError(f"--run: {folder} cannot be read ({error}); it is left as it is") from error
    if path is None:
        why = "".join(f"\n  {note}" for note in notes)
        raise ValueError(f"--run: {folder} has no checkpoint to resume from, but holds {there}; {advice}{why}")
    done = step_of(path)
    if lacking := done - len({line["step"] for line in lines if line["kind"] == "train" and line["step"] <= done}):
        notes.append(f"{METRICS} lacks {lacking} of the {done} steps before")
    return Entry(folder, path, checkpoints, (*notes, f"resuming from {path.name}"))


def refuse_differences(
    settings: RunSettings, folder: Path, model: dict, fingerprints: Mapping[str, str | None]
) -> None:
    """Raise ValueError naming every way in which the run in `folder` is another one.

    `fingerprints`: of the data, by the names of `DATA_FINGERPRINTS`; None for what could not be opened.
    """
    saved = read_config(folder)
    now, before, errors = settings.to_dict(), saved["settings"], Errors()
    for name in now:
        known = name in before or name in mixer_options()  # which the run had not if its file does not say so
        differs = known and name not in settings.free_on_resume and before.get(name) != now[name]
        errors.require(not differs, flag_name(name), now[name], f"{before.get(name)!r}, as {folder} has")
    for name, here in fingerprints.items():
        flag, difference = DATA_FINGERPRINTS[name]
        if name == "footers" and any(line.startswith("--data:") for line in errors.lines):
            continue  # it is another corpus altogether
        there = (saved.get("run") or {}).get(name)
        if here and there and here != there:
            errors.lines.append(
                f"--{flag}: got {now[flag]!r} ({here[:12]}…), expected what {folder} was trained with, "
                f"{before.get(flag)!r} ({there[:12]}…): it is {difference}"
            )
    other = saved["model"]
    if "mixer_pattern" in model:  # a language model, whose file may lack an option that is younger
        other = model_config(saved, folder).to_dict()
    for name in {**other, **model}:
        same = other.get(name) == model.get(name)
        errors.require(same, f"model {name}", model.get(name), f"{other.get(name)!r}, as {folder} has")
    errors.raise_if_any()
