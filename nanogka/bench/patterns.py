"""Long-context classification: which of a few patterns occurs somewhere in a long sequence of random symbols.

The data are made by code: noise of symbols in which no pattern occurs, and one pattern at one or a few random places.
The last position asks, and the model answers there with the pattern's class: a language model's loss at one position.
A pattern of one symbol is found by content alone; one of several by their order too.

Shapes: B sequences, T positions.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from nanogka.model import GPT, GPTConfig, count
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import Rates, Schedule, build_optimizers


@dataclass(frozen=True)
class PatternTask:
    """The task, and ids for it: symbols first, then the question, then the classes.

    Attributes:
        length: T of a sequence, the question among it.
        pattern_length: symbols of a pattern.
        occurrences: how often the pattern occurs, at random in equal parts of the sequence.
        patterns: how many there are.
        symbols: how many different ones.
        seed: of the patterns.
    """

    length: int
    pattern_length: int = 2
    occurrences: int = 1
    patterns: int = 8
    symbols: int = 64
    seed: int = 0

    @property
    def vocab_size(self) -> int:
        """Symbols, question and classes."""
        return self.symbols + 1 + self.patterns

    def all_patterns(self) -> Tensor:
        """(patterns, pattern_length) int64, all different."""
        generator = torch.Generator().manual_seed(self.seed)
        digits = torch.arange(self.pattern_length)
        codes = torch.randperm(self.symbols**self.pattern_length, generator=generator)[: self.patterns]
        return codes[:, None] // self.symbols**digits % self.symbols

    def batch(self, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Ids and targets (B, T) int64; the targets are −1 but at the question."""
        patterns, n = self.all_patterns(), self.pattern_length
        ids = torch.randint(self.symbols, (rows, self.length), generator=generator)
        while (found := self._occurrences(ids, patterns)).any():
            drawn = torch.randint(self.symbols, found.shape, generator=generator)
            ids[:, n - 1 :] = torch.where(found, drawn, ids[:, n - 1 :])
        classes = torch.randint(self.patterns, (rows,), generator=generator)
        part = (self.length - 1) // self.occurrences
        starts, row = part * torch.arange(self.occurrences), torch.arange(rows)[:, None, None]
        clean, other = ids.clone(), torch.ones(rows, dtype=torch.bool)
        while other.any():  # what stands before or after may complete another pattern: then other places
            places = starts + torch.randint(part - n + 1, (rows, self.occurrences), generator=generator)
            placed = clean.clone()
            placed[row, places[..., None] + torch.arange(n)] = patterns[classes][:, None]
            ids[other] = placed[other]
            other = self._occurrences(ids[:, :-1], patterns).sum(1) != self.occurrences
        ids[:, -1] = self.symbols
        targets = torch.full_like(ids, -1)
        targets[:, -1] = self.symbols + 1 + classes
        return ids, targets

    def _occurrences(self, ids: Tensor, patterns: Tensor) -> Tensor:
        """(B, T − n + 1) bool: where a pattern begins."""
        return (ids.unfold(1, self.pattern_length, 1)[:, :, None] == patterns).all(-1).any(-1)


@dataclass(frozen=True)
class Outcome:
    """Accuracy and cost of one mixer on the task.

    Attributes:
        attention: its name, or a pattern of several.
        parameters, flops_per_token: of the model.
        accuracy, stderr: on sequences that it has not seen, and one standard error.
        step_seconds: mean time of a training step.
    """

    attention: str
    parameters: int
    flops_per_token: int
    accuracy: float
    stderr: float
    step_seconds: float


def classify(
    config: GPTConfig,
    attention: str,
    task: PatternTask,
    device: torch.device,
    steps: int,
    rows: int,
    items: int,
    lr_scale: float,
) -> Outcome:
    """Train a model of `config` on the task from scratch and measure it.

    Args:
        config: of the model; its context is the task's length.
        attention: its name in the outcome.
        task: which patterns, how long.
        device: where to compute, in float32.
        steps: updates, with rates that fall to 0 over the second half.
        rows: sequences per step.
        items: sequences that the accuracy is of.
        lr_scale: factor of all learning rates.
    """
    model = GPT(config).to(device)
    horizon = plan_horizon(config, num_iterations=steps, total_batch_size=rows * task.length)
    optimizers = build_optimizers(model, Rates(scale=lr_scale), horizon, torch.float32)
    schedule, generator = Schedule(steps), torch.Generator().manual_seed(1)
    seconds = 0.0
    for step in range(steps):
        ids, targets = (t.to(device) for t in task.batch(rows, generator))
        began = time.perf_counter()
        model(ids, targets).backward()
        schedule.apply(optimizers, step)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seconds += time.perf_counter() - began
    right, unseen = 0, torch.Generator().manual_seed(2)
    with torch.no_grad():
        for start in range(0, items, rows):
            ids, targets = (t.to(device) for t in task.batch(min(rows, items - start), unseen))
            right += (model.unembed(model.hidden(ids)[:, -1]).argmax(-1) == targets[:, -1]).sum().item()
    accuracy, accounting = right / items, count(config)
    stderr = (accuracy * (1 - accuracy) / items) ** 0.5
    costs = accounting.total_parameters, accounting.flops_per_token
    return Outcome(attention, *costs, accuracy, stderr, seconds / steps)
