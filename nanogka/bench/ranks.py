"""A training step over several ranks: optimisers sharded among them against replicated ones.

Replicated: after the backward pass every gradient is all-reduced, then every rank makes the whole update. The two take
turns step by step, on the same batch of random tokens, starting from the same weights; see `scripts.bench_ranks`.
"""

import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from nanogka.distributed import Ranks
from nanogka.model import GPT, GPTConfig
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import Rates, build_optimizers
from nanogka.train.zero import ShardedOptimizer

KINDS = ("replicated", "sharded")


@dataclass(frozen=True)
class Cost:
    """Seconds of each step on the slowest rank, and bytes of optimiser state on each rank."""

    seconds: list[float]
    state_bytes: list[int]

    @property
    def median(self) -> float:
        """Seconds per step."""
        return statistics.median(self.seconds)


class _Step:
    def __init__(self, kind: str, config: GPTConfig, batch: int, ranks: Ranks, device: torch.device) -> None:
        self.ranks, self.device, self.model = ranks, device, GPT(config).to(device)
        horizon = plan_horizon(config, num_iterations=1000, total_batch_size=batch * config.sequence_len)
        common = (self.model, Rates(), horizon, torch.float32)
        self.sharded = ShardedOptimizer(*common, ranks) if kind == "sharded" else None
        self.optimizers = self.sharded.optimizers if self.sharded else build_optimizers(*common)
        generator = torch.Generator().manual_seed(ranks.rank)
        ids = torch.randint(0, config.vocab_size, (batch, config.sequence_len + 1), generator=generator).to(device)
        self.inputs, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def run(self) -> float:
        dist.barrier()
        self._wait()
        began = time.perf_counter()
        loss = self.model(self.inputs, self.targets)
        if self.sharded:
            self.sharded.begin_reduction()
            loss.backward()
            self.sharded.finish_reduction()
            self.sharded.step()
        else:
            loss.backward()
            gradients = [p.grad for p in self.model.parameters()]
            for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
                work.wait()
            torch._foreach_div_(gradients, self.ranks.world_size)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
        self._wait()
        return max(self.ranks.gather(time.perf_counter() - began))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def state_bytes(self) -> int:
        tensors = (t for o in self.optimizers for s in o.state.values() for t in s.values())
        return sum(t.numel() * t.element_size() for t in tensors)


def compare_ranks(config: GPTConfig, batch: int, repeats: int, ranks: Ranks, device: torch.device) -> dict[str, Cost]:
    """The cost of a step either way; all ranks call it.

    Args:
        config: of the model, which computes in float32.
        batch: rows of each rank.
        repeats: steps of each kind that count, after one that warms up.
        ranks: two or more.
        device: of this rank.
    """
    steps = {kind: _Step(kind, config, batch, ranks, device) for kind in KINDS}
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(repeats + 1):
        for kind, step in steps.items():
            seconds[kind].append(step.run())
    return {kind: Cost(seconds[kind][1:], ranks.gather(step.state_bytes())) for kind, step in steps.items()}
