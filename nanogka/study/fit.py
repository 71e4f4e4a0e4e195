"""Scaling laws: L = E + A · C^−α through the losses of several sizes, with a band that the seeds' spread gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

STARTS = (0.05, 0.2, 0.6)  # of α
DRAWS = 200
BAND = (5, 95)  # percentiles
STEEPEST = 4.0  # largest α


@dataclass(frozen=True)
class PowerLaw:
    """L(C) = floor + factor · (C / unit)^−exponent, with C in FLOPs; `unit` keeps the factor within a float's reach."""

    floor: float
    factor: float
    exponent: float
    unit: float

    def __call__(self, compute: np.ndarray | float) -> np.ndarray | float:
        """The loss at so many FLOPs."""
        return self.floor + self.factor * (compute / self.unit) ** -self.exponent


@dataclass(frozen=True)
class Scaling:
    """The law of one family, and the laws that resampled losses give: none where no size has two seeds."""

    law: PowerLaw
    resampled: list[PowerLaw]

    def band(self, compute: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The 5th and 95th percentile of the loss at each of `compute` (N,)."""
        if not self.resampled:
            return None
        low, high = np.percentile([law(compute) for law in self.resampled], BAND, axis=0)
        return low, high

    def interval(self, name: str) -> tuple[float, float] | None:
        """The 5th and 95th percentile of a parameter of the law."""
        if not self.resampled:
            return None
        low, high = np.percentile([getattr(law, name) for law in self.resampled], BAND)
        return float(low), float(high)


def fit_power_law(compute: Sequence[float], losses: Sequence[float], near: PowerLaw | None = None) -> PowerLaw:
    """The law that fits losses at so many FLOPs best, in squares of the relative error.

    With three budgets or more the floor E is fitted as well (E ≥ 0); with two it is 0: a straight line on logarithmic
    axes. `near`: a law of almost the same losses, to start from.

    Raises:
        ValueError: with fewer than two budgets.
    """
    compute, losses = np.asarray(compute, dtype=float), np.asarray(losses, dtype=float)
    budgets = len(np.unique(compute))
    if budgets < 2:
        raise ValueError(f"compute: got {budgets} budget, takes at least two")
    unit = float(np.exp(np.log(compute).mean()))
    x = np.log(compute / unit)
    if budgets == 2:
        slope, height = np.polyfit(x, np.log(losses), 1)
        return PowerLaw(0.0, float(np.exp(height)), float(-slope), unit)

    def errors(parameters: np.ndarray) -> np.ndarray:
        floor, log_factor, exponent = parameters
        return np.log(floor + np.exp(log_factor - exponent * x)) - np.log(losses)

    lowest = losses.min()
    bounds = ([0.0, -20.0, 0.0], [lowest, np.log(losses.max()) + 5, STEEPEST])
    if near is None:
        guesses = [
            (part * lowest, np.log((1 - part) * losses.mean()), start) for part in (0.1, 0.7) for start in STARTS
        ]
    else:
        guesses = [(min(near.floor, 0.99 * lowest), np.log(near.factor), near.exponent)]
    found = [least_squares(errors, guess, bounds=bounds, x_scale=(lowest, 1, 1), xtol=1e-12) for guess in guesses]
    floor, log_factor, exponent = min(found, key=lambda result: result.cost).x
    return PowerLaw(float(floor), float(np.exp(log_factor)), float(exponent), unit)


def fit_scaling(losses: Mapping[float, Sequence[float]], seed: int = 0) -> Scaling:
    """Fit a family's law to {FLOPs: the losses of all seeds}, and again to resampled means.

    The relative spread of a single run is pooled over the sizes with several seeds, and every size's mean is drawn
    anew with it (a parametric bootstrap): resampling three seeds themselves would hardly vary.
    """
    compute = np.array(sorted(losses))
    means = np.array([np.mean(losses[c]) for c in compute])
    counts = np.array([len(losses[c]) for c in compute])
    law = fit_power_law(compute, means)
    free = (counts - 1).sum()
    if free == 0:
        return Scaling(law, [])
    squares = sum(((np.array(losses[c]) / mean - 1) ** 2).sum() for c, mean in zip(compute, means))
    spread = np.sqrt(squares / free)
    draws = np.random.default_rng(seed).normal(size=(DRAWS, len(compute))) * spread / np.sqrt(counts)
    return Scaling(law, [fit_power_law(compute, means * np.exp(draw), law) for draw in draws])
