"""The data of a trained run that reports and plots read, and its comparison with other runs."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nanogka.common.cli import flags_of
from nanogka.plots.series import sigma_over_training
from nanogka.runs import CONFIG, METRICS, Run, column, find_run, open_latest, trained_at
from nanogka.train.settings import TrainSettings, complete_settings

if TYPE_CHECKING:
    from typing_extensions import Self

MACHINE = ("hardware", "world_size", "device", "dtype", "compiled", "torch")


class TrainedRun(Run):
    """A run with at least one training line. A value that its folder does not hold is None or empty."""

    @classmethod
    def open(cls, folder: Path) -> "Self":
        """Read a run's folder. Raises ValueError naming a file that is damaged or has no training lines."""
        run = super().open(folder)
        if not run.train:
            raise ValueError(f"{folder / METRICS}: no training lines; train first with `python -m scripts.base_train`")
        _ = run.evaluation, run.bandwidths  # fail before anything is written
        return run

    @property
    def finished(self) -> bool:
        """True if the run has reached its last step."""
        planned = self.fact("num_iterations")
        return isinstance(planned, int) and self.train[-1]["step"] >= planned

    def last(self, name: str) -> float | None:
        """Value `name` of the last training line."""
        return self.train[-1].get(name)

    def validation(self, name: str) -> np.ndarray:
        """Value `name` of each validation, (N,) float."""
        return column(self.validations, name)

    @property
    def training_seconds(self) -> float | None:
        """Seconds in training steps."""
        values = self.column("seconds")
        return float(np.nansum(values)) if np.isfinite(values).any() else None

    @property
    def tasks(self) -> list[dict]:
        """The tasks of the last evaluation."""
        return self.evaluation.get("tasks") or []

    def evaluated_bpb(self, split: str) -> float | None:
        """Bits per byte of a split, from the last evaluation."""
        return (self.evaluation.get("bpb") or {}).get(split)

    def measured(self, split: str, name: str) -> int | bool | None:
        """Fact of the last evaluation about the sample behind the bits per byte of a split: `tokens`, `learned`, …"""
        counts = self.evaluation.get("bpb_counts")
        part = counts.get(split) if isinstance(counts, dict) else None
        return part.get(name) if isinstance(part, dict) else None

    def interval(self, split: str) -> tuple[float, float] | None:
        """The 95 % interval of the bits per byte of a split, from the last evaluation."""
        intervals = self.evaluation.get("bpb_intervals")
        ends = intervals.get(split) if isinstance(intervals, dict) else None
        return (float(ends[0]), float(ends[1])) if isinstance(ends, list) and len(ends) == 2 else None

    @cached_property
    def validation_documents(self) -> tuple[str, dict[int, tuple[float, float]]]:
        """The corpus (its fingerprint) and {number of a validation document: (nats, bytes)} of the last evaluation."""
        found = self.evaluation.get("val_documents") or {}
        try:
            rows = zip(found["number"], found["nats"], found["bytes"], strict=True)
            return str(found["corpus"]), {int(number): (float(nats), float(size)) for number, nats, size in rows}
        except (KeyError, TypeError, ValueError):  # an earlier version wrote the evaluation, or it has no text
            return "", {}

    @property
    def last_validation_tokens(self) -> int | None:
        """Number of tokens behind `last_validation`."""
        return self.validations[-1].get("val_tokens") if self.validations else None

    @property
    def last_validation(self) -> float | None:
        """Last validation bits per byte measured during training."""
        return self.validations[-1].get("val_bpb") if self.validations else None

    @cached_property
    def bandwidths(self) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """`sigma_over_training` of this run."""
        return sigma_over_training(self)


# ---- other runs ----


def open_report_run(given: str | None, flag: str = "run") -> TrainedRun:
    """Find the run that a flag names, or the latest base run. A chat run is replaced by its base run."""
    found = TrainedRun.open(find_run(given, flag=flag)) if given else open_latest(TrainedRun.open, "base")
    base = found.base_folder
    return found if base is None else TrainedRun.open(base)


def find_chat_run(run: TrainedRun) -> TrainedRun | None:
    """Return the newest trained chat run in the same folder that was fine-tuned from `run`."""
    folder = run.folder.resolve()
    others = [path.parent for path in folder.parent.glob(f"*/{CONFIG}")]
    for other in sorted(others, key=lambda one: trained_at(one) or (0.0, 0.0), reverse=True):
        try:
            base = Run.open(other).base_folder
            if base is not None and base.resolve() == folder:
                return TrainedRun.open(other)
        except (ValueError, OSError):  # damaged, or not trained yet
            continue
    return None


def check_comparable(run: TrainedRun, other: TrainedRun) -> None:
    """Raise ValueError if two runs cannot be compared: they are one run, or their text or vocabulary differs."""
    if run.folder.resolve() == other.folder.resolve():
        raise ValueError(f"compare: got {other.tag!r}, expected another run than --run")
    # Bits per byte depend on the text, and a tokenizer decides where documents are cut.
    for fact, name in (("corpus", "text"), ("tokenizer", "tokenizer")):
        one, two = (str(r.part("run").get(fact) or "") for r in (run, other))
        if one and two and one != two:
            raise ValueError(
                f"compare: got {other.tag!r}, whose {name} has the fingerprint {two[:12]}, expected the {name} of "
                f"{run.tag!r}, {one[:12]}: bits per byte of different text do not compare"
            )


def differing_settings(one: TrainedRun, other: TrainedRun) -> dict[str, tuple[object, object]]:
    """Return the settings in which two runs differ, except the mixer, as {name: (value, value)}.

    A setting that is missing in an older run had today's default.
    """
    first, second = (complete_settings(run.part("settings")) for run in (one, other))
    flags = flags_of(TrainSettings)
    # The mixer is what people compare. What a setting leads to is compared in its place, such as the number of steps.
    left_out = {name for name, one in flags.items() if one.affects != "losses" or one.through} | {"attention"}
    pairs = {name: (first.get(name), second.get(name)) for name in {*first, *second} - left_out}
    pairs |= {name: (one.fact(name), other.fact(name)) for name in ("n_layer", "total_batch_size", "num_iterations")}
    return {name: pair for name, pair in sorted(pairs.items()) if pair[0] != pair[1]}


def same_machine(one: TrainedRun, other: TrainedRun) -> bool:
    """Return whether the speeds are comparable: both ran on the same machine in the same way."""
    return all(one.part("run").get(name) == other.part("run").get(name) for name in MACHINE)
