"""The loop makes the updates of the rule written out, one parameter and one step at a time, at the scheduled rates."""

import math

import numpy as np
import pytest
import torch
from rank_worlds import run_ranks
from training import Recorder, toy_plan

from nanogka.common.distributed import Ranks
from nanogka.data.loader import Batch
from nanogka.model import GPT, GPTConfig
from nanogka.train.budget import plan_budget
from nanogka.train.optimizer import POLAR_EXPRESS, Muon, Schedule
from nanogka.train.resume import LoopState
from nanogka.train.settings import TrainSettings
from nanogka.train.sharded_optimizer import ShardedOptimizer
from nanogka.train.snapshots import LearningRates
from nanogka.train.trainer import train

STEPS, LENGTH, BATCH = 50, 80, 2**13  # the momentum rises, and the rates are on their way down


def config(network):
    """A hybrid with square, wide and tall matrices; a network of depth 3 for the decay's factor."""
    shape = {"n_layer": 3, "n_head": 1, "n_embd": 32, "vocab_size": 50, "sequence_len": 8, "window_pattern": "L"}
    return GPTConfig(**shape, mixer_pattern="GDD", network=network)


def rate_factor(network, t):
    """Both schedules by the book."""
    if network == "february":
        return min(1, (LENGTH - t) / (LENGTH / 2))
    left = (LENGTH - t) / (0.65 * LENGTH)
    return (t + 1) / 40 if t < 40 else left + (1 - left) * 0.05


