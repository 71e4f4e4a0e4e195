"""Muon and AdamW over all ranks (ZeRO, stage 1): every parameter has one owner, which holds its optimizer state.

Every rank holds all weights, so forward and backward need no communication. The ranks divide the memory of the
optimizer state and the work of the update. A parameter is never split, because Muon needs the whole matrix to
orthogonalize its update. Parameters of one owner travel in buckets: a message has a fixed cost (latency, a launch) that
a vector of 20 numbers does not repay, and one bucket at a time bounds the memory.

With one rank these are the plain optimizers. A checkpoint has the whole state by parameter name, so any number of ranks
can resume from it.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors as flatten
from torch._utils import _unflatten_dense_tensors as unflatten

from nanogka.checkpoint import check_optimizer_state
from nanogka.common.distributed import Ranks
from nanogka.common.formatting import first_few
from nanogka.model import GPT
from nanogka.train.async_checkpoint import host_copy
from nanogka.train.budget import TrainingBudget
from nanogka.train.optimizer import build_optimizers, state_bytes, state_shapes
from nanogka.train.snapshots import LearningRates

BUCKET = 2**25  # elements: 128 MiB of float32; a larger parameter gets its own bucket

Bucket = tuple[int, list[nn.Parameter]]  # an owner, and parameters that travel to and from it in one message


class ShardedOptimizer:
    """The optimizers of a model, each parameter's update and state on one rank.

    The model is on its device, with the same weights on every rank; several ranks are joined.
    """

    def __init__(
        self,
        model: GPT,
        rates: LearningRates,
        budget: TrainingBudget,
        muon_dtype: torch.dtype,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        groups = model.parameter_groups().items()
        self._kinds = {name: group.optimizer for group, named in groups for name in named}
        shapes = {name: p.shape for name, p in self.parameters.items()}
        self.owners = assign_owners(shapes, self._kinds, self.ranks.world_size)
        # The parameters that this rank updates, and its AdamW and Muon, whose rates a `Schedule` sets.
        self.owned = {name: p for name, p in self.parameters.items() if self.owners[name] == self.ranks.rank}
        self.buckets = make_buckets(self.parameters, self.owners) if self.ranks.world_size > 1 else []
        self.adamw, self.muon = self.optimizers = build_optimizers(model, rates, budget, muon_dtype, self.owned)

    def reduce_gradients(self, loss: Tensor) -> tuple[float, list[float]]:
        """Average the gradients over ranks, each on its owner; the other ranks drop theirs.

        Returns, on every rank the same, the norm of all gradients and each rank's loss.
        """
        for owner, parameters in self.buckets:
            # A parameter that took no part in this rank's batch may have a gradient on another rank: zero counts here.
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            total = flatten(gradients)
            # Only the owner needs the sum: a reduce moves half the bytes of an all-reduce. The other half follows in
            # `step`, when the owner sends the updated weights.
            dist.reduce(total, dst=owner)
            mine = owner == self.ranks.rank
            if mine:
                total.div_(self.ranks.world_size)
            for p, gradient in zip(parameters, unflatten(total, gradients), strict=True):
                p.grad = gradient if mine else None
        return self._norm_and_losses(loss)

    def _norm_and_losses(self, loss: Tensor) -> tuple[float, list[float]]:
        gradients = [p.grad for p in self.owned.values() if p.grad is not None]
        if not self.buckets:
            return torch.nn.utils.get_total_norm(gradients).item(), [loss.item()]
        # Send both in one message: the sum of squares, and each rank's loss in its own element.
        values = torch.zeros(1 + self.ranks.world_size, dtype=torch.float64, device=loss.device)
        values[0] = torch.stack(torch._foreach_norm(gradients)).double().square().sum() if gradients else 0.0
        values[1 + self.ranks.rank] = loss
        dist.all_reduce(values)
        square, *losses = values.tolist()
        return square**0.5, losses

    def zero_grad(self) -> None:
        for p in self.parameters.values():
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters, on every rank; drops the gradients."""
        self.adamw.step()
        self.muon.step()
        self.zero_grad()
        for owner, parameters in self.buckets:
            values = flatten(parameters)
            dist.broadcast(values, src=owner)
            if owner != self.ranks.rank:
                torch._foreach_copy_([*parameters], unflatten(values, parameters))

    # ---- state ----

    def expected_state_bytes(self) -> int:
        """Device memory that the first step will take for the optimizer state on this rank; 0 afterwards."""
        if any(optimizer.state for optimizer in self.optimizers):
            return 0
        return sum(state_bytes(self._kinds[name], p.shape) for name, p in self.owned.items())

    def state_dict(self) -> dict | None:
        """Return the whole state by parameter name, copied to host memory, on rank 0; None on the others.

        All ranks call it. What another rank owns arrives one tensor at a time, so that it never fills the device.
        """
        state: dict[str, dict[str, Tensor]] = {}
        for name, owner in self.owners.items():
            p, kind = self.parameters[name], self._kinds[name]
            entry = (self.adamw if kind == "adamw" else self.muon).state.get(p, {})
            if owner != 0:
                entry = self._from_owner(entry, owner, name)
            elif self.ranks.is_main:
                entry = host_copy(dict(entry))
            if self.ranks.is_main:
                state[name] = entry
        return {"state": state} if self.ranks.is_main else None

    def _state_shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        """Shapes of the state tensors of a parameter, AdamW's count of steps included."""
        kind = self._kinds[name]
        return state_shapes(kind, self.parameters[name].shape) | ({"step": ()} if kind == "adamw" else {})

    def _from_owner(self, entry: dict[str, Tensor], owner: int, name: str) -> dict[str, Tensor]:
        """A parameter's state on rank 0, from its owner, in host memory.

        A broadcast, although only rank 0 needs it: send and receive would open new NCCL connections. These take GPU
        memory, in the middle of a training whose micro-batch was fitted to the memory that there is.
        """
        p, received = self.parameters[name], {}
        for key, shape in self._state_shapes(name).items():
            value = entry[key].to(p.device) if owner == self.ranks.rank else p.new_empty(shape)
            dist.broadcast(value, src=owner)
            if self.ranks.is_main:
                received[key] = value.cpu()
        return received

    def load_state_dict(self, saved: dict) -> None:
        """Load this rank's part of a state that `state_dict` returned. Raises ValueError for another model's."""
        state: dict[str, dict[str, Tensor]] = saved.get("state", {})
        source = "resume: the checkpoint"
        if isinstance(state, dict) and (unlike := sorted(map(str, set(state) ^ set(self.parameters)))):
            raise ValueError(
                f"{source}'s optimizer state differs from the model in {len(unlike)} parameters: {first_few(unlike)}"
            )
        shapes = {name: self._state_shapes(name) for name in self.owned}
        check_optimizer_state({n: state[n] for n in self.owned} if isinstance(state, dict) else state, shapes, source)
        names = {id(p): name for name, p in self.owned.items()}
        for optimizer in self.optimizers:
            # torch keeps state by a parameter's position, counted through all groups.
            positions = enumerate(names[id(p)] for group in optimizer.param_groups for p in group["params"])
            # A copy, because a loaded checkpoint's tensors lie in its file.
            entries = {position: host_copy(state[name]) for position, name in positions if name in state}
            optimizer.load_state_dict(optimizer.state_dict() | {"state": entries})


