"""Losses that stand out from those before them.

A spike is a loss more than k running deviations above the running mean. Both are exponential averages, so that they
follow the loss down; a spike moves them no further than a loss on the border would, else it would hide the next one.
"""

from dataclasses import dataclass

MEMORY = 0.95  # share of the averages that a step keeps: about the last 20 steps count
FIRST_STEPS = 20  # before these the average knows too little
LEAST_DEVIATION = 1e-3  # share of the mean: a loss that hardly moves has no spikes


@dataclass(frozen=True)
class Spike:
    """A loss that stands out.

    Attributes:
        loss: the step's, in nats a token. mean, deviation: of those before it.
    """

    loss: float
    mean: float
    deviation: float

    def describe(self) -> str:
        """For people."""
        away = (self.loss - self.mean) / self.deviation
        return f"loss {self.loss:.4f} is {away:.1f} deviations above its running mean {self.mean:.4f}"


class SpikeWatch:
    """Running mean and deviation of the loss.

    Args:
        deviations: how many above the mean make a spike; 0 for none ever.
        state: of an earlier part of the run, see `state`.
    """

    def __init__(self, deviations: float, state: dict | None = None) -> None:
        self.deviations = deviations
        state = state or {"steps": 0, "mean": 0.0, "variance": 0.0}
        self.steps, self.mean, self.variance = state["steps"], state["mean"], state["variance"]

    def state(self) -> dict:
        """For a checkpoint; JSON."""
        return {"steps": self.steps, "mean": self.mean, "variance": self.variance}

    def see(self, loss: float) -> Spike | None:
        """Take in the next loss; returns it as a spike if it is one."""
        deviation = max(self.variance**0.5, LEAST_DEVIATION * abs(self.mean))
        limit = self.mean + self.deviations * deviation
        spike = None
        if self.deviations and self.steps >= FIRST_STEPS and loss > limit:
            spike = Spike(loss, self.mean, deviation)
            loss = limit
        self.steps += 1
        weight = max(1 - MEMORY, 1 / self.steps)  # a plain mean at first
        difference = loss - self.mean
        self.mean += weight * difference
        self.variance = (1 - weight) * (self.variance + weight * difference * difference)
        return spike
