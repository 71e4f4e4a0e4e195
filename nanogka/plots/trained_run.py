"""The data of a trained run that reports and plots read."""

from functools import cached_property
from pathlib import Path

import numpy as np

from nanogka.runs import METRICS, Run, column


class TrainedRun(Run):
    """A run with at least one training line. A value that its folder does not hold is None or empty."""

    @classmethod
    def open(cls, folder: Path) -> "TrainedRun":
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
    def model_flops_utilization(self) -> float | None:
        """Median FLOP/s divided by the peak of all devices; None if the peak is unknown."""
        rate, peak, devices = self.median("flops_per_second"), self.fact("peak_flops"), self.fact("world_size") or 1
        return rate / (peak * devices) if rate and peak else None

    @property
    def tasks(self) -> list[dict]:
        """The tasks of the last evaluation."""
        return self.evaluation.get("tasks") or []

    def evaluated_bpb(self, split: str) -> float | None:
        """Bits per byte of a split, from the last evaluation."""
        return (self.evaluation.get("bpb") or {}).get(split)

    @property
    def last_validation(self) -> float | None:
        """Last validation bits per byte measured during training."""
        return self.validations[-1].get("val_bpb") if self.validations else None

    @property
    def validation_bpb(self) -> float | None:
        """Validation bits per byte of the evaluation, or the last one during training if there is no evaluation."""
        found = self.evaluated_bpb("val")
        return self.last_validation if found is None else found

    @cached_property
    def bandwidths(self) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """`sigma_over_training` of this run."""
        return sigma_over_training(self)


def sigma_over_training(run: Run) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return tokens (N,), σ (N, layers, heads), and the indices of the layers with a bandwidth. Empty without any."""
    lines = [line for line in run.train if line.get("bandwidth")]
    if not lines:
        return np.zeros(0), np.zeros((0, 0, 0)), []
    try:
        sigma = np.array([line["bandwidth"] for line in lines], dtype=float)
    except ValueError as error:
        raise ValueError(f"{run.folder / METRICS}: the lines have `bandwidth` of different shapes") from error
    return column(lines, "tokens"), sigma, list(lines[0].get("bandwidth_layers") or range(sigma.shape[1]))
