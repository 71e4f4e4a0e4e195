"""Muon on the matrices, AdamW on everything else, and the schedules of both. Their numbers are in `snapshots`.

Muon (Jordan et al., 2024): Nesterov momentum, then the update is replaced by the nearest semi-orthogonal matrix, found
with the Polar Express iteration (arXiv 2505.16932). Its neurons are brought to one size (NorMuon, arXiv 2510.05491).
July's Muon also evens out the rows before the iteration (MuonEq, arXiv 2603.28254) and corrects the norm after it
(Muon+, arXiv 2602.21545). Weight decay is cautious: it acts only where it does not oppose the update.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanogka.model import GPT
from nanogka.train.budget import REFERENCE_BATCH, REFERENCE_DEPTH, TrainingBudget
from nanogka.train.snapshots import FEBRUARY, OPTIMIZER_SNAPSHOTS, REFERENCE_WIDTH, LearningRates, OptimizerSnapshot

# Coefficients (a, b, c) of X ← aX + (b XXᵀ + c (XXᵀ)²) X, optimal for singular values in [10⁻³, 1], with a 2 % margin.
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def orthogonalize(updates: Tensor, dtype: torch.dtype, muon_eq: bool = False) -> Tensor:
    """Roughly the nearest semi-orthogonal matrices to (N, m, n) `updates`: singular values within about 15 % of 1.

    The iteration and its result are in `dtype`; bfloat16 is enough. `muon_eq` gives the rows one norm
    before it, and the result the norm of a semi-orthogonal matrix, √min(m, n), in float32.
    """
    # X Xᵀ is square with the side of X's rows: lay the matrix flat, so that these products are the small ones.
    tall = updates.shape[-2] > updates.shape[-1]
    x = updates.to(dtype)
    if muon_eq:
        rows = x.float().norm(dim=-1, keepdim=True)
        x = x * (rows.square().mean(-2, keepdim=True).sqrt() / rows.clamp_min(1e-6)).to(dtype)
    x = x.mT.contiguous() if tall else x  # batched products are slower on a transposed view
    # The Frobenius norm bounds the largest singular value: after the division all of them are in [0, 1].
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * (1.01 if muon_eq else 1.02) + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        # With X = U S Vᵀ this is U p(S) Vᵀ for the odd polynomial p(s) = a s + b s³ + c s⁵. It maps the singular
        # values and keeps U and Vᵀ, so an SVD is not needed. The first polynomials lift the small values steeply,
        # the later ones settle all near 1. Products of matrices are what a GPU does fastest, in bfloat16 too.
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)  # rounded once per product
    if muon_eq:
        x = x.float()
        x = x * (x.shape[-2] ** 0.5 / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-6))
    return x.mT if tall else x


def reduce_variance(updates: Tensor, averages: Tensor, beta: float) -> Tensor:
    """NorMuon's variance reduction (arXiv 2510.05491): neurons whose updates are large on average are slowed down.

    `averages`, (N, m, 1) or where n > m (N, 1, n), are running mean squares of the rows (columns) of the (N, m, n)
    updates, changed in place. Each row (column) is divided by the root of its average, each matrix then rescaled to its
    old norm.
    """
    # Orthogonalized matrices have even singular values, but not even rows: a neuron may still get a much larger update
    # than its neighbors. Dividing by a running root mean square, as Adam does per element, evens them out at the cost
    # of one number per neuron.
    along = -1 if averages.shape[-1] == 1 else -2
    averages.lerp_(updates.square().mean(along, keepdim=True), 1 - beta)
    reduced = updates * averages.clamp_min(1e-10).rsqrt()
    # The old norm again: how far a matrix moves stays the business of the learning rate.
    norms, new_norms = (u.norm(dim=(-2, -1), keepdim=True) for u in (updates, reduced))
    return reduced * (norms / new_norms.clamp_min(1e-10))


class Muon(torch.optim.Optimizer):
    """Muon with variance reduction and cautious weight decay, for matrices; those of one shape are updated together.

    A matrix m×n moves by lr · √max(1, m/n), root mean square over its singular directions. A weight shrinks by its
    matrix's rate · weight_decay unless its update points away from zero. `dtype` is that of the orthogonalization.
    """

    def __init__(
        self,
        params: list,
        lr: float = 0.02,
        weight_decay: float = 0.0,
        dtype: torch.dtype = torch.bfloat16,
        snapshot: OptimizerSnapshot = FEBRUARY,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": snapshot.momentum[1], "weight_decay": weight_decay})
        self.dtype, self.snapshot = dtype, snapshot

    @torch.no_grad()
    # pyrefly: ignore[bad-override]  # a closure, which evaluates the loss again, is for other methods than ours
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient."""
        assert closure is None
        for shape in {p.shape: None for group in self.param_groups for p in group["params"]}:
            self.step_shape(shape)

    @torch.no_grad()
    def step_shape(self, shape: torch.Size) -> None:
        """Update every matrix of one shape that has a gradient."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.shape == shape and p.grad is not None]
            if params:
                self._step_together(params, group["lr"], group["momentum"], group["weight_decay"])

    def _step_together(self, params: list[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        for p in params:
            if not self.state[p]:
                shapes = state_shapes("muon", p.shape)
                self.state[p] = {name: p.new_zeros(shape) for name, shape in shapes.items()}
        # Matrices of one shape go through the iteration as one batch: a few large products instead of many small ones.
        gradients = [p.grad for p in params if p.grad is not None]  # all have one
        momenta = [self.state[p]["momentum"] for p in params]
        # Nesterov: step along the gradient mixed with the momentum that already contains it. The newest gradient weighs
        # more than in plain momentum, so that the step reacts one update earlier when the gradient turns.
        torch._foreach_lerp_(momenta, gradients, 1 - momentum)
        nesterov = torch._foreach_lerp(gradients, momenta, momentum)
        updates = orthogonalize(torch.stack(nesterov), self.dtype, self.snapshot.muon_eq).float()
        averages = torch.stack([self.state[p]["mean_square"] for p in params])
        rows, columns = params[0].shape
        # A tall matrix with unit singular values has rows of norm √(n/m) < 1; the factor makes them 1 again, so that
        # each output moves as far as in a square matrix.
        rate = lr * max(1.0, rows / columns) ** 0.5
        # Tall matrices come transposed, and an operation on two layouts takes twice as long.
        updates = reduce_variance(updates, averages, self.snapshot.beta2).mul_(rate).contiguous()
        for p, update, average in zip(params, updates, averages, strict=True):
            self.state[p]["mean_square"].copy_(average)
            if weight_decay:
                # Cautious decay: only where the update shrinks the weight anyway (same sign: it is subtracted below).
                # Elsewhere it would take back a part of what the gradient asks for.
                shrinks = (update * p).ge_(0)  # 1 or 0
                update.add_(shrinks.mul_(p), alpha=rate * weight_decay)
            p.sub_(update)


def state_shapes(optimizer: str, shape: torch.Size) -> dict[str, tuple[int, ...]]:
    """Shapes of the state tensors that an optimizer ("adamw", "muon") keeps of a parameter of some shape."""
    if optimizer == "adamw":
        return {"exp_avg": tuple(shape), "exp_avg_sq": tuple(shape)}
    rows, columns = shape
    return {"momentum": (rows, columns), "mean_square": (rows, 1) if rows >= columns else (1, columns)}


def build_optimizers(
    model: GPT,
    rates: LearningRates,
    budget: TrainingBudget,
    muon_dtype: torch.dtype = torch.bfloat16,
    owned: Collection[str] | None = None,
) -> list[torch.optim.Optimizer]:
    """Return [AdamW, Muon] of the parameters called `owned` (None: of all), as the network's snapshot says.

    A `Schedule` scales `initial_lr` and `initial_weight_decay` in their groups.
    """
    snapshot, rates = OPTIMIZER_SNAPSHOTS[model.config.network], rates.for_network(model.config.network)
    batch = math.sqrt(budget.total_batch_size / REFERENCE_BATCH)
    width = (model.config.n_embd / REFERENCE_WIDTH) ** -0.5
    # Decay pulls at every step, so a longer training needs less per step. The steps grow about as depth²: the tokens
    # with the parameters, as depth³, and the batch as tokens^0.383.
    decay = rates.weight_decay
    decay *= batch / budget.size if snapshot.cosine_decay else (REFERENCE_DEPTH / model.config.n_layer) ** 2
    table = snapshot.groups(rates, width, batch if rates.lr_scale is None else rates.lr_scale, decay)

    param_groups: dict[str, list[dict]] = {"adamw": [], "muon": []}
    for group, parameters in model.parameter_groups().items():
        params = [p for name, p in parameters.items() if owned is None or name in owned]
        row = table[group.row or group.name]
        param_groups[group.optimizer].append({"params": params, "name": group.name, "initial_lr": row["lr"], **row})
    fused = model.device.type in ("cpu", "cuda", "mps")  # one kernel per group; the meta device has none
    adamw = torch.optim.AdamW(param_groups["adamw"], fused=fused)
    return [adamw, Muon(param_groups["muon"], dtype=muon_dtype, snapshot=snapshot)]


def optimizer_state_bytes(model: GPT) -> int:
    """Memory of the whole optimizer state, float32."""
    groups = model.parameter_groups().items()
    return sum(state_bytes(group.optimizer, p.shape) for group, named in groups for p in named.values())


def state_bytes(optimizer: str, shape: torch.Size) -> int:
    """Memory of one parameter's optimizer state, float32."""
    return 4 * sum(math.prod(s) for s in state_shapes(optimizer, shape).values())


