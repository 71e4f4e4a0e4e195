"""The decoding benchmark on small models."""

import itertools
import json

import pytest
import torch

from nanogka.bench.generate import DecodeSettings, compare_decoding
from nanogka.model import GPT, GPTConfig
from scripts import bench_generate

TABLES = ("embedding.weight", "table.weight")


def test_every_mixer_at_every_context_and_batch_size(capsys):
    flags = "--depth 2 --vocab-size 300 --contexts 12,20 --batch-sizes 1,3 --tokens 2 --repeats 2 --dtype float32"
    assert bench_generate.main(["--mixers", "gaussian,GD", *flags.split(), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    costs = {(c["mixer"], c["context"], c["batch_size"]): c for c in document["results"]}
    assert set(costs) == set(itertools.product(("gaussian", "GD"), (12, 20), (1, 3)))
    for (_, _, batch_size), cost in costs.items():
        assert cost["tokens_per_second"] == pytest.approx(batch_size / cost["token_seconds"])
        assert cost["over_floor"] == pytest.approx(cost["token_seconds"] / cost["floor_seconds"])
        assert min(cost["prefill_seconds"], cost["floor_seconds"]) > 0
    assert sum(line.startswith("| gaussian") for line in lines) == 4


def test_bytes_read_are_those_of_the_weights_applied_and_of_a_full_cache():
    names = "gaussian,dot_product,mixture"
    settings = DecodeSettings(names, depth=2, vocab_size=300, contexts="24", batch_sizes="3", tokens=2, repeats=1)
    for cost in compare_decoding(settings, torch.device("cpu"), torch.float32):
        model = GPT(GPTConfig.from_depth(2, cost.mixer, vocab_size=300, sequence_len=24))
        applied = [p for name, p in model.named_parameters() if name.endswith("weight") and not name.endswith(TABLES)]
        slots = sum(24 if window is None else min(24, window + 1) for window in model.config.windows())
        C, memory = model.config.n_embd, 2 * 64 * (128 + 1)  # of two layers: K × (D + 1) for the one head
        elements = {"gaussian": C * slots, "dot_product": 2 * C * slots, "mixture": memory}[cost.mixer]
        assert cost.cache_bytes == 3 * 4 * elements
        read = cost.cache_bytes + 4 * sum(p.numel() for p in applied)
        assert cost.bandwidth * cost.token_seconds == pytest.approx(read)
