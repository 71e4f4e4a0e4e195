"""Time, memory and disk of a training, before anything is trained."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from nanogka.common.runtime import ASSUMED_MFU, Hardware
from nanogka.model import GPT, GPTConfig, model_costs
from nanogka.train.budget import TrainingBudget
from nanogka.train.optimizer import optimizer_state_bytes
from nanogka.train.plan import TrainPlan
from nanogka.train.roofline import StepTime, fp8_weights, step_time


@dataclass(frozen=True)
class TimeEstimate:
    """Time of the steps of a run, without evaluations."""

    seconds: float
    mfu: float  # share of the peak that the model's own products reach
    step: StepTime | None  # the parts of a step; None where `ASSUMED_MFU` is all that is known

    def price(self, per_device_hour: float, devices: int) -> float:
        """Price of the run on all devices, in the currency of `per_device_hour`."""
        return per_device_hour * devices * self.seconds / 3600


def estimate_time(
    config: GPTConfig,
    budget: TrainingBudget,
    hardware: Hardware,
    devices: int,
    *,
    moved: float | None = None,
    fp8: bool = False,
) -> TimeEstimate:
    """The time of a run on devices whose `peak_flops` is known.

    `moved` are the element-wise bytes of a step on one device, where they have been counted.
    """
    assert hardware.peak_flops, "the caller knows or has measured it"
    peak = hardware.peak_flops * devices
    in_fp8 = fp8_weights(config) if fp8 else 0
    step = step_time(config, hardware, budget.total_batch_size, devices, moved=moved, in_fp8=in_fp8)
    seconds = step.total * budget.num_iterations if step else budget.flops / (ASSUMED_MFU * peak)
    return TimeEstimate(seconds, budget.flops / (seconds * peak), step)


def checkpoint_bytes(config: GPTConfig) -> int:
    """Size of a checkpoint: weights and optimizer state in float32."""
    with torch.device("meta"):
        state = optimizer_state_bytes(GPT(config))
    return 4 * model_costs(config).total_parameters + state


def held_bytes(config: GPTConfig, devices: int) -> float:
    """Memory of one device between steps: weights, gradients and its part of the optimizer state, in float32."""
    weights = 4 * model_costs(config).total_parameters
    return 2 * weights + (checkpoint_bytes(config) - weights) / devices


def checkpoints_at_once(plan: TrainPlan) -> int:
    """The largest number of checkpoints on the disk: those that are kept, and one that is being written."""
    every, total = plan.settings.save_every, plan.num_iterations
    saved = -(-total // every) if every else 1
    return min(plan.settings.keep + plan.settings.keep_best + 1, saved)


def free_bytes(folder: Path) -> int:
    """Free space on the disk of a folder, which need not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free
