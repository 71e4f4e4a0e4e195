"""Muon and AdamW over all ranks (ZeRO, stage 1): each rank updates its part of the model and holds only its state.

    optimizer = ShardedOptimizer(model, rates, horizon, muon_dtype, ranks)
    for i in range(accumulation):
        if i == accumulation - 1:
            optimizer.begin_reduction()     # gradients leave for their owners while the backward pass goes on
        loss.backward()
    optimizer.finish_reduction()
    norm, losses = optimizer.gradient_norm(loss)
    optimizer.step()                        # updates leave for the other ranks while the next ones are computed

Every rank holds every parameter whole; what is partitioned is the work after the backward pass. With one rank these
are the plain optimisers and nothing else.

| partition | of | gradients | updated by | updates |
|---|---|---|---|---|
| `Owned` | Muon's matrices, which it needs in one piece | reduced to the owner | one rank each | broadcast |
| `Sharded` | tables, whose elements are independent | reduce-scattered | every rank a slice | all-gathered |
| `Replicated` | vectors, all in one message | all-reduced | every rank, the same | – |

The state in a checkpoint is whole and by parameter name, so that any number of ranks can resume from it.
"""

from abc import ABC, abstractmethod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanogka.checkpoint import shorten
from nanogka.distributed import Ranks
from nanogka.model import GPT
from nanogka.train.horizon import Horizon
from nanogka.train.optimizer import Rates, build_optimizers, state_bytes, state_shapes

