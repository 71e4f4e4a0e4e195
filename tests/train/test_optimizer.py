"""Muon, parameter groups and schedules."""

import math

import pytest
import torch

from nanogka.common.cli import flags_of
from nanogka.model import GPT, GPTConfig, model_costs
from nanogka.train.budget import plan_budget
from nanogka.train.optimizer import Schedule, build_optimizers, optimizer_state_bytes, orthogonalize, state_shapes
from nanogka.train.settings import TrainSettings
from nanogka.train.snapshots import LearningRates, february_groups, july_groups


@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (32, 32)])
def test_orthogonalized_updates_have_singular_values_near_one(shape):
    updates = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(updates, torch.float32))
    assert values.min() > 0.7
    assert values.max() < 1.2


@pytest.mark.parametrize("rows,columns,squares", [(7, 5, (7, 1)), (5, 5, (5, 1)), (5, 7, (1, 7))])
def test_muon_averages_squares_along_the_shorter_side(rows, columns, squares):
    """Saved states have these shapes, a square matrix too."""
    assert state_shapes("muon", torch.Size((rows, columns))) == {"momentum": (rows, columns), "mean_square": squares}


@pytest.mark.parametrize("N", [30, 100, 520, 2000])
def test_julys_schedules_are_nanochats(N):
    settings = TrainSettings(network="july")
    schedule, warmdown = Schedule.of(settings, N, "july"), round(0.65 * N)
    for step in range(0, N + 1, 10):
        part = (step - (N - warmdown)) / warmdown
        rate = (step + 1) / 40 if step < 40 else 1 if part <= 0 else 1 - part + part * 0.05
        momentum = 0.85 + 0.12 * step / 400 if step < 400 else 0.97 if part < 0 else 0.97 * (1 - part) + 0.9 * part
        assert schedule.lr_scale(step) == pytest.approx(rate)
        assert schedule.momentum(step) == pytest.approx(momentum)
        assert schedule.weight_decay_scale(step) == pytest.approx((1 + math.cos(math.pi * step / N)) / 2, abs=1e-12)


RATES = LearningRates(
    matrix_lr=7, embedding_lr=11, unembedding_lr=13, scalar_lr=17, vector_lr=19, bandwidth_lr=23, backout_lr=29
)
# rates at half of the factor for the width and three times the factor for the batch
EQUAL = {"matrix": 21, "embedding": 16.5, "lm_head": 19.5, "resid_lambdas": 0.51, "x0_lambdas": 51, "vector": 57}
EQUAL |= {"bandwidth": 69, "smear_gate": 0.2, "smear_lambda": 0.2}


@pytest.mark.parametrize(
    "groups, rates, decays, betas",
    [
        (february_groups, {"value_embedding": 16.5}, {"matrix": 0.3}, {"x0_lambdas": (0.96, 0.95)}),
        (
            july_groups,
            {"value_embedding": 8.25, "backout_lambda": 29},
            {"matrix": 0.3, "embedding": 0.001, "value_embedding": 0.01, "lm_head": 0.01, "resid_lambdas": 0.05},
            {"embedding": (0.8, 0.995), "value_embedding": (0.8, 0.995), "lm_head": (0.8, 0.96)}
            | {"x0_lambdas": (0.96, 0.95)},
        ),
    ],
)
def test_every_group_has_its_rate_decay_and_averages(groups, rates, decays, betas):
    made = groups(RATES, 0.5, 3, 0.3)
    assert {name: group["lr"] for name, group in made.items()} == pytest.approx(EQUAL | rates)
    assert {name: group["weight_decay"] for name, group in made.items() if group["weight_decay"]} == decays
    found = {name: group["betas"] for name, group in made.items() if name != "matrix"}
    assert {name: pair for name, pair in found.items() if pair != (0.8, 0.95)} == betas


@pytest.mark.parametrize("N", [200, 2000])
def test_februarys_schedules_are_nanochats(N):
    schedule = Schedule.of(TrainSettings(network="february"), N, "february")
    for step in range(0, N + 1, 10):
        assert schedule.lr_scale(step) == pytest.approx(min(1, 2 * (1 - step / N)))
        assert schedule.momentum(step) == pytest.approx(0.85 + 0.1 * min(1, step / 300))
        assert schedule.weight_decay_scale(step) == pytest.approx(1 - step / N)