def gradient(name, shape, step):
    """Random, its rows of unlike sizes, with a mean that lets averages grow."""
    generator = torch.Generator().manual_seed(1000 * step + sum(map(ord, name)))
    mean = torch.randn(shape, generator=torch.Generator().manual_seed(sum(map(ord, name))))
    rows = torch.logspace(-1, 1, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    size = 3e-6 if name == "x0_lambdas" else 1.0  # near its ε, so that another ε shows
    return (torch.randn(shape, generator=generator) + 0.2 * mean) * rows * size


def muon(weight, gradients, lr, decay, network):
    """Muon by the book, float32."""
    july, momentum, (rows, columns) = network == "july", torch.zeros_like(weight), weight.shape
    along = 1 if rows >= columns else 0
    average = torch.zeros(rows if along else columns)
    for t, g in enumerate(gradients):
        beta = 0.85 + (0.97 - 0.85) * t / 400 if july else 0.85 + (0.95 - 0.85) * min(1, t / 300)
        momentum = beta * momentum + (1 - beta) * g
        x = (1 - beta) * g + beta * momentum
        if july:  # MuonEq: each row as long as the rows' root mean square
            x = x * x.norm() / math.sqrt(rows) / x.norm(dim=1, keepdim=True)
        x = x / ((1.01 if july else 1.02) * x.norm() + 1e-6)
        for a, b, c in POLAR_EXPRESS:
            s = x @ x.T if rows <= columns else x.T @ x
            x = a * x + ((b * s + c * s @ s) @ x if rows <= columns else x @ (b * s + c * s @ s))
        if july:  # Muon+
            x = x * math.sqrt(min(rows, columns)) / x.norm()
        square, beta2 = (x * x).mean(along), 0.9 if july else 0.95
        average = beta2 * average + (1 - beta2) * square
        new = x / average.clamp_min(1e-10).sqrt().unsqueeze(along)
        new = new * x.norm() / new.norm()
        rate = lr * math.sqrt(max(1, rows / columns)) * rate_factor(network, t)
        shown = 0.5 * (1 + math.cos(math.pi * t / LENGTH)) if july else 1 - t / LENGTH
        shrink = rate * decay * shown * (new * weight >= 0) * weight
        weight = weight - rate * new - shrink
    return weight


def adamw(weight, gradients, network, lr, beta1, beta2=0.95, decay=0.0, epsilon=1e-10):
    """AdamW by the book, float32."""
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for t, g in enumerate(gradients):
        rate = lr * rate_factor(network, t)
        mean, square = beta1 * mean + (1 - beta1) * g, beta2 * square + (1 - beta2) * g * g
        root = (square / (1 - beta2 ** (t + 1))).sqrt() + epsilon
        weight = weight * (1 - rate * decay) - rate * mean / (1 - beta1 ** (t + 1)) / root
    return weight


def expected(name, weight, network, scale):
    gradients = [gradient(name, weight.shape, step) for step in range(STEPS)]
    batch, width = math.sqrt(BATCH / 2**19), (32 / 768) ** -0.5
    factor = batch if scale is None else scale  # --lr-scale replaces the batch's factor, it does not multiply it
    wide = width * factor
    february = {"embedding.weight": (0.3 * wide, 0.8), "table.weight": (0.3 * wide, 0.8)}
    february |= {"lm_head.weight": (0.004 * wide, 0.8), "log_bandwidth": (LearningRates.bandwidth_lr * factor, 0.8)}
    february |= {"resid_lambdas": (0.005 * factor, 0.8, 0.95, 0.0, 1e-6)}
    february |= {"x0_lambdas": (0.5 * factor, 0.96, 0.95, 0.0, 1e-6)}
    july = february | {
        "table.weight": (0.15 * wide, 0.8, 0.995, 0.01),
        "lm_head.weight": (0.008 * wide, 0.8, 0.96, 0.01),
    }
    july |= {"resid_lambdas": (0.005 * factor, 0.8, 0.95, 0.05, 1e-6), "smear_gate.weight": (0.2, 0.8)}
    july |= {"smear_lambda": (0.2, 0.8), "backout_lambda": (0.07, 0.8)}
    july |= {"embedding.weight": (0.3 * wide, 0.8, 0.995, 0.001)}
    for end, treatment in (july if network == "july" else february).items():
        if name.endswith(end):
            return adamw(weight, gradients, network, *treatment)
    # Matrices of each layer and the head: the mixer's, MLP's 8 C², and gates of 12 features on layers 0 and 2, where
    # the Gaussian one has no value embedding. Depth 12 is 768 wide, and tiles the pattern: 8 dot-product layers, of
    # which those at 1, 5, 7, 11 have value embeddings, with 6 heads.
    here = 9 * 32**2 + 2 * 12 * 32**2 + 12 + 50 * 32
    there = 4 * 9 * 768**2 + 8 * 12 * 768**2 + 4 * 12 * 6 + 50 * 768
    decay = 0.28 * batch * there / here if network == "july" else 0.2 * (12 / 3) ** 2
    return muon(weight, gradients, 0.02 * factor, decay, network)


def ours(ranks, network, scale):
    """The weights after the loop's steps, with gradients that the loss imposes on the model."""
    model, settings = GPT(config(network), seed=2), TrainSettings(network=network, lr_scale=scale, backout_lr=0.07)
    budget = plan_budget(config(network), num_iterations=LENGTH, total_batch_size=BATCH)
    optimizer = ShardedOptimizer(model, settings, budget, torch.float32, ranks)
    schedule, log = Schedule.of(settings, LENGTH, network), Recorder()
    plan = toy_plan(config(network), settings, STEPS, 2, ranks)
    share = 2 * (1 + ranks.rank) / (1 + ranks.world_size)  # of the gradient: the mean over ranks is 1

    def loss(inputs, targets):
        parts = [(p * gradient(name, p.shape, inputs.item())).sum() for name, p in model.named_parameters()]
        total = sum(parts) * share
        return total - total.detach() + ranks.rank

    class Loader:
        data_wait, progress, given, merge = 0.0, {}, 0, staticmethod(lambda states: states[0])

        def __next__(self):
            step, part = divmod(self.given, 2)  # two micro-batches, of a quarter and three quarters of the step
            self.given += 1
            return Batch(torch.tensor(step), torch.tensor(0), {}, (0.5, 1.5)[part])

    assert train(plan, model, optimizer, schedule, Loader(), loss, log, [], LoopState()) == 0
    shapes = {name: p.shape for name, p in model.named_parameters()}
    for step, line in enumerate(log.lines):
        squares = sum(gradient(name, shape, step).square().sum().item() for name, shape in shapes.items())
        assert line["grad_norm"] == pytest.approx(math.sqrt(squares), rel=1e-5)
        assert line["loss"] == pytest.approx((ranks.world_size - 1) / 2)
    assert len(log.lines) == STEPS
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("network,scale", [("february", None), ("july", 0.7)])
def test_the_loops_updates_are_those_of_the_rule_written_out(network, scale):
    start = {name: p.detach().clone() for name, p in GPT(config(network), seed=2).named_parameters()}
    alone, ranks = ours(Ranks(), network, scale), run_ranks(2, ours, network, scale)
    for name, weight in start.items():
        wanted = expected(name, weight, network, scale)
        for result in (alone, *ranks):
            moved, error = (wanted - weight).norm(), (result[name] - wanted).norm()
            # Where an update is nearly 0 its sign, and with it whether the weight decays, is a matter of rounding.
            assert error < 1e-3 * moved, f"{name}: {error / moved:.1e}"
        assert all(torch.equal(result[name], ranks[0][name]) for result in ranks)  # the same bits


def test_a_weight_whose_update_is_zero_decays():
    weight = torch.nn.Parameter(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))
    before, weight.grad = weight.detach().clone(), torch.zeros(4, 6)
    Muon([weight], lr=0.1, weight_decay=0.5, dtype=torch.float32).step()
    torch.testing.assert_close(weight.detach(), 0.95 * before)


def test_polar_express_brings_every_singular_value_near_one():
    """From 10⁻³ to 1, with the margin of 2 %: a coefficient that is wrong by a tenth breaks the bounds."""
    values = np.logspace(-3, 0, 4001) / 1.02
    for a, b, c in POLAR_EXPRESS:
        values = a * values + b * values**3 + c * values**5
    assert (values.min(), values.max()) == pytest.approx((0.8466, 1.1411), abs=1e-4)
