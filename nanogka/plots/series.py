"""Series of a run that figures and pages draw. Imports no matplotlib."""

import numpy as np

from nanogka.runs import METRICS, Run, column


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


def subsample(length: int, most: int) -> np.ndarray:
    """Return at most `most` evenly spread indices below `length`, including the first and the last: (n,) int64."""
    return np.linspace(0, length - 1, min(length, most)).round().astype(int)
