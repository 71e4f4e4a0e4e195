"""On equal gradients our optimisers make the updates of the rule written out, one parameter and one step at a time."""

import math

import pytest
import torch
from rank_worlds import run_ranks

from nanogka.distributed import Ranks
from nanogka.model import GPT, GPTConfig
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import POLAR_EXPRESS, Muon, Rates, Schedule
from nanogka.train.zero import ShardedOptimizer

STEPS, LENGTH, BATCH = 60, 80, 2**13  # the momentum rises, and the rates are on their way down


def config():
    """A hybrid with square, wide and tall matrices; a network of depth 3 for the decay's factor."""
    return GPTConfig(
        n_layer=3, n_head=1, n_embd=32, vocab_size=50, sequence_len=8, mixer_pattern="GDD", window_pattern="L"
    )


def gradient(name, shape, step):
    """Random, its rows of unlike sizes, with a mean that lets averages grow."""
    generator = torch.Generator().manual_seed(1000 * step + sum(map(ord, name)))
    mean = torch.randn(shape, generator=torch.Generator().manual_seed(sum(map(ord, name))))
    rows = torch.logspace(-1, 1, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return (torch.randn(shape, generator=generator) + 0.2 * mean) * rows


def muon(weight, gradients, lr, decay):
    """Muon by the book, float32."""
    momentum, (rows, columns) = torch.zeros_like(weight), weight.shape
    along = 1 if rows >= columns else 0
    average = torch.zeros(rows if along else columns)
    for t, g in enumerate(gradients):
        beta = 0.85 + (0.95 - 0.85) * min(1, t / 300)
        momentum = beta * momentum + (1 - beta) * g
        x = (1 - beta) * g + beta * momentum
        x = x / (1.02 * x.norm() + 1e-6)
        for a, b, c in POLAR_EXPRESS:
            s = x @ x.T if rows <= columns else x.T @ x
            x = a * x + ((b * s + c * s @ s) @ x if rows <= columns else x @ (b * s + c * s @ s))
        square = (x * x).mean(along)
        average = 0.95 * average + 0.05 * square
        new = x / average.clamp_min(1e-10).sqrt().unsqueeze(along)
        new = new * x.norm() / new.norm()
        rate = lr * math.sqrt(max(1, rows / columns)) * min(1, (LENGTH - t) / (LENGTH / 2))
        shrink = rate * decay * (1 - t / LENGTH) * (new * weight >= 0) * weight
        weight = weight - rate * new - shrink
    return weight


def adamw(weight, gradients, lr, beta1):
    """AdamW by the book, without decay, float32."""
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for t, g in enumerate(gradients):
        mean, square = beta1 * mean + (1 - beta1) * g, 0.95 * square + 0.05 * g * g
        root = (square / (1 - 0.95 ** (t + 1))).sqrt() + 1e-10
        weight = weight - lr * min(1, (LENGTH - t) / (LENGTH / 2)) * mean / (1 - beta1 ** (t + 1)) / root
    return weight


def expected(name, weight):
    gradients = [gradient(name, weight.shape, step) for step in range(STEPS)]
    batch, width = math.sqrt(BATCH / 2**19), (32 / 768) ** -0.5
    rates = {"embedding.weight": (0.3 * width, 0.8), "table.weight": (0.3 * width, 0.8)}
    rates |= {"lm_head.weight": (0.004 * width, 0.8), "log_bandwidth": (Rates.bandwidth, 0.8)}
    rates |= {"resid_lambdas": (0.005, 0.8), "x0_lambdas": (0.5, 0.96)}
    for end, (rate, beta1) in rates.items():
        if name.endswith(end):
            return adamw(weight, gradients, rate * batch, beta1)
    return muon(weight, gradients, 0.02 * batch, 0.2 * (12 / 3) ** 2)


def ours(ranks):
    model = GPT(config(), seed=2)
    horizon = plan_horizon(config(), num_iterations=LENGTH, total_batch_size=BATCH)
    optimizer, schedule = ShardedOptimizer(model, Rates(), horizon, torch.float32, ranks), Schedule(LENGTH)
    share = 2 * (1 + ranks.rank) / (1 + ranks.world_size)  # of the gradient: the mean over ranks is 1
    for step in range(STEPS):
        wanted = {name: gradient(name, p.shape, step) for name, p in model.named_parameters()}
        for part in (0.25, 0.75):  # two micro-batches
            sum((p * wanted[name] * part * share).sum() for name, p in model.named_parameters()).backward()
        norm, losses = optimizer.reduce_gradients(torch.tensor(float(ranks.rank)))
        assert norm == pytest.approx(math.sqrt(sum(g.square().sum().item() for g in wanted.values())), rel=1e-5)
        assert losses == [float(rank) for rank in range(ranks.world_size)]
        schedule.apply(optimizer.optimizers, step)
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("world_size", [1, 3])
def test_steps_are_those_of_the_rule_written_out(world_size):
    start = {name: p.detach().clone() for name, p in GPT(config(), seed=2).named_parameters()}
    results = [ours(Ranks())] if world_size == 1 else run_ranks(world_size, ours)
    for name, weight in start.items():
        wanted = expected(name, weight)
        for result in results:
            moved, error = (wanted - weight).norm(), (result[name] - wanted).norm()
            # Where an update is nearly 0 its sign, and with it whether the weight decays, is a matter of rounding.
            assert error < 1e-3 * moved, f"{name}: {error / moved:.1e}"
            assert torch.equal(result[name], results[0][name])  # on all ranks the same bits


def test_a_weight_whose_update_is_zero_decays():
    weight = torch.nn.Parameter(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))
    before, weight.grad = weight.detach().clone(), torch.zeros(4, 6)
    Muon([weight], lr=0.1, weight_decay=0.5, dtype=torch.float32).step()
    torch.testing.assert_close(weight.detach(), 0.95 * before)
