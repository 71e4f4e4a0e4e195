"""The Gaussian mixture mixer: its mathematics, its costs, decoding with a memory of constant size, training."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from nanogka.attention.mixture import mixture_reference
from nanogka.model import GPT, GPTConfig, KVCache, count
from nanogka.model.mixers.mixture import ROUTINGS
from scripts import base_train, tok_train

LENGTH = 48


def model_of(routing="projected", pattern="M", sequence_len=LENGTH, dtype=torch.float32, **changes):
    """A small model whose every parameter is random: the zeros of the initial values would hide errors."""
    shape = {"n_layer": 3, "n_head": 2, "n_embd": 64, "vocab_size": 97, "mixture_components": 7} | changes
    named = {"sequence_len": sequence_len, "mixer_pattern": pattern, "mixture_routing": routing}
    config = GPTConfig.from_dict(named | shape)
    model = GPT(config, compute_dtype=dtype).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype))
    return model.eval()


def ids_of(rows, length):
    return torch.randint(97, (rows, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_layer_is_its_formula(routing):
    model = model_of(routing, dtype=torch.float64)
    mixer, P = model.blocks[0].mixer, dict(model.blocks[0].mixer.named_parameters())
    x = torch.randn(2, 20, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def normed(s):
        return s / (s.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()

    if routing == "projected":
        q, k = (normed(F.linear(x, P[f"c_{n}.weight"]).view(2, 20, 2, 16)) for n in "qk")
        v = F.linear(x, P["c_v.weight"]).view(2, 20, 2, 32)
    else:
        v = x.view(2, 20, 2, 32)
        q = k = normed(v)
    if routing == "successor":
        k = torch.cat([torch.zeros_like(k[:, :1]), k[:, :-1]], 1)
    expected = F.linear(mixture_reference(q, k, v, mixer.components).flatten(2), P["c_proj.weight"])
    torch.testing.assert_close(mixer(x, None), expected, rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_stream_goes_on_past_the_training_context_in_the_same_memory():
    model, ids = model_of("successor"), ids_of(1, 4 * LENGTH)
    cache = KVCache(model, 1, 10**9)
    model(ids[:, :50], cache=cache)
    held = cache.bytes()
    for i in range(50, 4 * LENGTH):
        model(ids[:, i : i + 1], cache=cache)
    assert cache.bytes() == held


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("routing, pattern", [("projected", "M"), ("successor", "MG")])
def test_cache_bytes_are_those_of_the_accounting(routing, pattern, dtype):
    model = model_of(routing, pattern).to_compute(dtype)
    cache = KVCache(model, 1, LENGTH)
    with torch.no_grad():
        model(ids_of(1, LENGTH), cache=cache)
    assert cache.bytes() == count(model.config).cache_bytes(LENGTH, element_bytes=dtype.itemsize)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("components", [7, 80])
def test_flops_are_those_that_torch_counts(routing, components):
    model = model_of(routing, sequence_len=320, mixture_components=components)  # whole chunks of 64, and of 80
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(ids_of(1, 320))
    assert count(model.config).flops_per_token * 320 == 3 * counter.get_total_flops()


def test_parameters_are_counted_and_components_never_meet_muon():
    config = GPTConfig.from_depth(2, "mixture", vocab_size=50, mixture_components=5)
    C, H, K, d = 128, 1, 5, 16
    parameters = count(config).parameters
    assert parameters["components"] == 2 * H * K * (2 * d + 1)
    assert parameters["matrix"] == 2 * (2 * C * H * d + 2 * C * C + 8 * C * C)
    free = count(GPTConfig.from_depth(2, "mixture", vocab_size=50, mixture_routing="features"))
    assert free.parameters["matrix"] == count(GPTConfig.from_depth(2, "gaussian", vocab_size=50)).parameters["matrix"]
    groups = {n: g for g, members in GPT(config).parameter_groups().items() for n in members}
    assert {groups[f"blocks.0.mixer.{n}"].optimizer for n in ("means", "log_precisions", "log_weights")} == {"adamw"}


@pytest.mark.parametrize("routing, compiled", [*((routing, False) for routing in ROUTINGS), ("successor", True)])
def test_checkpointed_and_compiled_training_has_the_same_gradients(routing, compiled):
    model, ids = model_of(routing, "MG", n_layer=2), ids_of(2, LENGTH)
    expected = torch.autograd.grad(model(ids, ids), list(model.parameters()))
    model.activation_checkpointing = True
    loss = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager") if compiled else model
    for a, e in zip(torch.autograd.grad(loss(ids, ids), list(model.parameters())), expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-6)


def test_use_of_the_components_is_observed():
    model = model_of("features", "GM", n_layer=2, mixture_components=8)
    mixer = model.blocks[1].mixer
    with torch.no_grad():
        mixer.means.zero_()
        mixer.log_precisions.zero_()
        mixer.log_weights.zero_()
        mixer.log_weights[0, 0] = -1.0  # seldom used, but alive
        mixer.log_weights[1, 6:] = -50.0  # never
    model(ids_of(2, LENGTH))
    found = model.observations()
    assert list(found["bandwidth"]) == [0]
    expected = torch.distributions.Categorical(logits=mixer.log_weights.detach().double()).entropy()
    torch.testing.assert_close(found["component_entropy"][1], expected, rtol=0, atol=1e-4)
    assert found["dead_components"][1].tolist() == [0, 2]


@pytest.mark.parametrize(
    "changes",
    [
        {"mixture_components": 0},
        {"mixture_components": float("nan")},
        {"mixture_routing_dim": 129},
        {"mixture_routing_dim": 0},
        {"mixture_routing_dim": float("nan")},
        {"mixture_routing": "keys"},
    ],
)
def test_bad_settings_are_one_line(changes):
    ((name, value),) = changes.items()
    with pytest.raises(ValueError, match=f"^{name}: got {value!r}, takes [^\n]*$"):
        GPTConfig.from_depth(4, "mixture", **changes)


FLAGS = [
    "--attention", "MG", "--mixture-components", "6", "--mixture-routing", "successor", "--depth", "2",
    "--sequence-len", "64", "--tokenizer", "tiny", "--num-iterations", "4", "--total-batch-size", "512",
    "--eval-tokens", "512", "--compile", "off", "--dtype", "float32",
    "--device", "cpu",
]  # fmt: skip


def lines_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]


def test_a_hybrid_trains_and_logs_its_components(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path))
    runs = tmp_path / "runs"
    (tmp_path / "text").mkdir()
    for i in range(60):
        (tmp_path / "text" / f"{i}.txt").write_text(" ".join(f"{n} is followed by {n + 1}." for n in range(i, i + 40)))
    flags = [*FLAGS, "--data", str(tmp_path / "text")]
    assert tok_train.main([*flags[-2:], "--vocab-size", "300", "--name", "tiny"]) == 0
    assert base_train.main([*flags, "--run", "whole"]) == 0
    whole = lines_of(runs / "whole")
    losses = [line["loss"] for line in whole]
    assert losses[3] < losses[0]
    assert whole[0]["component_entropy_layers"] == [0]
    assert [len(head) for head in whole[0]["component_entropy"]] == [1]
    assert whole[0]["bandwidth_layers"] == [1]
