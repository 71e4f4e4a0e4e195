"""A training run that was checked and can start: everything that the loop and the run's folder must know."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from nanogka.common.distributed import Ranks
from nanogka.common.runtime import Hardware
from nanogka.model import GPTConfig, ModelCosts, model_costs
from nanogka.tokenizer import Tokenizer
from nanogka.train.budget import TrainingBudget
from nanogka.train.settings import LoopSettings


@dataclass(frozen=True)
class MicroBatch:
    """The division of a step's rows on each device: `rows` at a time, of `rows_per_step`, with `row_len` positions."""

    rows: int
    rows_per_step: int
    row_len: int

    @property
    def accumulation(self) -> int:
        """Micro-batches per step."""
        return self.rows_per_step // self.rows

    def smaller(self) -> "MicroBatch":
        """Half of the rows, or the next smaller number that divides those of a step."""
        rows = max(n for n in range(1, self.rows // 2 + 1) if self.rows_per_step % n == 0)
        return MicroBatch(rows, self.rows_per_step, self.row_len)


@dataclass(kw_only=True)
class TrainingRun:
    """A run of a language model that can start, be it pretraining, fine-tuning or reinforcement learning."""

    kind: str  # base or chat, as config.yaml names it
    monitor: str  # the evaluation that decides which checkpoints are best; lower is better
    folder: Path
    settings: LoopSettings  # everything that decides the losses is filled in
    corpus: Any  # Corpus, DataMixture or RewardTasks; None in a dry run whose data would be fetched
    tokenizer: Tokenizer | None  # None in a dry run without one
    config: GPTConfig
    budget: TrainingBudget
    batch: MicroBatch
    data_facts: dict  # for config.yaml: the fingerprints of tokenizer and data, and what a chat run started from
    ranks: Ranks
    device: torch.device
    dtype: torch.dtype
    hardware: Hardware
    compile: bool = False
    compile_reason: str = "nothing to compute"

    @property
    def num_iterations(self) -> int:
        """Steps of the whole run."""
        return self.budget.num_iterations

    @cached_property
    def costs(self) -> ModelCosts:
        """Parameters, FLOPs and cache of the model."""
        return model_costs(self.config)

    @property
    def per_step(self) -> dict[str, int]:
        """Tokens and FLOPs of a step, over all devices."""
        tokens = self.budget.total_batch_size
        return {"tokens": tokens, "flops": tokens * self.costs.flops_per_token}

    @property
    def peak_flops(self) -> float:
        """FLOP/s that all devices together can reach; 0 if unknown."""
        return (self.hardware.peak_flops or 0) * self.ranks.world_size
