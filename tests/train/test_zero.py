"""Sharded over ranks, the optimisers do what the plain ones do, and each rank holds its share alone."""

import pytest
import torch
from rank_worlds import run_ranks

from nanogka.distributed import Ranks
from nanogka.model import GPT, GPTConfig
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import Rates, Schedule, build_optimizers
from nanogka.train.zero import BUCKET, ShardedOptimizer, assign_owners, make_buckets

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
    """A backward pass that gives each parameter the gradient wanted."""
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
        backward(model, {name: gradient * 0.5 for name, gradient in mine.items()})
        norm, losses = optimizer.reduce_gradients(torch.tensor(float(ranks.rank)))
        assert losses == [float(rank) for rank in range(ranks.world_size)]
        norms.append(norm)
        schedule.apply(optimizer.optimizers, step)
        optimizer.step()
    held = sum(t.nbytes for o in optimizer.optimizers for entry in o.state.values() for t in entry.values())
    return weights(model), norms, optimizer.state_dict(), held


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


def model_of_depth_20(attention):
    with torch.device("meta"):
        return GPT(GPTConfig.from_depth(20, attention, vocab_size=32768))


@pytest.mark.parametrize("attention", ["gaussian", "successor", "dot_product"])
def test_over_eight_ranks_work_and_state_are_even_and_messages_few(attention):
    model = model_of_depth_20(attention)
    parameters = dict(model.named_parameters())
    kinds = {name: group.optimizer for group, named in model.parameter_groups().items() for name in named}
    owners = assign_owners({name: p.shape for name, p in parameters.items()}, kinds, 8)
    work, state = [0] * 8, [0] * 8
    for name, owner in owners.items():
        p = parameters[name]
        state[owner] += p.numel() * (1 if kinds[name] == "muon" else 2)
        work[owner] += p.numel() * min(p.shape) if kinds[name] == "muon" else 0
    assert max(work) <= 1.15 * sum(work) / 8
    assert max(state) <= sum(state) / 8 + 2 * max(p.numel() for p in parameters.values())
    buckets = make_buckets(parameters, owners)
    assert sorted(id(p) for bucket in buckets for p in bucket.parameters) == sorted(map(id, parameters.values()))
    assert all(sum(p.numel() for p in b.parameters) <= BUCKET for b in buckets if len(b.parameters) > 1)
    assert len(buckets) <= 40


def test_more_ranks_than_parameters_leave_some_without():
    assert assign_owners({"a": torch.Size((4, 4))}, {"a": "muon"}, 3) == {"a": 0}
