"""Abilities of a mixer in context: to copy what came before, and to recall the value of a key.

* `repeat`: a row is distinct random tokens, repeated from a random period on until it is full. From the second time on
  the next token is the one that followed the current token before: an induction head finds it, a fixed offset does not,
  since every row has a period of its own (from half of the length to all of it).
* `recall`: a row is pairs k₁ v₁ … k_N v_N, then the keys in another order, each followed by its value, which is scored.

Only these positions are learned and scored. Chance is that of guessing among the tokens that the row makes possible:
one of its period, or one of its N values.

Shapes: B rows, T positions.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nanogka.common.runtime import pick_dtype
from nanogka.model import GPT, GPTConfig, count
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import build_optimizers
from nanogka.train.settings import TrainSettings

IGNORED = -1
EVALUATION_SEED = 10_000  # of the rows that accuracies are measured on, never trained on
EVALUATED_ROWS = 256
ROW_LEN = {"repeat": 2, "recall": 4}  # positions of a row per unit of its size


@dataclass(frozen=True)
class Batch:
    """Rows of a task: inputs and targets (B, T) int64, a target of −1 is not scored; `chance` of a right guess."""

    inputs: Tensor
    targets: Tensor
    chance: float


def draw_distinct(rows: int, size: int, count: int, generator: torch.Generator) -> Tensor:
    """(rows, count) distinct ids below `size`, each row in a random order of its own."""
    return torch.rand(rows, size, generator=generator).argsort(dim=1)[:, :count]


def draw_repeats(rows: int, length: int, vocab_size: int, generator: torch.Generator) -> Batch:
    """Rows of 2 · `length` tokens that repeat with a period from length / 2 to length."""
    if not 2 <= length <= vocab_size:
        raise ValueError(f"--length: got {length}, expected an integer from 2 to the vocabulary's {vocab_size}")
    tokens = draw_distinct(rows, vocab_size, length, generator)
    period = torch.randint((length + 1) // 2, length + 1, (rows, 1), generator=generator)
    places = torch.arange(2 * length)
    row = tokens.gather(1, places % period)
    known = places[1:] > period  # the current token has been seen, and what followed it
    return Batch(row[:, :-1], torch.where(known, row[:, 1:], IGNORED), (1 / period).mean().item())


def draw_recall(rows: int, pairs: int, vocab_size: int, generator: torch.Generator) -> Batch:
    """Rows of 4 · `pairs` tokens: keys, the lower half of the ids, with values, the upper half, then the asked keys."""
    half = vocab_size // 2
    if not 1 <= pairs <= half:
        raise ValueError(f"--pairs: got {pairs}, expected integers from 1 to half the vocabulary, {half}")
    keys = draw_distinct(rows, half, pairs, generator)
    values = half + draw_distinct(rows, half, pairs, generator)
    order = draw_distinct(rows, pairs, pairs, generator)
    given = torch.stack([keys, values], dim=2).flatten(1)
    asked = torch.stack([keys.gather(1, order), values.gather(1, order)], dim=2).flatten(1)
    row = torch.cat([given, asked], dim=1)
    targets = row[:, 1:].clone()
    targets[:, : 2 * pairs] = IGNORED
    targets[:, 2 * pairs + 1 :: 2] = IGNORED  # the next key cannot be known
    return Batch(row[:, :-1], targets, 1 / pairs)


def accuracy(predict: Callable[[Tensor], Tensor], batch: Batch) -> float:
    """The share of scored positions at which `predict(inputs)`, (B, T) ids, is the target."""
    scored = batch.targets != IGNORED
    return (predict(batch.inputs) == batch.targets)[scored].float().mean().item()


# ---- trained models ----


@dataclass(frozen=True)
class Trial:
    """One small model on one task."""

    task: str
    sizes: tuple[int, ...]  # lengths of what is repeated, or numbers of pairs; they take turns in training
    settings: TrainSettings  # of the family; of its training only the learning rates are used
    width: int
    head_dim: int
    vocab_size: int
    steps: int
    batch_tokens: int

    def batch(self, size: int, rows: int, generator: torch.Generator) -> Batch:
        draw = {"repeat": draw_repeats, "recall": draw_recall}[self.task]
        return draw(rows, size, self.vocab_size, generator)

    def rows(self, size: int) -> int:
        return max(1, self.batch_tokens // (ROW_LEN[self.task] * size))

    def check(self) -> None:
        self.config()
        for size in self.sizes:
            self.batch(size, 1, torch.Generator())

    def config(self) -> GPTConfig:
        """The model: the family's, at this width. Raises ValueError naming every setting that is out of range."""
        length = ROW_LEN[self.task] * max(self.sizes)
        config = replace(self.settings, sequence_len=length).config(self.vocab_size)
        return replace(config, n_embd=self.width, n_head=self.width // self.head_dim)


def run_trial(trial: Trial, device: torch.device) -> dict:
    """Train and measure: {size: accuracy}, {size: chance}, the last loss in nats, parameters, seconds."""
    config, seed = trial.config(), trial.settings.seed
    dtype, began = pick_dtype(trial.settings.dtype, device), time.perf_counter()
    model = GPT(config, seed=seed, compute_dtype=dtype).to(device)
    horizon = plan_horizon(config, num_iterations=trial.steps, total_batch_size=trial.batch_tokens)
    muon_dtype = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
    optimizers = build_optimizers(model, trial.settings.rates, horizon, muon_dtype)
    schedule = trial.settings.schedule(trial.steps, config.network)
    generator = torch.Generator().manual_seed(seed)
    for step in range(trial.steps):
        size = trial.sizes[step % len(trial.sizes)]
        batch = trial.batch(size, trial.rows(size), generator)
        loss = model(batch.inputs.to(device), batch.targets.to(device))
        loss.backward()
        schedule.apply(optimizers, step)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    trained, measured, chances = time.perf_counter() - began, {}, {}
    for size in trial.sizes:
        held_out = trial.batch(size, EVALUATED_ROWS, torch.Generator().manual_seed(EVALUATION_SEED + size))
        measured[size] = accuracy(lambda ids: predict_tokens(model, ids, trial.batch_tokens), held_out)
        chances[size] = held_out.chance
    return {
        "accuracy": measured,
        "chance": chances,
        "loss": loss.item(),
        "parameters": count(config).total_parameters,
        "flops_per_token": count(config).flops_per_token,
        "step_seconds": trained / trial.steps,
        "seconds": time.perf_counter() - began,
    }


@torch.no_grad()
def predict_tokens(model: GPT, ids: Tensor, batch_tokens: int) -> Tensor:
    """The likeliest next token at every position, (B, T) on the CPU; `batch_tokens`: about so many at a time."""
    parts = ids.split(max(1, batch_tokens // ids.shape[1]))
    return torch.cat([model(part.to(model.device)).argmax(dim=-1).cpu() for part in parts])