def test_a_networks_settings_hold_where_no_flag_says_otherwise():
    names = ("unembedding_lr", "weight_decay", "warmup_steps", "warmdown_ratio", "final_lr_frac")
    given = {"network": "july", "weight_decay": 0.0, "warmup_steps": 3, "final_lr_frac": 0.0}
    for words, expected in (
        ({"network": "february"}, [0.004, 0.2, 0, 0.5, 0.0]),
        ({"network": "july"}, [0.008, 0.28, 40, 0.65, 0.05]),
        (given, [0.008, 0.0, 3, 0.65, 0.0]),
    ):
        settings = TrainSettings(**words).for_network(words["network"])
        assert [getattr(settings, name) for name in names] == expected
    assert plan_budget(TrainSettings(network="july").config(50)).ratio == pytest.approx(12, abs=0.1)


@pytest.mark.parametrize("pattern,ratio", [("GGGD", 10.5), ("G", 8.25), ("D", 10.5)])
def test_a_hybrid_has_the_longest_horizon_of_its_mixers(pattern, ratio):
    config = GPTConfig.from_depth(4, pattern, vocab_size=50)
    embedding = 50 * config.n_embd
    head, matrices = embedding, model_costs(config).scaling_parameters - embedding
    budget = plan_budget(config, total_batch_size=2**10)
    assert budget.num_iterations == int(ratio * (matrices + head)) // 2**10


@pytest.mark.parametrize("depth, batch", [(6, 2**18), (12, 2**19), (20, 2**20)])
def test_the_batch_grows_with_the_tokens_as_nanochats_does(depth, batch):
    """The powers of two next to 2^19 · (tokens / those of depth 12)^0.383: 289, 524 and 888 thousand."""
    config = GPTConfig.from_depth(depth, "dot_product", network="july")
    assert plan_budget(config).total_batch_size == batch


def test_a_budget_of_flops_is_the_nearest_number_of_steps():
    config = GPTConfig.from_depth(2, vocab_size=50)
    step = model_costs(config).flops_per_token * 2**10
    for steps, expected in ((2.6, 3), (3.4, 3), (1.4, 1), (0.6, 1)):
        assert plan_budget(config, target_flops=steps * step, total_batch_size=2**10).num_iterations == expected
    with pytest.raises(ValueError, match=r"^target_flops: got .*, one step of 1,024 tokens$"):
        plan_budget(config, target_flops=0.4 * step, total_batch_size=2**10)


def test_adamw_moves_a_weight_of_tiny_gradient_at_the_full_rate():
    """nanochat's ε is 1e-10: at torch's 1e-8 a gradient of 1e-9 would move a weight by a tenth of its rate."""
    config = GPTConfig.from_depth(1, vocab_size=50)
    model = GPT(config)
    adamw, _ = build_optimizers(model, LearningRates(), plan_budget(config, num_iterations=9, total_batch_size=64))
    before = model.lm_head.weight.detach().clone()
    model.lm_head.weight.grad = torch.full_like(before, 1e-9)
    adamw.step()
    rate = next(group["lr"] for group in adamw.param_groups if group["name"] == "lm_head")
    torch.testing.assert_close(before - model.lm_head.weight, torch.full_like(before, rate / 1.1), rtol=1e-3, atol=1e-7)


def test_the_expected_optimizer_state_is_what_a_step_makes():
    config = GPTConfig.from_depth(2, "dot_product", vocab_size=300, sequence_len=16)
    model = GPT(config)
    optimizers = build_optimizers(model, LearningRates(), plan_budget(config, num_iterations=9, total_batch_size=64))
    model(torch.zeros(1, 16, dtype=torch.int64), torch.zeros(1, 16, dtype=torch.int64)).backward()
    for optimizer in optimizers:
        optimizer.step()
    held = [v for o in optimizers for state in o.state.values() for name, v in state.items() if name != "step"]
    assert optimizer_state_bytes(model) == sum(v.numel() * v.element_size() for v in held)


def test_the_largest_settings_do_not_overflow():
    """Learning rates beyond all reason diverge, which the loop reports. They do not end in an error of torch."""
    config = GPTConfig.from_depth(1, "dot_product", vocab_size=50, sequence_len=16, network="july")
    limits = {name: one.limits["le"] for name, one in flags_of(LearningRates).items() if one.kind is float}
    rates = LearningRates(**limits | {"warmup_steps": 0})
    model, budget = GPT(config), plan_budget(config, num_iterations=9, total_batch_size=64)
    optimizers = build_optimizers(model, rates, budget, torch.float32)
    for step in range(2):
        Schedule.of(rates, 9, "july").apply(optimizers, step)
        loss = model(torch.zeros(1, 16, dtype=torch.int64), torch.zeros(1, 16, dtype=torch.int64))
        assert loss.isfinite() == (step == 0), "the first step already diverges, without an exception"
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