@dataclass(frozen=True)
class Schedule:
    """The factor of all learning rates during a run (linear up, flat, linear down), and Muon's momentum and decay."""

    num_iterations: int
    warmup_steps: int = 0
    warmdown_ratio: float = 0.5
    final_fraction: float = 0.0
    snapshot: OptimizerSnapshot = FEBRUARY

    @staticmethod
    def of(rates: LearningRates, num_iterations: int, network: str) -> "Schedule":
        """The schedule that the settings and the network give a run."""
        own = rates.for_network(network)
        shape = own.warmup_steps, own.warmdown_ratio, own.final_lr_frac
        return Schedule(num_iterations, *shape, OPTIMIZER_SNAPSHOTS[network])

    def lr_scale(self, step: int) -> float:
        """Factor of the update after `step` finished ones."""
        warmdown = round(self.warmdown_ratio * self.num_iterations)
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        left = self.num_iterations - step
        if left >= warmdown:
            return 1.0
        return self.final_fraction + (1 - self.final_fraction) * left / warmdown

    def weight_decay_scale(self, step: int) -> float:
        """Factor of the matrices' weight decay, which falls to zero, linearly or as a cosine."""
        done = step / self.num_iterations
        return (1 + math.cos(math.pi * done)) / 2 if self.snapshot.cosine_decay else 1 - done

    def momentum(self, step: int) -> float:
        """Muon's momentum, which rises in the first steps of a run of any length, and then follows the warm-down."""
        (first, risen, last), rise = self.snapshot.momentum, self.snapshot.momentum_steps
        warmdown = round(self.warmdown_ratio * self.num_iterations)
        falling = warmdown - (self.num_iterations - step)  # steps of the warm-down so far
        fallen = falling / warmdown if step >= rise and falling > 0 else 0
        return first + (risen - first) * min(step / rise, 1) + (last - risen) * fallen

    def apply(self, optimizers: list[torch.optim.Optimizer], step: int) -> dict[str, float]:
        """Set every group's rate, momentum and decay for the update after `step` finished ones; return what to log."""
        # The momentum starts low, because the first gradients say little about the later ones: the weights move fast.
        # The decay ends at zero, so that the last updates fit the data alone.
        scale = self.lr_scale(step)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * scale
                if "momentum" in group:
                    group["momentum"] = self.momentum(step)
                    group["weight_decay"] = group["initial_weight_decay"] * self.weight_decay_scale(step)
        return {"lr_scale": scale}
