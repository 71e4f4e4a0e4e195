"""Time, memory and disk of a training, before anything is trained.

A roofline computes the time of a step on a GPU. A step is matrix products, element-wise kernels, attention, the loss,
the update and messages. Each part has an amount, counted on the model, and a rate, a share of the GPU's peak. The
shares are fitted to published runs, for three families of GPUs. `scripts.plan_gpu --compare` shows what they give for
these runs, for others and for one of ours (nanogka/bench/published.py).
"""

from dataclasses import dataclass

import torch

from nanogka.common.runtime import A100, GEFORCE, HOPPER, Hardware
from nanogka.model import GPT, GPTConfig, model_costs
from nanogka.train.budget import TrainingBudget
from nanogka.train.optimizer import optimizer_state_bytes
from nanogka.train.plan import TrainPlan

# ---- a step ----


@dataclass(frozen=True)
class Shares:
    """Shares of a GPU's peak FLOP/s."""

    products: float
    fp8_products: float  # in 8 bits, over the peak in 16 bits
    attention: dict[str, tuple[float, float]]  # forward and backward, by version of FlashAttention; the fastest first


# Hopper's units outrun FlashAttention 2 and the power limit. FlashAttention 4 is taken at FA3's measured rates. The
# nominal peak of a GeForce is half of what its units do, so products reach all of it. Products in 8 bits are those of
# 65,536 × 1,664 × 6,656 in nanochat's log, less the casts' time. GeForce is assumed to gain as much from 8 bits.
SHARES = {
    HOPPER: Shares(710 / 989, 1170 / 989, {"FA4": (560 / 989, 316 / 989), "FA2": (300 / 989, 200 / 989)}),
    A100: Shares(0.88, 0.0, {"FA2": (0.62, 0.52)}),
    GEFORCE: Shares(1.0, 1170 / 710, {"FA2": (0.80, 0.70)}),
}
BANDWIDTH = 2.95 / 3.35  # share of the peak bytes/s that element-wise kernels reach
UPDATE = 0.01  # seconds of the optimizers, without messages
# Element-wise traffic of a layer, in tensors of (positions, width) in 16 bits: counted by scripts.plan_gpu at depth 20.
TRAFFIC = {"gaussian": 57, "successor": 82, "dot_product": 62}
# What 8 bits add to it: largest elements, casts and transposes, less what ReLU² keeps in 16 bits otherwise.
FP8_TRAFFIC = {"gaussian": 16, "successor": 16, "dot_product": 34}
LOSS_PASSES = 4  # over the logits: written, scored, and read twice for the gradients
BACKWARD = 5 / 2  # products of attention's backward pass over those of its forward pass


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step on one GPU, by kind."""

    products: float
    elementwise: float
    attention: float
    loss: float
    update: float
    messages: float  # between GPUs

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return self.products + self.elementwise + self.attention + self.loss + self.update + self.messages


def moved_bytes(config: GPTConfig, positions: float, fp8: bool = False) -> float | None:
    """Bytes that the element-wise kernels of a micro-batch read and write; None if a mixer was not counted."""
    names = [mixer.name for mixer in config.mixers() if mixer.name in TRAFFIC]
    traffic = [TRAFFIC[name] + fp8 * FP8_TRAFFIC[name] for name in names]
    return None if len(traffic) < config.n_layer else 2.0 * sum(traffic) * positions * config.n_embd


def fp8_weights(config: GPTConfig) -> int:
    """Weights that multiply in 8 bits with `--fp8`."""
    with torch.device("meta"):
        return sum(layer.weight.numel() for layer in GPT(config).fp8_layers())


def attention_flops(config: GPTConfig, positions: float) -> float:
    """FLOPs of attention's forward pass over the visible pairs, in all layers."""
    T, pairs = config.sequence_len, 0.0
    for window in config.windows():
        W = T - 1 if window is None else min(window, T - 1)
        pairs += (W + 1) * T - W * (W + 1) / 2
    return 4 * config.n_embd * pairs * positions / T


def step_time(
    config: GPTConfig,
    hardware: Hardware,
    tokens: int,
    devices: int,
    *,
    moved: float | None = None,
    flash_version: str = "",
    in_fp8: int = 0,
) -> StepTime | None:
    """Time of a step of `tokens` tokens on `devices` GPUs; None if the hardware or a mixer's traffic is not known.

    `moved` are the element-wise bytes of the tokens of one GPU, where they have been counted. `flash_version` is the
    version of FlashAttention, the fastest of the GPU by default. `in_fp8` weights multiply in 8 bits.
    """
    mine, shares = tokens / devices, SHARES.get(hardware.family)
    moved = moved_bytes(config, mine, in_fp8 > 0) if moved is None else moved
    if (
        shares is None
        or (in_fp8 and not hardware.fp8)
        or not hardware.peak_flops
        or not hardware.peak_bandwidth
        or moved is None
    ):
        return None
    with torch.device("meta"):
        groups = GPT(config).parameter_groups()
    sizes = {group: sum(p.numel() for p in members.values()) for group, members in groups.items()}
    in_16_bits = sum(size for group, size in sizes.items() if group.is_matmul) - in_fp8
    products = 6 * mine * in_16_bits / shares.products
    products += 6 * mine * in_fp8 / shares.fp8_products if in_fp8 else 0.0
    attention = attention_flops(config, mine)
    version = flash_version or next(iter(shares.attention))
    forward, backward = (share * hardware.peak_flops for share in shares.attention[version])
    bandwidth = BANDWIDTH * hardware.peak_bandwidth
    # Gradients are summed on their owners in float32, and new weights are sent to all.
    messages = 8 * sum(sizes.values()) / hardware.link if devices > 1 else 0.0
    return StepTime(
        products=products / hardware.peak_flops,
        elementwise=moved / bandwidth,
        attention=attention / forward + BACKWARD * attention / backward,
        loss=LOSS_PASSES * 2 * mine * config.vocab_size / bandwidth,
        update=UPDATE,
        messages=messages,
    )


# ---- a run ----


@dataclass(frozen=True)
class TimeEstimate:
    """Time of the steps of a run, without evaluations."""

    seconds: float
    mfu: float  # share of the peak that the model's own products reach
    step: StepTime | None  # the parts of a step; None where `usual_mfu` is all that is known

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
    seconds = step.total * budget.num_iterations if step else budget.flops / (hardware.usual_mfu * peak)
    return TimeEstimate(seconds, budget.flops / (seconds * peak), step)


# ---- memory and disk ----


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
