"""How one parameter's gradient, update and optimiser state are divided among ranks.

Every rank holds every parameter whole; what is divided is the work after the backward pass. A share knows the
collectives for its kind of parameter: `reduce` sums gradients over ranks towards whoever updates them, `publish` sends
what was updated back to all. Both are started here and waited for by the caller, so that they overlap with compute.

| kind | for | gradients | updated by |
|---|---|---|---|
| `Whole` | matrices, which Muon needs in one piece | reduced to the owner | one rank each |
| `Sliced` | large tables, whose elements are independent | reduce-scattered | every rank a slice |
| `Common` | small tensors, all in one message | all-reduced | every rank, the same |

nccl and gloo both have these collectives; `check_collectives` tries them before a run relies on them.
"""

from abc import ABC, abstractmethod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanogka.distributed import Ranks

# Their names since torch 2.13, which warns of the old ones.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Share(ABC):
    """One parameter, or the small ones together, and this rank's part of it.

    Attributes:
        parameters: by name, whole, on every rank.
        pieces: what this rank updates, by the name of the parameter: views of the parameters' own memory.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], ranks: Ranks) -> None:
        self.parameters, self.ranks = parameters, ranks
        self.pieces: dict[str, nn.Parameter] = {}
        self._work: dist.Work | None = None

    def reduce(self) -> None:
        """Start to sum the gradients over ranks. A parameter without a gradient counts as zero."""
        for p in self.parameters.values():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad.contiguous()
        self._work = self._reduce()

    def finish_reduce(self) -> None:
        """Wait; every piece then has its gradient, the mean over ranks. The parameters' own are gone."""
        self._work.wait()
        self._hand_over()
        for p in self.parameters.values():
            if not any(p is piece for piece in self.pieces.values()):
                p.grad = None
        gradients = [piece.grad for piece in self.pieces.values()]
        if gradients:
            torch._foreach_div_(gradients, self.ranks.world_size)

    def publish(self) -> None:
        """Start to send the updated pieces to all ranks."""
        self._work = self._publish()

    def finish_publish(self) -> None:
        """Wait; every rank then has the updated parameters."""
        if self._work is not None:
            self._work.wait()
        self._work = None

    @property
    def counted(self) -> dict[str, nn.Parameter]:
        """The pieces that no other rank has too: what to add up over ranks."""
        return self.pieces

    @abstractmethod
    def _reduce(self) -> dist.Work: ...

    @abstractmethod
    def _hand_over(self) -> None:
        """Give the pieces their summed gradients."""

    @abstractmethod
    def _publish(self) -> dist.Work | None: ...

    @abstractmethod
    def collect(self, name: str, state: Tensor | None) -> Tensor:
        """A parameter's state tensor, whole, from the parts (`state`) on all ranks; a collective."""

    @abstractmethod
    def part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a whole state tensor."""


class Whole(Share):
    """A matrix that one rank, its owner, updates."""

    def __init__(self, name: str, parameter: nn.Parameter, ranks: Ranks, owner: int) -> None:
        super().__init__({name: parameter}, ranks)
        self.parameter, self.owner = parameter, owner
        if owner == ranks.rank:
            self.pieces = {name: parameter}

    def _reduce(self) -> dist.Work:
        return dist.reduce(self.parameter.grad, dst=self.owner, async_op=True)

    def _hand_over(self) -> None:
        """The owner's gradient is the sum already."""

    def _publish(self) -> dist.Work:
        return dist.broadcast(self.parameter.data, src=self.owner, async_op=True)

    def collect(self, name: str, state: Tensor | None) -> Tensor:
        whole = state.clone() if state is not None else torch.empty_like(self.parameter)
        dist.broadcast(whole, src=self.owner)
        return whole

    def part(self, name: str, whole: Tensor) -> Tensor:
        return whole