def assign_owners(shapes: Mapping[str, torch.Size], kinds: Mapping[str, str], world_size: int) -> dict[str, int]:
    """Return the rank that owns each parameter, by name; `kinds` are their optimizers, "muon" or "adamw".

    Muon's matrices are spread by the work of their orthogonalization, then AdamW's parameters by the bytes of state.
    """

    def multiplications(shape: torch.Size) -> int:
        """Per iteration of Polar Express: an s × l matrix with its transpose twice, and a product of s × s ones."""
        small, large = sorted(shape)
        return small * small * (2 * large + small)

    def spread(costs: dict[str, int], load: list[int]) -> None:
        """Costliest first, each to the rank with the least: within 4/3 of the best division (Graham, 1969)."""
        for name in sorted(costs, key=lambda name: -costs[name]):
            owners[name] = min(range(world_size), key=load.__getitem__)
            load[owners[name]] += costs[name]

    owners: dict[str, int] = {}
    spread({name: multiplications(s) for name, s in shapes.items() if kinds[name] == "muon"}, [0] * world_size)
    held = [sum(state_bytes("muon", shapes[name]) for name in owners if owners[name] == r) for r in range(world_size)]
    spread({name: state_bytes("adamw", s) for name, s in shapes.items() if kinds[name] == "adamw"}, held)
    return {name: owners[name] for name in shapes}


def make_buckets(
    parameters: Mapping[str, nn.Parameter], owners: Mapping[str, int], limit: int = BUCKET
) -> list[Bucket]:
    """The parameters of each owner in buckets of at most `limit` elements, but for a single parameter that has more."""
    buckets: list[Bucket] = []
    for name in sorted(parameters, key=owners.__getitem__):
        p, (owner, last) = parameters[name], buckets[-1] if buckets else (None, [])
        if owner == owners[name] and sum(q.numel() for q in last) + p.numel() <= limit:
            last.append(p)
        else:
            buckets.append((owners[name], [p]))
    return buckets
