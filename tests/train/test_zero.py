"""Sharded over ranks, the optimisers do what the plain ones do, and each rank holds its share alone."""

import pytest
import torch
from rank_worlds import run_ranks

from nanogka.distributed import Ranks
from nanogka.model import GPT, GPTConfig
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import Rates, Schedule, build_optimizers
from nanogka.train.zero import ShardedOptimizer, assign_owners

STEPS = 4


def config():
    """Odd sizes: neither 2 nor 3 ranks divide the tables (101 × 36), and 3 mixtures of shapes among the matrices."""
    return GPTConfig(
        n_layer=3, n_head=2, n_embd=36, vocab_size=101, sequence_len=8, mixer_pattern="GDD", window_pattern="L"
    )


def horizon():
    return plan_horizon(config(), num_iterations=STEPS, total_batch_size=2**12)


def gradients(step, rank):
    """Random gradients of each parameter, of some rank at some step; σ's are large, a matrix's are tiny."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    model = GPT(config())
    scale = {name: 10.0 ** (i % 5 - 2) for i, name in enumerate(dict(model.named_parameters()))}
    return {n: torch.randn(p.shape, generator=generator) * scale[n] for n, p in model.named_parameters()}


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def backward(model, wanted):
    """A backward pass that gives each parameter the gradient wanted, through autograd and so through its hooks."""
    sum((p * wanted[name]).sum() for name, p in model.named_parameters()).backward()


def plain(world_size, steps=range(STEPS)):
    """One process, the plain optimisers, the mean of all ranks' gradients; two micro-batches a step."""
    model = GPT(config(), seed=5)
    optimizers, schedule = build_optimizers(model, Rates(), horizon(), torch.float32), Schedule(STEPS)
    norms = []
    for step in steps:
        for name, p in model.named_parameters():
            p.grad = sum(1.5 * gradients(step, rank)[name] for rank in range(world_size)) / world_size
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())
        schedule.apply(optimizers, step)
        for optimizer in optimizers:
            optimizer.step()
    return weights(model), norms


def sharded(ranks, start=0, stop=STEPS, saved=None):
    """A rank's part of the same; with `saved` (weights, state) it goes on from there."""
    model = GPT(config(), seed=5)
    optimizer, schedule = ShardedOptimizer(model, Rates(), horizon(), torch.float32, ranks), Schedule(STEPS)
    if saved is not None:
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
    norms = []
    for step in range(start, stop):
        mine = gradients(step, ranks.rank)
        backward(model, mine)
        optimizer.begin_reduction()
        backward(model, {name: gradient * 0.5 for name, gradient in mine.items()})
        optimizer.finish_reduction()
        norm, losses = optimizer.gradient_norm(torch.tensor(float(ranks.rank)))
        assert losses == [float(rank) for rank in range(ranks.world_size)]
        norms.append(norm)
        schedule.apply(optimizer.optimizers, step)
        optimizer.step()
    return weights(model), norms, optimizer.state_dict(), optimizer.state_bytes()


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_together_take_the_steps_of_the_plain_optimisers(world_size):
    expected, norms = plain(world_size)
    results = run_ranks(world_size, sharded)
    for weights_of_rank, norms_of_rank, _, _ in results:
        assert norms_of_rank == pytest.approx(norms, rel=1e-6)
        for name, value in expected.items():
            # By norm: whether a weight decays whose update is nearly 0 is a matter of rounding.
            assert (weights_of_rank[name] - value).norm() < 1e-4 * value.norm(), name
            assert torch.equal(weights_of_rank[name], results[0][0][name])  # on all ranks the same bits


def test_each_rank_holds_its_share_of_the_state_and_saves_the_whole():
    one = sharded(Ranks())
    two = run_ranks(2, sharded, 0, 1)
    alone = sharded(Ranks(), 0, 1)
    assert [result[2] is not None for result in two] == [True, False]
    whole, state = alone[2]["state"], two[0][2]["state"]
    assert {name: set(entry) for name, entry in state.items()} == {name: set(entry) for name, entry in whole.items()}
    assert all(v.shape == whole[n][k].shape for n, entry in state.items() for k, v in entry.items())
    assert all(result[3] < 0.6 * one[3] for result in two)
    assert sum(result[3] for result in two) < 1.05 * one[3]


@pytest.mark.parametrize("first,second", [(2, 1), (1, 2), (2, 3)])
def test_another_number_of_ranks_goes_on_from_the_state_exactly(first, second):
    def run(world_size, *args):
        return [sharded(Ranks(), *args)] if world_size == 1 else run_ranks(world_size, sharded, *args)

    model, _, state, _ = run(first, 0, 2)[0]
    taken = run(second, 2, 2, (model, state))[0]
    assert all(torch.equal(taken[0][name], value) for name, value in model.items())
    for name, entry in state["state"].items():
        for key, value in entry.items():
            assert torch.equal(taken[2]["state"][name][key], value), (name, key)


def test_one_rank_alone_is_the_plain_optimisers_bit_for_bit():
    expected, norms = plain(1)
    ours, norms_of_ours, _, _ = sharded(Ranks())
    assert norms_of_ours == norms
    assert all(torch.equal(ours[name], value) for name, value in expected.items())


def test_a_state_of_another_model_is_refused_with_the_parameter_named():
    _, _, state, _ = sharded(Ranks(), 0, 1)
    fewer = {name: entry for name, entry in state["state"].items() if name != "blocks.1.mlp.c_fc.weight"}
    optimizer = ShardedOptimizer(GPT(config()), Rates(), horizon(), torch.float32)
    with pytest.raises(ValueError, match=r"--resume: .* in 1 parameters: blocks.1.mlp.c_fc.weight"):
        optimizer.load_state_dict({**state, "state": fewer})
    state["state"]["lm_head.weight"]["exp_avg"] = torch.zeros(3, 3)
    with pytest.raises(ValueError, match="lm_head.weight"):
        optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match="not by parameter name, but has x"):
        optimizer.load_state_dict({"x": {}})


def test_matrices_are_shared_out_evenly_by_what_they_cost():
    shapes = {f"{layer}.{name}": torch.Size(shape) for layer in range(20) for name, shape in (
        ("out", (1280, 1280)), ("up", (5120, 1280)), ("down", (1280, 5120)))}  # fmt: skip
    owners = assign_owners(shapes, 8)
    cost = [0.0] * 8
    for name, owner in owners.items():
        cost[owner] += 1 if name.endswith("out") else 3
    assert set(owners) == set(shapes)
    assert max(cost) <= 1.1 * sum(cost) / 8
    assert set(assign_owners({"a": torch.Size((4, 4))}, 3).values()) <= {0, 1, 2}


def first_works(ranks):
    """The number of reductions that were under way when the backward pass reached its last parameter."""
    model = GPT(config(), seed=5)
    optimizer = ShardedOptimizer(model, Rates(), horizon(), torch.float32, ranks)
    launched = []
    model.embedding.weight.register_post_accumulate_grad_hook(lambda _: launched.append(optimizer._started))
    ids = torch.zeros((2, 8), dtype=torch.int64)
    model(ids, ids).backward()
    before = optimizer._started
    optimizer.begin_reduction()
    model(ids, ids).backward()
    optimizer.finish_reduction()
    return before, launched[-1], len(optimizer.partitions)


def test_gradients_leave_while_the_backward_pass_goes_on_and_only_in_the_last_micro_batch():
    for before, launched, shares in run_ranks(2, first_works):
        assert before == 0
        assert launched >= shares - 2  # all but the embedding's own and the small ones