class Sliced(Share):
    """A table of which every rank updates one of `world_size` equal slices of its elements in memory order.

    Where they do not divide, the last slices are padded, and the collectives go through a padded copy.
    """

    def __init__(self, name: str, parameter: nn.Parameter, ranks: Ranks) -> None:
        super().__init__({name: parameter}, ranks)
        self.parameter = parameter
        self.length = -(-parameter.numel() // ranks.world_size)
        self.padding = self.length * ranks.world_size - parameter.numel()
        start = min(ranks.rank * self.length, parameter.numel())
        self.extent = slice(start, min(start + self.length, parameter.numel()))
        self.pieces = {name: nn.Parameter(parameter.data.view(-1)[self.extent])}
        self._buffer: Tensor | None = None

    def _mine(self, padded: Tensor) -> Tensor:
        return padded[self.ranks.rank * self.length : (self.ranks.rank + 1) * self.length]

    def _padded(self, flat: Tensor) -> Tensor:
        return torch.cat([flat, flat.new_zeros(self.padding)]) if self.padding else flat

    def _reduce(self) -> dist.Work:
        self._buffer = self._padded(self.parameter.grad.view(-1))
        return reduce_scatter(self._mine(self._buffer), self._buffer, async_op=True)

    def _hand_over(self) -> None:
        (piece,) = self.pieces.values()
        piece.grad = self._mine(self._buffer)[: piece.numel()]
        self._buffer = None

    def _publish(self) -> dist.Work:
        self._buffer = self._padded(self.parameter.data.view(-1))
        return all_gather(self._buffer, self._mine(self._buffer), async_op=True)

    def finish_publish(self) -> None:
        super().finish_publish()
        if self.padding:
            self.parameter.data.view(-1).copy_(self._buffer[: self.parameter.numel()])
        self._buffer = None

    def collect(self, name: str, state: Tensor | None) -> Tensor:
        whole = torch.empty(self.length * self.ranks.world_size, dtype=state.dtype, device=state.device)
        self._mine(whole)[: state.numel()] = state
        all_gather(whole, self._mine(whole))
        return whole[: self.parameter.numel()].view_as(self.parameter)

    def part(self, name: str, whole: Tensor) -> Tensor:
        return whole.reshape(-1)[self.extent]


class Common(Share):
    """Small tensors that every rank updates in the same way."""

    def __init__(self, parameters: dict[str, nn.Parameter], ranks: Ranks) -> None:
        super().__init__(parameters, ranks)
        self.pieces = dict(parameters)
        self._buffer: Tensor | None = None

    @property
    def counted(self) -> dict[str, nn.Parameter]:
        return self.pieces if self.ranks.is_main else {}

    def _reduce(self) -> dist.Work:
        self._buffer = torch.cat([p.grad.view(-1) for p in self.parameters.values()])
        return dist.all_reduce(self._buffer, async_op=True)

    def _hand_over(self) -> None:
        parts = self._buffer.split([p.numel() for p in self.parameters.values()])
        for p, part in zip(self.parameters.values(), parts, strict=True):
            p.grad.copy_(part.view_as(p))
        self._buffer = None

    def _publish(self) -> None:
        """Nothing: the others did the same."""

    def collect(self, name: str, state: Tensor | None) -> Tensor:
        return state

    def part(self, name: str, whole: Tensor) -> Tensor:
        return whole


def assign_owners(shapes: dict[str, torch.Size], world_size: int) -> dict[str, int]:
    """The rank that orthogonalises each matrix: the costliest first, each to the rank with the least to do so far.

    Args:
        shapes: (m, n) of each matrix, by name; the same on every rank.
        world_size: number of ranks.

    Returns:
        The owner of each, by name.
    """

    def cost(shape: torch.Size) -> int:
        """Multiplications of an iteration: the products of an s × l matrix with its transpose and two s × s ones."""
        small, large = sorted(shape)
        return small * small * (2 * large + small)

    load, owners = [0] * world_size, {}
    for name in sorted(shapes, key=lambda name: -cost(shapes[name])):
        owner = min(range(world_size), key=lambda rank: (load[rank], rank))
        owners[name] = owner
        load[owner] += cost(shapes[name])
    return owners


def check_collectives(ranks: Ranks, device: torch.device) -> None:
    """Try every collective that the shares use on a few numbers; a collective itself.

    Raises:
        ValueError: if the back-end of the process group lacks one or gives a wrong answer.
    """
    me, n = ranks.rank, ranks.world_size
    ones = torch.ones(n, device=device)
    total = torch.full_like(ones, n)

    def scattered() -> bool:
        buffer = ones.clone()
        reduce_scatter(buffer[me : me + 1], buffer, async_op=True).wait()
        return bool(buffer[me] == n)

    def gathered() -> bool:
        buffer = torch.where(torch.arange(n, device=device) == me, ones, 0)
        all_gather(buffer, buffer[me : me + 1], async_op=True).wait()
        return bool((buffer == 1).all())

    def reduced() -> bool:
        buffer = ones.clone()
        dist.reduce(buffer, dst=n - 1, async_op=True).wait()
        return me != n - 1 or torch.equal(buffer, total)

    def sent() -> bool:
        buffer = ones * me
        dist.broadcast(buffer, src=n - 1, async_op=True).wait()
        return bool((buffer == n - 1).all())

    def summed() -> bool:
        buffer = ones.clone()
        dist.all_reduce(buffer, async_op=True).wait()
        return torch.equal(buffer, total)

    tried = {
        "reduce_scatter": scattered,
        "all_gather": gathered,
        "reduce": reduced,
        "broadcast": sent,
        "all_reduce": summed,
    }
    for name, attempt in tried.items():
        try:
            why = None if attempt() else "gives a wrong answer"
        except (RuntimeError, NotImplementedError) as error:
            why = f"fails ({(str(error).splitlines() or ['no reason given'])[0][:120]})"
        if why:
            raise ValueError(
                f"--device: got {device.type}, whose collective {name} (back-end {dist.get_backend()}, torch "
                f"{torch.__version__}) {why}; takes one process, or a torch whose back-end has it"
            )
