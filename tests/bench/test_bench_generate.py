"""The decoding benchmark on small models."""

import itertools
import json

import pytest
import torch

from nanogka.bench.generate import MIXERS, Contestant, DecodeSettings
from scripts import bench_generate


def test_both_mixers_at_every_context_number_of_streams_and_step(capsys):
    flags = "--depth 2 --vocab-size 300 --contexts 12,20 --streams 1,3 --tokens 2 --repeats 2 --dtype float32"
    flags += " --steps growing,plain"
    assert bench_generate.main([*flags.split(), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    costs = {(c["mixer"], c["step"], c["context"], c["streams"]): c for c in document["results"]}
    assert set(costs) == set(itertools.product(MIXERS, ("growing", "plain"), (12, 20), (1, 3)))
    for (_, _, _, streams), cost in costs.items():
        assert cost["bandwidth"] == pytest.approx(cost["read_bytes"] / cost["token_seconds"])
        assert cost["tokens_per_second"] == pytest.approx(streams / cost["token_seconds"])
        assert min(cost["first_token_seconds"], cost["floor_seconds"], cost["torch_seconds"], cost["cache_bytes"]) > 0
    slowly = {key for key, cost in costs.items() if cost["one_by_one_seconds"] is not None}
    assert slowly == {(mixer, "growing", 20, 1) for mixer in MIXERS}
    assert any("20 tokens, 3 streams, plain: gaussian" in line for line in lines)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_model_of_windows_alone_holds_no_more_of_a_longer_context(mixer):
    settings = DecodeSettings(depth=2, vocab_size=300, contexts=(24, 48), sequence_len=24, all_windowed=True)
    contestant = Contestant(mixer, settings, torch.device("cpu"), torch.float32)
    caches = [contestant.read(torch.randint(0, 300, (1, context)), context) for context in settings.contexts]
    assert caches[0].bytes() == caches[1].bytes()
    assert contestant.read_bytes(24, 1) == contestant.read_bytes(48, 1)


@pytest.mark.parametrize("mixer", MIXERS)
def test_bytes_read_are_those_of_the_weights_applied_and_of_a_full_cache(mixer):
    settings = DecodeSettings(depth=2, vocab_size=300, contexts=(24,), window_pattern="SL")
    contestant = Contestant(mixer, settings, torch.device("cpu"), torch.float32)
    cache = contestant.read(torch.randint(0, 300, (3, 24)), 24)
    tables = [p for name, p in contestant.model.named_parameters() if p.ndim == 2 and "embedding" not in name]
    weights = sum(p.numel() * 4 for p in tables)
    assert contestant.read_bytes(24, 3) == weights + cache.bytes()


def test_every_bad_flag_is_named(capsys):
    flags = [
        "--depth",
        "0",
        "--contexts",
        "5,x",
        "--streams",
        "0",
        "--repeats",
        "0",
        "--dtype",
        "int8",
        "--step",
        "fast",
    ]
    assert bench_generate.main(flags) == 2
    complaints = capsys.readouterr().err
    for flag in ("--depth", "--contexts", "--streams", "--repeats", "--dtype", "--steps"):
        assert flag in complaints
