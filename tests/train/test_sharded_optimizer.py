"""Sharded over ranks, each holds its share of the state and of the work; the steps are in test_literal_optimizer."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from rank_worlds import run_ranks

from nanogka.common.distributed import Ranks
from nanogka.model import GPT, GPTConfig
from nanogka.model.layers import MATRIX
from nanogka.train.budget import plan_budget
from nanogka.train.optimizer import Muon
from nanogka.train.sharded_optimizer import BUCKET, ShardedOptimizer, assign_owners, make_buckets
from nanogka.train.snapshots import LearningRates


def config():
    """Odd sizes: neither 2 nor 3 ranks divide the tables (101 × 36), and 3 mixtures of shapes among the matrices."""
    return GPTConfig(
        n_layer=3, n_head=2, n_embd=36, vocab_size=101, sequence_len=8, mixer_pattern="GDD", window_pattern="L"
    )


def sharded(ranks, steps, saved=None):
    """The weights, the state and the bytes of state on this rank after steps with random gradients, from `saved` on."""
    model = GPT(config(), seed=5)
    horizon = plan_budget(config(), num_iterations=4, total_batch_size=2**12)
    optimizer = ShardedOptimizer(model, LearningRates(), horizon, torch.float32, ranks)
    if saved is not None:
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
    generator = torch.Generator().manual_seed(ranks.rank)
    for _ in range(steps):
        sum((p * torch.randn(p.shape, generator=generator)).sum() for p in model.parameters()).backward()
        optimizer.reduce_gradients(torch.tensor(0.0))
        optimizer.step()
    held = sum(t.nbytes for o in optimizer.optimizers for entry in o.state.values() for t in entry.values())
    return model.state_dict(), optimizer.state_dict(), held


def test_each_rank_holds_its_share_and_any_number_of_ranks_goes_on_from_the_whole():
    """Two ranks, then three; one and two resume each other's checkpoints in test_trainer.py."""
    results, (_, whole, size) = run_ranks(2, sharded, 2), sharded(Ranks(), 1)
    weights, state, _ = results[0]
    assert [result[1] is not None for result in results] == [True, False]
    assert all(result[2] < 1.2 * size / 2 for result in results)
    shapes, expected = ({n: {k: v.shape for k, v in e.items()} for n, e in s["state"].items()} for s in (state, whole))
    assert shapes == expected
    taken = run_ranks(3, sharded, 0, (weights, state))[0]
    assert all(torch.equal(taken[0][name], value) for name, value in weights.items())
    assert all(torch.equal(taken[1]["state"][n][k], value) for n, e in state["state"].items() for k, value in e.items())


def traced(ranks):
    """What happens in a step, in order: messages that start and end, and matrices that Muon updates."""
    events = []

    class Sent:
        def __init__(self, work, what):
            self.work, self.what = work, what
            events.append(f"{what} starts")

        def wait(self):
            self.work.wait()
            events.append(f"{self.what} ends")

    def follow(send, name):
        return lambda tensor, *where, async_op, **at: Sent(
            send(tensor, *where, async_op=async_op, **at), f"{name} {len(tensor)} of {at.get('src', at.get('dst'))}"
        )

    with pytest.MonkeyPatch.context() as patch:
        for name in ("reduce", "broadcast"):
            patch.setattr(dist, name, follow(getattr(dist, name), name))
        step = Muon.step_shape
        patch.setattr(Muon, "step_shape", lambda muon, shape: (events.append(f"muon {[*shape]}"), step(muon, shape)))
        model = GPT(config(), seed=5)
        budget = plan_budget(config(), num_iterations=4, total_batch_size=2**12)
        optimizer = ShardedOptimizer(model, LearningRates(), budget, torch.float32, ranks)
        sum(p.square().sum() for p in model.parameters()).backward()
        optimizer.reduce_gradients(torch.tensor(0.0))
        optimizer.step()
    return events, model.state_dict()


