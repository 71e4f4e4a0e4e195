"""Sampling: distributions against their definition, draws against the distribution, nothing that MPS refuses."""

import math

import pytest
import torch
from generate_models import byte_tokenizer, small_model
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from nanogka.evaluate.bpb import measure_bits_per_byte
from nanogka.generate.engine import Engine
from nanogka.generate.sampling import SamplingParams, next_token_candidates, sample, sample_generators

WEIGHTS = torch.tensor([0.05, 0.4, 0.1, 0.25, 0.2])  # by size: 1, 3, 4, 2, 0
LOGITS = WEIGHTS.log()[None]


def distribution(logits, **settings):
    """The normalized distribution (B, V) that `sample` draws from."""
    probabilities, ids = next_token_candidates(logits, SamplingParams(**{"temperature": 1.0} | settings))
    full = torch.zeros(logits.shape, dtype=torch.float64).scatter_(1, ids, probabilities)
    return full / full.sum(-1, keepdim=True)


def defined(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The distribution by definition, one token at a time in plain Python: V probabilities."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])[: top_k or None]
    kept = {token: math.exp((logits[token] - max(logits)) / temperature) for token in order}

    def normalized(weights):
        total = math.fsum(weights.values())
        return {token: weight / total for token, weight in weights.items()}

    kept, mass, nucleus = normalized(kept), 0.0, {}
    for token in order:
        if mass < top_p:
            nucleus[token] = kept[token]
        mass += kept[token]
    kept = normalized(nucleus)
    bar = min_p * max(kept.values())
    kept = normalized({token: weight for token, weight in kept.items() if weight >= bar})
    return [kept.get(token, 0.0) for token in range(len(logits))]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 1, 7, 200, 300])
@pytest.mark.parametrize("top_p, min_p", [(1.0, 0.0), (0.8, 0.0), (1.0, 0.05), (0.9, 0.1)])
def test_the_distribution_is_the_defined_one(temperature, top_k, top_p, min_p):
    logits = 3 * torch.randn(3, 200, generator=torch.Generator().manual_seed(1))
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    expected = torch.tensor([defined(row.tolist(), **settings) for row in logits], dtype=torch.float64)
    torch.testing.assert_close(distribution(logits, **settings), expected, atol=1e-12, rtol=1e-9)


def test_top_k_of_equal_tokens_keeps_exactly_k():
    assert (distribution(torch.zeros(1, 6), top_k=2) > 0).sum() == 2


def test_temperatures_near_zero_are_greedy_not_nan():
    for temperature in (0.0, 1e-30, 1e-300):
        settings = SamplingParams(temperature=temperature)
        assert sample(15 * LOGITS, settings, sample_generators(0, [0])).tolist() == [1]


def test_the_penalty_pushes_seen_tokens_down():
    logits = torch.tensor([[2.0, 0.9, 0.0], [2.0, 1.1, 0.0], [-1.0, -1.9, -9.0], [-1.0, -2.1, -9.0]])
    past = torch.tensor([[[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]] * 4)
    assert sample(logits, SamplingParams(0, repetition_penalty=2.0), [], past).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("settings", [{"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.3}])
def test_frequencies_are_the_probabilities(settings):
    expected = torch.tensor(defined(LOGITS[0].tolist(), **settings), dtype=torch.float64)
    settings = SamplingParams(**{"temperature": 1.0, "seed": 7} | settings)
    tokens = sample(LOGITS.expand(20_000, -1), settings, sample_generators(settings.seed, [0]) * 20_000)
    got = torch.bincount(tokens, minlength=5).double() / 20_000
    kept = expected > 0
    assert got[~kept].sum() == 0
    chi_square = (20_000 * (got - expected)[kept].square() / expected[kept]).sum().item()
    assert chi_square < 18.5  # 4 degrees of freedom: exceeded once in a thousand seeds, and this seed is fixed


@pytest.mark.parametrize("drawn, expected", [(0.0, 1), (1 - 2**-53, 4)])
def test_the_ends_of_the_draw_meet_tokens_that_have_a_probability(monkeypatch, drawn, expected):
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.full(size, drawn, dtype=torch.float64))
    for settings in ({"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.45}):  # each leaves 1, 3 and 4
        settings = SamplingParams(temperature=1.0, **settings)
        assert sample(LOGITS, settings, sample_generators(0, [0])).item() == expected


def test_a_sample_depends_on_its_seed_and_number_alone():
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    settings = SamplingParams(temperature=1.0)

    def draw(seed, numbers):
        generators = sample_generators(seed, numbers)
        return torch.stack([sample(logits.expand(len(numbers), -1), settings, generators) for _ in range(20)], 1)

    together = draw(3, range(5))
    assert torch.equal(draw(3, [4, 2]), together[[4, 2]])
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(draw(4, [0])[0], together[0])
    assert not torch.equal(draw(4, [0])[0], together[1])  # sample 1 of seed 3 is not sample 0 of seed 4


class LikeMPS(TorchFunctionMode):
    """Refuses float64 as Apple's GPUs do: in every result that depends on a marked tensor, except through `.cpu()`."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.Tensor.cpu:
            return result.clone()  # without the mark
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(hasattr(tensor, "on_device") for tensor in tensors):
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    if tensor.dtype == torch.float64:
                        raise TypeError(f"float64 on the device, by {function}")
                    tensor.on_device = True
        return result


@pytest.mark.parametrize("pattern", ["G", "GD", "S"])
def test_nothing_needs_float64_on_the_device(pattern):
    model, tokenizer = small_model(pattern), byte_tokenizer()
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.on_device = True
    engine, ids = Engine(model, tokenizer), torch.arange(66).reshape(2, 33)
    ways = [{"temperature": 0}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1, "frequency_penalty": 1.0}]
    with LikeMPS():
        with pytest.raises(TypeError, match="float64"):
            model.lm_head.weight.double()
        assert all(engine.generate("Hi", max_tokens=4, **way) for way in ways)
        measured = measure_bits_per_byte(model, [(ids[:, :-1], ids[:, 1:])], tokenizer.token_bytes())
    assert measured.value > 0


def test_every_bad_setting_is_named():
    with pytest.raises(ValueError) as error:
        SamplingParams(math.nan, -1, 0.0, 2.0, 1e-320, 3.0, -3.0, -1)
    names = [line.split(":")[0] for line in str(error.value).splitlines()]
    penalties = [f"{name}_penalty" for name in ("repetition", "presence", "frequency")]
    assert names == ["temperature", "top_k", "top_p", "min_p", *penalties, "seed"]
