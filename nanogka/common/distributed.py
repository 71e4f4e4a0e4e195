"""One process or many: the ranks of a run, and the collectives that training needs.

`torchrun` starts the processes of a run and numbers them: these are its ranks. Without torchrun there is one process.
How ranks share an update is in `nanogka.train.sharded_optimizer`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from nanogka.common.formatting import say

T = TypeVar("T")

TIMEOUT = 600.0  # seconds
LONG_WAIT = 30.0  # seconds of waiting for other ranks that are worth a line
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
            raise ValueError(f"device: got '{chosen}' with {self.world_size} ranks, expected cuda or cpu")
        if chosen.type == "cuda" and chosen.index is None:
            return torch.device("cuda", self.local_rank)
        return chosen

    def init(self, device: torch.device, timeout: float = TIMEOUT) -> None:
        """Join the other processes, if there are any. A collective that lasts longer than `timeout` seconds fails."""
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if self.world_size > 1 and not dist.is_initialized():
            backend, store = "nccl" if device.type == "cuda" else "gloo", self.open_store(timeout)
            self.meet(store, timeout)
            options = {"store": store, "rank": self.rank, "world_size": self.world_size}
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **options)

    def open_store(self, timeout: float) -> dist.Store:
        """Connect to the store by which the ranks find each other. torchrun keeps one, otherwise rank 0 does."""
        place = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
        keeps = self.is_main and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        for seconds in (min(LONG_WAIT, timeout), timeout):
            try:
                # torch's own set-up waits here for all ranks, in silence.
                options = {"timeout": timedelta(seconds=seconds), "wait_for_workers": False, "multi_tenant": keeps}
                store = dist.TCPStore(*place, self.world_size, keeps, **options)
            except RuntimeError as error:
                if seconds == timeout:
                    raise TimeoutError(f"ranks: no rank 0 at {place[0]}:{place[1]} within {timeout:.0f} s") from error
                say(f"rank {self.rank} is waiting for ranks 0")
            else:
                store.set_timeout(timedelta(seconds=timeout))
                return store
        raise AssertionError("the last try returns or raises")

    def meet(self, store: dist.Store, timeout: float) -> None:
        """Wait until all ranks are here. After `LONG_WAIT` seconds one of those that wait names the missing ones.

        Nothing else would be printed until the timeout if a rank died before it joined.
        """
        keys = [f"here/{rank}" for rank in range(self.world_size)]
        store.set(keys[self.rank], "1")
        for seconds in (min(LONG_WAIT, timeout), timeout):
            try:
                store.wait(keys, timedelta(seconds=seconds))
                return
            except RuntimeError as error:
                missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
                names = ", ".join(map(str, missing))
                if seconds == timeout:
                    raise TimeoutError(f"ranks: {names} did not start within {timeout:.0f} s") from error
                if all(rank in missing for rank in range(self.rank)):
                    say(f"rank {self.rank} is waiting for ranks {names}")

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

    def first_on_each_node(self, function: Callable[[], T]) -> T:
        """Return `function()`, which one rank of each node calls first, so that the others find what it fetched.

        All ranks call it, joined. Each raises the ValueError or OSError of a first call.
        """
        result: T | None = None
        problem: Exception | None = None
        if self.local_rank == 0:
            try:
                result = function()
            except (ValueError, OSError) as error:
                problem = error
        for first in self.all_gather(problem):
            if first is not None:
                raise first
        return function() if result is None else result

    def sum(self, values: list[float], device: torch.device) -> list[float]:
        """Each number's sum over ranks, in float64, so that counts of tokens stay exact."""
        if self.world_size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return total.tolist()

    def any(self, flags: list[bool], device: torch.device) -> list[bool]:
        """Return for each flag whether it is true on any rank."""
        return [total > 0 for total in self.sum([float(flag) for flag in flags], device)]

    def all_gather(self, value: object) -> list:
        """Every rank's value, by rank."""
        if self.world_size == 1:
            return [value]
        values: list = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values
