"""Muon on the matrices, AdamW on everything else, and the schedules of both.

Muon (Jordan et al., 2024): Nesterov momentum, then the update is replaced by the nearest semi-orthogonal matrix, found
with the Polar Express iteration (arXiv 2505.16932). Weight decay is cautious: only where it agrees with the update.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanogka.model import GPT
from nanogka.train.horizon import REFERENCE_BATCH, Horizon

REFERENCE_WIDTH = 768  # the width at which the AdamW rates were found

# Coefficients (a, b, c) of X ← aX + (b XXᵀ + c (XXᵀ)²) X, optimal for singular values in [10⁻³, 1], with a 2 % margin.
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def orthogonalise(updates: Tensor, dtype: torch.dtype) -> Tensor:
    """Return roughly the nearest semi-orthogonal matrices: singular values end up within about 15 % of 1.

    Args:
        updates: (N, m, n) matrices.
        dtype: in which to iterate; bfloat16 is enough.

    Returns:
        (N, m, n) in `dtype`.
    """
    tall = updates.shape[-2] > updates.shape[-1]
    x = updates.mT if tall else updates
    x = x.to(dtype)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon with cautious weight decay, for matrices only; those of one shape are updated together.

    Args:
        params: 2-D parameters, or groups of them.
        lr: learning rate; a matrix m×n moves by lr · √max(1, m/n) in each singular direction.
        momentum: of the Nesterov average.
        weight_decay: a weight shrinks by lr · weight_decay where its update points to zero as well.
        dtype: of the orthogonalisation.

    Raises:
        ValueError: of a parameter that is not a matrix.
    """

    def __init__(
        self,
        params: list,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype
        shapes = {tuple(p.shape) for group in self.param_groups for p in group["params"]}
        if odd := [shape for shape in shapes if len(shape) != 2]:
            raise ValueError(f"params: got parameters of shape {odd[0]} for Muon, takes matrices")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient."""
        assert closure is None
        for shape in dict.fromkeys(p.shape for group in self.param_groups for p in group["params"]):
            self.step_shape(shape)

    @torch.no_grad()
    def step_shape(self, shape: torch.Size) -> None:
        """Update the parameters of one shape, those of a group together."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.shape == shape and p.grad is not None]
            if params:
                self._step_together(params, group["lr"], group["momentum"], group["weight_decay"])

    def _step_together(self, params: list[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        for p in params:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        gradients = [p.grad for p in params]
        averages = [self.state[p]["momentum"] for p in params]
        torch._foreach_lerp_(averages, gradients, 1 - momentum)
        nesterov = torch._foreach_lerp(gradients, averages, momentum)
        rows, columns = params[0].shape
        scale = lr * max(1.0, rows / columns) ** 0.5
        updates = orthogonalise(torch.stack(nesterov), self.dtype).float().mul_(scale)
        for p, update in zip(params, updates):
            if weight_decay:
                p.sub_(torch.where(update * p > 0, p, 0), alpha=lr * weight_decay)
            p.sub_(update)


@dataclass(frozen=True)
class Rates:
    """Learning rates at the reference batch of 2^19 tokens; some also at width 768, see `ParameterGroup`.

    Attributes:
        matrix, embedding, unembedding, scalar, bandwidth: of the parameter groups that name this rate.
        weight_decay: of the matrices.
        scale: factor of all rates; None for √(batch / 2^19).
    """

    matrix: float = 0.02
    embedding: float = 0.3
    unembedding: float = 0.004
    scalar: float = 0.5
    bandwidth: float = 0.02
    weight_decay: float = 0.2
    scale: float | None = None


def build_optimizers(
    model: GPT,
    rates: Rates,
    horizon: Horizon,
    muon_dtype: torch.dtype = torch.bfloat16,
    local: Mapping[str, nn.Parameter] | None = None,
) -> list[torch.optim.Optimizer]:
    """Return [AdamW, Muon], each group with its `initial_lr` (and Muon's with `initial_weight_decay`).

    Args:
        model: whose parameters to update; its parameter groups say how.
        rates: at the reference batch and width.
        horizon: of the run.
        muon_dtype: of the orthogonalisation.
        local: what to update in place of each parameter, by its name: a slice of it, say. A parameter that is not in
            it is left alone. None for all of each.

    Rates are scaled by √(batch / 2^19), those that scale with the width by (C / 768)^−½ as well; weight decay by
    √(batch / 2^19) · (reference tokens / tokens), which keeps the averaging time of the weights the same share of
    the run (arXiv 2405.13698).
    """
    batch_scale = math.sqrt(horizon.total_batch_size / REFERENCE_BATCH)
    lr_scale = rates.scale if rates.scale is not None else batch_scale
    width_scale = (model.config.n_embd / REFERENCE_WIDTH) ** -0.5
    decay = rates.weight_decay * batch_scale * (horizon.reference_tokens / horizon.tokens)

    param_groups: dict[str, list[dict]] = {"adamw": [], "muon": []}
    for group, parameters in model.parameter_groups().items():
        if not parameters:
            continue
        lr = getattr(rates, group.rate) * group.factor * (width_scale if group.scales_with_width else 1.0) * lr_scale
        params = [p if local is None else local[n] for n, p in parameters.items() if local is None or n in local]
        entry = {"params": params, "lr": lr, "initial_lr": lr, "name": group.name}
        if group.optimizer == "muon":
            entry |= {"weight_decay": decay, "initial_weight_decay": decay}
        else:
            entry["betas"] = group.betas
        param_groups[group.optimizer].append(entry)
    fused = model.device.type in ("cpu", "cuda", "mps")
    adamw = torch.optim.AdamW(param_groups["adamw"], eps=1e-10, weight_decay=0.0, fused=fused)
    return [adamw, Muon(param_groups["muon"], dtype=muon_dtype)]


def optimizer_state_bytes(model: GPT) -> int:
    """Memory of the whole optimiser state: Muon's momentum, AdamW's two averages, float32."""
    copies = {"muon": 1, "adamw": 2}
    groups = model.parameter_groups().items()
    return sum(4 * copies[group.optimizer] * p.numel() for group, named in groups for p in named.values())


@dataclass(frozen=True)
class Schedule:
    """The factor of every learning rate over a run: linear up, flat, linear down.

    Attributes:
        num_iterations: steps of the run.
        warmup_ratio, warmdown_ratio: fractions of them.
        final_fraction: factor at the very end.
    """

    num_iterations: int
    warmup_ratio: float = 0.0
    warmdown_ratio: float = 0.5
    final_fraction: float = 0.0

    def lr_scale(self, step: int) -> float:
        """Return the factor of the update that follows `step` finished ones."""
        warmup = round(self.warmup_ratio * self.num_iterations)
        warmdown = round(self.warmdown_ratio * self.num_iterations)
        if step < warmup:
            return (step + 1) / warmup
        left = self.num_iterations - step
        if left >= warmdown:
            return 1.0
        return self.final_fraction + (1 - self.final_fraction) * left / warmdown

    def weight_decay_scale(self, step: int) -> float:
        """Return the factor of the weight decay, which falls linearly to zero."""
        return 1 - step / self.num_iterations

    def apply(self, optimizers: list[torch.optim.Optimizer], step: int) -> float:
        """Set every group's rate for the update after `step` finished ones, and return the factor."""
        scale = self.lr_scale(step)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * scale
                if "initial_weight_decay" in group:
                    group["weight_decay"] = group["initial_weight_decay"] * self.weight_decay_scale(step)
        return scale