def test_a_message_is_under_way_while_the_next_bucket_is_made_and_the_numbers_stay():
    (events, weights), (others, theirs) = run_ranks(2, traced)
    assert events == others, "all ranks send in one order"
    reduced = [event.split()[-1] for event in events if event.startswith("reduce")]
    assert reduced == ["starts", *["starts", "ends"] * (len(reduced) // 2 - 1), "ends"]
    assert sorted(e.split()[0] for e in events if e.endswith("starts")) == sorted(
        e.split()[0] for e in events if e.endswith("ends")
    )
    shapes = [index for index, event in enumerate(events) if event.startswith("muon")]
    assert len(shapes) == len({tuple(p.shape) for p in GPT(config()).parameter_groups()[MATRIX].values()})
    for index, after in zip(shapes, [*shapes[1:], len(events)]):
        before, turn = events[:index], events[index:after]
        under_way = sum(e.endswith("starts") for e in before) - sum(e.endswith("ends") for e in before)
        assert under_way > 0, "Muon works while weights travel"
        assert sum(e.endswith("ends") for e in turn) >= under_way, "which arrive before more are sent"
    # One rank with the same gradients, of which the mean is the same, has the same weights.
    alone = GPT(config(), seed=5)
    budget = plan_budget(config(), num_iterations=4, total_batch_size=2**12)
    optimizer = ShardedOptimizer(alone, LearningRates(), budget, torch.float32)
    sum(p.square().sum() for p in alone.parameters()).backward()
    optimizer.step()
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-6)
        assert torch.equal(weights[name], theirs[name])


def test_a_state_of_another_model_is_refused_with_the_parameter_named():
    _, state, _ = sharded(Ranks(), 1)
    fewer = {name: entry for name, entry in state["state"].items() if name != "blocks.1.mlp.c_fc.weight"}
    optimizer = ShardedOptimizer(GPT(config()), LearningRates(), plan_budget(config()), torch.float32)
    with pytest.raises(ValueError, match=r"resume: .* in 1 parameters: blocks.1.mlp.c_fc.weight"):
        optimizer.load_state_dict({**state, "state": fewer})


FORGED = {  # what torch's fused AdamW would read and write beyond, and what would become wrong weights in silence
    "one element": lambda value: value.reshape(-1)[:1].clone(),
    "transposed": lambda value: value.movedim(0, -1).contiguous() if value.ndim else value[None],
    "integers": lambda value: value.long(),
    "of eight bits": lambda value: value.to(torch.float8_e4m3fn),  # which torch cannot search for nan
    "nan": lambda value: torch.full_like(value, torch.nan),
    "a text": lambda value: "0.5",
    "sparse": lambda value: value.to_sparse(),
    "no memory": lambda value: value.to("meta"),
}


@pytest.mark.parametrize("parameter,key", [("embedding.weight", "exp_avg"), ("blocks.1.mlp.c_fc.weight", "momentum")])
@pytest.mark.parametrize("kind", FORGED)
def test_a_state_that_a_kernel_cannot_trust_is_refused_with_its_place_named(kind, parameter, key):
    optimizer = ShardedOptimizer(GPT(config()), LearningRates(), plan_budget(config()), torch.float32)
    _, saved, _ = sharded(Ranks(), 1)
    optimizer.load_state_dict(saved)
    state = saved["state"]
    state[parameter] |= {key: FORGED[kind](state[parameter][key])}
    with pytest.raises(ValueError, match=f"^resume: .*{key} of {parameter} "):
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize(
    "parameter,key",
    [("embedding.weight", "step"), ("embedding.weight", "exp_avg_sq"), ("blocks.1.mlp.c_fc.weight", "mean_square")],
)
def test_a_count_or_a_mean_square_below_zero_is_refused(parameter, key):
    """An update would divide by zero or take a root of it: a loss of nan that looks like too high a learning rate."""
    optimizer = ShardedOptimizer(GPT(config()), LearningRates(), plan_budget(config()), torch.float32)
    _, saved, _ = sharded(Ranks(), 1)
    saved["state"][parameter] |= {key: saved["state"][parameter][key] - 100}
    with pytest.raises(ValueError, match=f"^resume: .*{key} of {parameter} holds negative numbers"):
        optimizer.load_state_dict(saved)


def test_a_state_without_the_form_of_one_is_refused():
    optimizer = ShardedOptimizer(GPT(config()), LearningRates(), plan_budget(config()), torch.float32)
    _, saved, _ = sharded(Ranks(), 1)
    state, name = saved["state"], "embedding.weight"
    moments = {key: value for key, value in state[name].items() if key != "exp_avg"}
    for wrong in (moments, state[name] | {"extra": torch.ones(1)}, [1.5], None, {1: 2}):
        with pytest.raises(ValueError, match=f"^resume: .*{name} has "):
            optimizer.load_state_dict({"state": state | {name: wrong}})
    for wrong in ([1.5], None, 7):
        with pytest.raises(ValueError, match="^resume: .*expected a dictionary"):
            optimizer.load_state_dict({"state": wrong})


def test_a_saved_state_does_not_change_with_the_optimizer():
    """The checkpoint of a step is written while the next steps are made."""
    model = GPT(config(), seed=5)
    optimizer = ShardedOptimizer(model, LearningRates(), plan_budget(config()), torch.float32)
    saved = []
    for _ in range(2):
        sum(p.sum() for p in model.parameters()).backward()
        optimizer.step()
        saved.append(optimizer.state_dict()["state"])
    first, second = (state["lm_head.weight"]["exp_avg"] for state in saved)
    assert not torch.equal(first, second)


def test_over_eight_ranks_work_and_state_are_even_and_messages_few():
    with torch.device("meta"):
        model = GPT(GPTConfig.from_depth(20, "successor", vocab_size=32768))
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
    made = make_buckets(parameters, owners, kinds)
    turns = [(tuple(bucket.shape or ()), bucket.owner) for bucket in made]
    assert turns == sorted(turns), "AdamW's first, then one shape after the other, each from all owners"
    assert all({p.shape for p in bucket.parameters} == {bucket.shape} for bucket in made if bucket.shape)
    buckets = [bucket.parameters for bucket in made]
    assert sorted(id(p) for bucket in buckets for p in bucket) == sorted(map(id, parameters.values()))
    assert all(sum(p.numel() for p in bucket) <= BUCKET for bucket in buckets if len(bucket) > 1)
    assert len(buckets) <= 40
    assert assign_owners({"a": torch.Size((4, 4))}, {"a": "muon"}, 3) == {"a": 0}  # more ranks than parameters


def test_matrices_are_spread_by_the_work_of_their_orthogonalization_and_buckets_are_filled():
    # s² (2l + s): 3,072 multiplications of the flat matrix and 3,000 of each square one.
    shapes = {"flat": torch.Size((20, 8)), **dict.fromkeys("abc", torch.Size((10, 10)))}
    assert assign_owners(shapes, dict.fromkeys(shapes, "muon"), 2) == {"flat": 0, "a": 1, "b": 1, "c": 0}
    shapes = {"flatter": torch.Size((5, 57)), **dict.fromkeys("ab", torch.Size((10, 10)))}  # 2,975 and twice 3,000
    assert assign_owners(shapes, dict.fromkeys(shapes, "muon"), 2) == {"flatter": 0, "a": 0, "b": 1}
    parameters = {name: torch.nn.Parameter(torch.zeros(2, 2)) for name in "abcde"}
    made = make_buckets(parameters, dict.fromkeys(parameters, 0), dict.fromkeys(parameters, "adamw"), limit=8)
    assert [len(bucket.parameters) for bucket in made] == [2, 2, 1]
    kinds, owners = dict(zip("abcde", ["muon", "adamw", "muon", "adamw", "muon"])), dict.fromkeys("abcde", 0)
    parameters = {name: torch.nn.Parameter(torch.zeros(n, 3)) for name, n in zip("abcde", (2, 2, 5, 5, 2))}
    made = make_buckets(parameters, owners, kinds, limit=21)
    assert [(bucket.shape, [len(p) for p in bucket.parameters]) for bucket in made] == [
        (None, [2, 5]),
        ((2, 3), [2, 2]),
        ((5, 3), [5]),
    ]


def test_a_rank_without_gradients_adds_nothing_to_the_norm(monkeypatch):
    sent = []
    monkeypatch.setattr(dist, "all_reduce", lambda values: sent.append(values.tolist()) or values.add_(2.25))
    rank = SimpleNamespace(owned={}, buckets=[()], ranks=Ranks(2, 2, 3))
    assert ShardedOptimizer._norm_and_losses(rank, torch.tensor(3.5)) == (1.5, [2.25, 2.25, 5.75])
    assert sent == [[0.0, 0.0, 0.0, 3.5]]
