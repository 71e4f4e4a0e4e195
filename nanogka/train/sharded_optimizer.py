"""Muon and AdamW over all ranks (ZeRO, stage 1): every parameter has one owner, which holds its optimizer state.

Every rank holds all weights, so forward and backward need no communication. The ranks divide the memory of the
optimizer state and the work of the update. A parameter is never split, because Muon needs the whole matrix to
orthogonalize its update. Parameters of one owner travel in buckets: a message has a fixed cost (latency, a launch) that
a vector of 20 numbers does not repay. Gradients travel one bucket ahead of those that are summed up, new weights while
the next matrices are updated. This bounds the memory.

With one rank these are the plain optimizers. A checkpoint has the whole state by parameter name, so any number of ranks
can resume from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter

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
from nanogka.train.optimizer import Muon, build_optimizers, state_bytes, state_shapes
from nanogka.train.snapshots import LearningRates

BUCKET = 2**25  # elements: 128 MiB of float32; a larger parameter gets its own bucket


@dataclass(frozen=True)
class Bucket:
    """Parameters that travel to and from their owner in one message, and that it updates at the same time."""

    owner: int
    shape: torch.Size | None  # of all of its matrices, if Muon updates them; None for AdamW
    parameters: list[nn.Parameter]


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
        several = self.ranks.world_size > 1
        self.buckets = make_buckets(self.parameters, self.owners, self._kinds) if several else []
        self.adamw, muon = self.optimizers = build_optimizers(model, rates, budget, muon_dtype, self.owned)
        assert isinstance(muon, Muon)
        self.muon = muon

    def reduce_gradients(self, loss: Tensor) -> tuple[float, list[float]]:
        """Average the gradients over ranks, each on its owner; the other ranks drop theirs.

        Returns, on every rank the same, the norm of all gradients and each rank's loss.
        """
        finish: Callable[[], None] | None = None
        for bucket in self.buckets:
            # A parameter that took no part in this rank's batch may have a gradient on another rank: zero counts here.
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket.parameters]
            total = flatten(gradients)
            # Only the owner needs the sum: a reduce moves half the bytes of an all-reduce. The other half follows in
            # `step`, when the owner sends the updated weights.
            sent = dist.reduce(total, dst=bucket.owner, async_op=True)
            assert sent is not None, "this rank is in the group"
            if finish:
                finish()
            finish = partial(self._take_sum, sent, bucket, total)
        if finish:
            finish()
        return self._norm_and_losses(loss)

    def _take_sum(self, sent: dist.Work, bucket: Bucket, total: Tensor) -> None:
        """Wait for a bucket's sum; the owner's gradients become the mean, the other ranks drop theirs."""
        sent.wait()
        mine = bucket.owner == self.ranks.rank
        if mine:
            total.div_(self.ranks.world_size)
        for p, gradient in zip(bucket.parameters, unflatten(total, bucket.parameters), strict=True):
            p.grad = gradient if mine else None

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
        if not self.buckets:
            self.muon.step()
        # All ranks send in one order: AdamW's buckets, then those of each shape of matrix. Muon updates the matrices of
        # a shape while the weights of the shape before travel.
        arriving: list[Callable[[], None]] = []
        for shape, buckets in groupby(self.buckets, key=attrgetter("shape")):
            if shape is not None:
                self.muon.step_shape(shape)
            for receive in arriving:
                receive()
            arriving = [self._send_weights(bucket) for bucket in buckets]
        for receive in arriving:
            receive()
        self.zero_grad()

    def _send_weights(self, bucket: Bucket) -> Callable[[], None]:
        """Start to send a bucket's new weights; return what waits for them and copies them."""
        values = flatten(bucket.parameters)
        sent = dist.broadcast(values, src=bucket.owner, async_op=True)
        assert sent is not None, "this rank is in the group"

        def receive() -> None:
            sent.wait()
            if bucket.owner != self.ranks.rank:
                torch._foreach_copy_([*bucket.parameters], unflatten(values, bucket.parameters))

        return receive

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
    parameters: Mapping[str, nn.Parameter],
    owners: Mapping[str, int],
    kinds: Mapping[str, str],
    limit: int = BUCKET,
) -> list[Bucket]:
    """All parameters in buckets of at most `limit` elements, but for a single parameter that has more.

    AdamW's come first, then Muon's by their shape, each from one owner after the other.
    """
    turns: dict[tuple[tuple[int, ...], int], list[nn.Parameter]] = {}
    for name, p in parameters.items():
        shape = tuple(p.shape) if kinds[name] == "muon" else ()
        turns.setdefault((shape, owners[name]), []).append(p)
    buckets: list[Bucket] = []
    for (shape, owner), members in sorted(turns.items(), key=lambda turn: turn[0]):
        size, last = limit + 1, []  # begin a bucket
        for p in members:
            size += p.numel()
            if size > limit:
                size, last = p.numel(), []
                buckets.append(Bucket(owner, torch.Size(shape) if shape else None, last))
            last.append(p)
    return buckets