# Their names since torch 2.13, which warns of the old ones.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Partition(ABC):
    """One parameter, or the small ones together, and this rank's part of it.

    Attributes:
        parameters: by name, whole, on every rank.
        local: the part that this rank updates, by the parameter's name: views of the parameters' own memory.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], ranks: Ranks) -> None:
        self.parameters, self.ranks = parameters, ranks
        self.local: dict[str, nn.Parameter] = {}
        self._work: dist.Work | None = None

    def start_reduce(self) -> None:
        """Start to sum the gradients over ranks. A parameter without a gradient counts as zero."""
        for p in self.parameters.values():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad.contiguous()
        self._work = self._reduce()

    def finish_reduce(self) -> None:
        """Wait until the gradients of the local part are the means over ranks; drop the parameters' own."""
        self._work.wait()
        self._unpack()
        for p in self.parameters.values():
            if not any(p is part for part in self.local.values()):
                p.grad = None
        gradients = [part.grad for part in self.local.values()]
        if gradients:
            torch._foreach_div_(gradients, self.ranks.world_size)

    def start_gather(self) -> None:
        """Start to send the updated local part to all ranks."""
        self._work = self._gather()

    def finish_gather(self) -> None:
        """Wait until this rank has the updated parameters."""
        if self._work is not None:
            self._work.wait()
        self._work = None

    @property
    def counted(self) -> dict[str, nn.Parameter]:
        """The local parts that this rank adds to a sum over ranks, in which each element counts once."""
        return self.local

    @abstractmethod
    def _reduce(self) -> dist.Work: ...

    @abstractmethod
    def _unpack(self) -> None:
        """Give the local part its summed gradient."""

    @abstractmethod
    def _gather(self) -> dist.Work | None: ...

    @abstractmethod
    def gather_state(self, shape: tuple[int, ...], local: Tensor | None) -> Tensor:
        """Return a parameter's state tensor of this shape, whole, from the parts on all ranks; a collective."""

    @abstractmethod
    def slice_state(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole state tensor."""


class Owned(Partition):
    """A matrix that one rank, its owner, updates."""

    def __init__(self, name: str, parameter: nn.Parameter, ranks: Ranks, owner: int) -> None:
        super().__init__({name: parameter}, ranks)
        self.parameter, self.owner = parameter, owner
        if owner == ranks.rank:
            self.local = {name: parameter}

    def _reduce(self) -> dist.Work:
        return dist.reduce(self.parameter.grad, dst=self.owner, async_op=True)

    def _unpack(self) -> None:
        """Nothing: the owner's gradient is the sum already."""

    def _gather(self) -> dist.Work:
        return dist.broadcast(self.parameter.data, src=self.owner, async_op=True)

    def gather_state(self, shape: tuple[int, ...], local: Tensor | None) -> Tensor:
        whole = local.clone() if local is not None else self.parameter.new_empty(shape)
        dist.broadcast(whole, src=self.owner)
        return whole

    def slice_state(self, whole: Tensor) -> Tensor:
        return whole


class Sharded(Partition):
    """A table of which every rank updates one of `world_size` equal slices of its elements in memory order.

    Where they do not divide evenly, the last slices are padded, and the collectives go through a padded copy.
    """

    def __init__(self, name: str, parameter: nn.Parameter, ranks: Ranks) -> None:
        super().__init__({name: parameter}, ranks)
        self.parameter = parameter
        self.length = -(-parameter.numel() // ranks.world_size)
        self.padding = self.length * ranks.world_size - parameter.numel()
        start = min(ranks.rank * self.length, parameter.numel())
        self.extent = slice(start, min(start + self.length, parameter.numel()))
        self.local = {name: nn.Parameter(parameter.data.view(-1)[self.extent])}
        self._buffer: Tensor | None = None

    def _mine(self, padded: Tensor) -> Tensor:
        return padded[self.ranks.rank * self.length : (self.ranks.rank + 1) * self.length]

    def _padded(self, flat: Tensor) -> Tensor:
        return torch.cat([flat, flat.new_zeros(self.padding)]) if self.padding else flat

    def _reduce(self) -> dist.Work:
        self._buffer = self._padded(self.parameter.grad.view(-1))
        return reduce_scatter(self._mine(self._buffer), self._buffer, async_op=True)

    def _unpack(self) -> None:
        (part,) = self.local.values()
        part.grad = self._mine(self._buffer)[: part.numel()]
        self._buffer = None

    def _gather(self) -> dist.Work:
        self._buffer = self._padded(self.parameter.data.view(-1))
        return all_gather(self._buffer, self._mine(self._buffer), async_op=True)

    def finish_gather(self) -> None:
        super().finish_gather()
        if self.padding:
            self.parameter.data.view(-1).copy_(self._buffer[: self.parameter.numel()])
        self._buffer = None

    def gather_state(self, shape: tuple[int, ...], local: Tensor | None) -> Tensor:
        whole = torch.empty(self.length * self.ranks.world_size, dtype=local.dtype, device=local.device)
        self._mine(whole)[: local.numel()] = local
        all_gather(whole, self._mine(whole))
        return whole[: self.parameter.numel()].view(shape)

    def slice_state(self, whole: Tensor) -> Tensor:
        return whole.reshape(-1)[self.extent]


class Replicated(Partition):
    """Small tensors that every rank updates in the same way."""

    def __init__(self, parameters: dict[str, nn.Parameter], ranks: Ranks) -> None:
        super().__init__(parameters, ranks)
        self.local = dict(parameters)
        self._buffer: Tensor | None = None

    @property
    def counted(self) -> dict[str, nn.Parameter]:
        return self.local if self.ranks.is_main else {}

    def _reduce(self) -> dist.Work:
        self._buffer = torch.cat([p.grad.view(-1) for p in self.parameters.values()])
        return dist.all_reduce(self._buffer, async_op=True)

    def _unpack(self) -> None:
        parts = self._buffer.split([p.numel() for p in self.parameters.values()])
        for p, part in zip(self.parameters.values(), parts, strict=True):
            p.grad.copy_(part.view_as(p))
        self._buffer = None

    def _gather(self) -> None:
        """Nothing: the other ranks did the same."""

    def gather_state(self, shape: tuple[int, ...], local: Tensor | None) -> Tensor:
        return local

    def slice_state(self, whole: Tensor) -> Tensor:
        return whole


class ShardedOptimizer:
    """The optimisers of a model, their work and state partitioned among ranks.

    Args:
        model: on its device, with the same weights on every rank.
        rates, horizon, muon_dtype: see `build_optimizers`.
        ranks: the processes, joined (`Ranks.start`) if there are several.

    Attributes:
        optimizers: this rank's AdamW and Muon, whose rates a `Schedule` sets.
    """

    def __init__(
        self, model: GPT, rates: Rates, horizon: Horizon, muon_dtype: torch.dtype, ranks: Ranks | None = None
    ) -> None:
        self.ranks = ranks or Ranks()
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        self._names: dict[str, list[str]] = {"adamw": [], "muon": []}
        self._kinds: dict[str, str] = {}
        for group, named in model.parameter_groups().items():
            self._names[group.optimizer] += named
            self._kinds |= dict.fromkeys(named, group.optimizer)
        self.partitions: list[Partition] = []
        self.local = self.parameters
        if self.ranks.world_size > 1:
            self.partitions = self._partition()
            self.local = {name: part for partition in self.partitions for name, part in partition.local.items()}
            self._shapes = list(dict.fromkeys(self.parameters[name].shape for name in self._names["muon"]))
            self._reducing, self._missing, self._started = False, {}, 0
            for partition in self.partitions:
                for parameter in partition.parameters.values():
                    parameter.register_post_accumulate_grad_hook(lambda _, p=partition: self._arrived(p))
        self.partition_of = {name: partition for partition in self.partitions for name in partition.parameters}
        self.adamw, self.muon = self.optimizers = build_optimizers(model, rates, horizon, muon_dtype, self.local)

    def _partition(self) -> list[Partition]:
        """Partitions in the order in which a backward pass completes their gradients: the reverse of the model's."""
        shapes = {name: self.parameters[name].shape for name in self._names["muon"]}
        owners = assign_owners(shapes, self.ranks.world_size)
        partitions: list[Partition] = []
        small: dict[str, nn.Parameter] = {}
        for name, parameter in reversed(self.parameters.items()):
            if name in owners:
                partitions.append(Owned(name, parameter, self.ranks, owners[name]))
            elif parameter.ndim > 1:
                partitions.append(Sharded(name, parameter, self.ranks))
            else:
                small[name] = parameter
        return [*partitions, Replicated(small, self.ranks)] if small else partitions

    # ---- gradients ----

    def begin_reduction(self) -> None:
        """The next backward pass completes the gradients: send each off as soon as it is there."""
        if self.partitions:
            self._reducing, self._started = True, 0
            self._missing = {id(partition): len(partition.parameters) for partition in self.partitions}

    def _arrived(self, partition: Partition) -> None:
        if self._reducing:
            self._missing[id(partition)] -= 1
            self._start_reductions(complete_only=True)

    def _start_reductions(self, complete_only: bool) -> None:
        """Start reductions in their fixed order: ranks whose collectives differ in order would wait forever."""
        while self._started < len(self.partitions):
            partition = self.partitions[self._started]
            if complete_only and self._missing[id(partition)] > 0:
                return
            partition.start_reduce()
            self._started += 1

    def finish_reduction(self) -> None:
        """Wait until the gradients of this rank's part are the means over ranks."""
        if self.partitions:
            self._start_reductions(complete_only=False)  # the rest got no gradient
            self._reducing = False
            for partition in self.partitions:
                partition.finish_reduce()

    def gradient_norm(self, loss: Tensor) -> tuple[float, list[float]]:
        """Return the norm of all gradients after the reduction, and each rank's loss; the same on every rank.

        Args:
            loss: scalar, this rank's.
        """
        if not self.partitions:
            gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
            return torch.nn.utils.get_total_norm(gradients).item(), [loss.item()]
        gradients = [part.grad for partition in self.partitions for part in partition.counted.values()]
        values = torch.zeros(1 + self.ranks.world_size, dtype=torch.float64, device=loss.device)
        values[0] = torch.stack(torch._foreach_norm(gradients)).double().square().sum() if gradients else 0.0
        values[1 + self.ranks.rank] = loss
        dist.all_reduce(values)
        square, *losses = values.tolist()
        return square**0.5, losses

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for p in (*self.parameters.values(), *self.local.values()):
            p.grad = None

    # ---- updates ----

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters, on every rank; drops the gradients."""
        self.adamw.step()
        if not self.partitions:
            self.muon.step()
        else:
            owned = [partition for partition in self.partitions if isinstance(partition, Owned)]
            for partition in self.partitions:
                if partition not in owned:
                    partition.start_gather()
            for shape in self._shapes:  # every rank in the same order, whether it owns such matrices or not
                self.muon.step_shape(shape)
                for partition in owned:
                    if partition.parameter.shape == shape:
                        partition.start_gather()
            for partition in self.partitions:
                partition.finish_gather()
        self.zero_grad()

    # ---- state ----

    def state_bytes(self) -> int:
        """Memory of the optimiser state on this rank, once a step has been made."""
        tensors = (t for o in self.optimizers for s in o.state.values() for t in s.values() if isinstance(t, Tensor))
        return sum(t.numel() * t.element_size() for t in tensors)

    def expected_state_bytes(self) -> int:
        """Memory that the first step will take for the optimiser state on this rank; 0 afterwards."""
        if any(optimizer.state for optimizer in self.optimizers):
            return 0
        return sum(state_bytes(self._kinds[name], part.shape) for name, part in self.local.items())

    def state_dict(self) -> dict | None:
        """Return the whole state by parameter name, on the main rank; None on the others. All ranks call it.

        Its tensors may be the live ones: copy what is to outlast the next step.
        """
        state: dict[str, dict[str, Tensor]] = {}
        for kind, optimizer in zip(self._names, self.optimizers, strict=True):
            if kind == "adamw" and not optimizer.state:  # no step yet
                break
            for name in self._names[kind]:
                local = optimizer.state.get(self.local[name], {}) if name in self.local else {}
                shapes = state_shapes(kind, self.parameters[name].shape)
                whole = {key: local.get(key) for key in shapes}
                if self.partitions:
                    partition = self.partition_of[name]
                    whole = {key: partition.gather_state(shapes[key], value) for key, value in whole.items()}
                if kind == "adamw":
                    whole["step"] = local["step"]
                if self.ranks.is_main:  # what was gathered is new memory, and must not fill the device
                    state[name] = {key: value.cpu() if self.partitions else value for key, value in whole.items()}
        return {"state": state} if self.ranks.is_main else None

    def load_state_dict(self, saved: dict) -> None:
        """Take this rank's part of a state that `state_dict` gave.

        Raises:
            ValueError: if it is of another format or model, naming the difference.
        """
        state = saved.get("state")
        if not isinstance(state, dict):
            keys = ", ".join(sorted(map(str, saved)))
            raise ValueError(f"--resume: the checkpoint's optimiser state is not by parameter name, but has {keys}")
        if state:
            self._check(state)
        for kind, optimizer in zip(self._names, self.optimizers, strict=True):
            loaded = optimizer.state_dict()
            loaded["state"] = {}
            for index, name in enumerate(name for name in self._names[kind] if name in self.local):
                parts = state.get(name, {})
                if self.partitions:
                    cut = self.partition_of[name].slice_state
                    parts = {key: value if key == "step" else cut(value).clone() for key, value in parts.items()}
                if parts:
                    loaded["state"][index] = parts
            optimizer.load_state_dict(loaded)

    def _check(self, state: dict[str, dict[str, Tensor]]) -> None:
        unlike = sorted(set(state) ^ set(self.parameters))
        for name in set(state) & set(self.parameters):
            shapes = {key: tuple(value.shape) for key, value in state[name].items() if key != "step"}
            if shapes != state_shapes(self._kinds[name], self.parameters[name].shape):
                unlike.append(name)
        if unlike:
            raise ValueError(
                f"--resume: the checkpoint's optimiser state differs from the model in {len(unlike)} parameters: "
                f"{shorten(unlike)}"
            )


def assign_owners(shapes: dict[str, torch.Size], world_size: int) -> dict[str, int]:
    """Return the rank that orthogonalises each matrix, by name: the costliest first, each to the least loaded rank.

    Args:
        shapes: (m, n) of each matrix, by name; the same on every rank.
        world_size: number of ranks.
    """

    def cost(shape: torch.Size) -> int:
        """Multiplications per iteration: the products of an s × l matrix with its transpose and two s × s ones."""
        small, large = sorted(shape)
        return small * small * (2 * large + small)

    load, owners = [0] * world_size, {}
    for name in sorted(shapes, key=lambda name: -cost(shapes[name])):
        owner = min(range(world_size), key=lambda rank: (load[rank], rank))
        owners[name] = owner
        load[owner] += cost(shapes[name])
    return owners
