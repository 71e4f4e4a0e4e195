"""One process or many: the ranks of a run, and the collectives that training needs.

`torchrun` starts the processes of a run and numbers them: these are its ranks. Without torchrun there is one process.
How ranks share an update is in `nanogka.train.sharded_optimizer`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = 600.0  # seconds
TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


@dataclass(frozen=True)
class Ranks:
    """This process among all: `rank` of `world_size`, `local_rank` on its node."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """True on rank 0, which prints and writes."""
        return self.rank == 0

    @staticmethod
    def from_environment() -> "Ranks":
        """The process as torchrun describes it, or one process alone. Raises ValueError if variables are missing."""
        if "RANK" not in os.environ:
            return Ranks()
        given = {name: os.environ.get(name, "") for name in TORCHRUN_VARIABLES}
        if not all(value.isdecimal() for value in given.values()):
            shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
            raise ValueError(f"RANK: got {shown}, expected three numbers, as torchrun sets them, or no RANK")
        return Ranks(*map(int, given.values()))

    def device(self, chosen: torch.device) -> torch.device:
        """The chosen device; for `cuda` the GPU of this rank. Raises ValueError if several ranks would share one."""
        several = self.world_size > 1
        if several and (chosen.type == "mps" or chosen.index is not None):
            raise ValueError(f"--device: got '{chosen}' with {self.world_size} ranks, expected cuda or cpu")
        if chosen.type == "cuda" and chosen.index is None:
            return torch.device("cuda", self.local_rank)
        return chosen

    def init(self, device: torch.device, timeout: float = TIMEOUT) -> None:
        """Join the other processes, if there are any. A collective that lasts longer than `timeout` seconds fails."""
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if self.world_size > 1 and not dist.is_initialized():
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))

    def destroy(self) -> None:
        """Leave the process group."""
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def process_group(self, device: torch.device, timeout: float = TIMEOUT) -> Iterator[None]:
        """Join the process group in a `with` block. On error the barrier is skipped: a peer may be dead."""
        self.init(device, timeout)
        yield
        if self.world_size > 1:
            dist.barrier()  # rank 0 hosts the TCPStore: keep it alive until all are done
        self.destroy()

    def sum(self, values: list[float], device: torch.device) -> list[float]:
        """Each number's sum over ranks, in float64, so that counts of tokens stay exact."""
        if self.world_size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return total.tolist()

    def any(self, flags: list[bool], device: torch.device) -> list[bool]:
        """For each flag, True if it is true on any rank."""
        return [total > 0 for total in self.sum([float(flag) for flag in flags], device)]

    def all_gather(self, value: object) -> list:
        """Every rank's value, by rank."""
        if self.world_size == 1:
            return [value]
        values: list = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values
