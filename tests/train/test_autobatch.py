"""The micro-batch is halved until it fits."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import yaml
from rank_worlds import run_training
from training import losses, toy_plan, train

from nanogka.common.distributed import Ranks
from nanogka.model import GPTConfig
from nanogka.train import autobatch
from nanogka.train.autobatch import MicroBatch, largest_batch, try_batch
from nanogka.train.settings import TrainSettings


def fits(most, only_rank=None, setattr=setattr):
    """A device on which more than `most` rows do not fit (on one rank alone, if given)."""
    original = autobatch.try_batch

    def limited(loss_fn, optimizer, batch, device):
        if batch.rows > most and only_rank in (None, optimizer.ranks.rank):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nlong story")
        return original(loss_fn, optimizer, batch, device)

    setattr(autobatch, "try_batch", limited)


@pytest.fixture
def automatic(flags):
    """Without --device-batch-size; 12 rows a step."""
    at = flags.index("--device-batch-size")
    words = [*flags[:at], *flags[at + 2 :], "--total-batch-size", str(12 * 32), "--num-iterations", "2"]
    return [*words, "--dtype", "float32", "--eval-every", "0"]


def test_a_micro_batch_is_halved_until_it_fits_and_the_losses_stay(base, automatic, monkeypatch, capsys):
    assert train(*automatic, "--run", "whole") == 0
    fits(5, setattr=monkeypatch.setattr)
    assert train(*automatic, "--run", "halved") == 0
    assert capsys.readouterr().out.count("do not fit") == 2  # 12 rows, 6 rows
    config = yaml.safe_load((base / "runs" / "halved" / "config.yaml").read_text())
    assert config["settings"]["device_batch_size"] == 3
    assert losses(base / "runs" / "halved") == pytest.approx(losses(base / "runs" / "whole"), rel=1e-5)


@pytest.mark.parametrize("most,words,got", [(5, ["--device-batch-size", 6], 6), (0, [], 1)])
def test_where_nothing_fits_the_setting_is_named(base, automatic, monkeypatch, capsys, most, words, got):
    fits(most, setattr=monkeypatch.setattr)
    assert train(*automatic, "--run", "none", *words) == 2
    assert f"--device-batch-size: got {got}" in capsys.readouterr().err
    assert not (base / "runs" / "none").exists()


def test_ranks_agree_on_a_micro_batch_that_fits_all_of_them(base, automatic):
    results = run_training(2, [*automatic, "--run", "two"], base, partial(fits, 3, only_rank=1))
    assert [code for code, _ in results] == [0, 0], results
    config = yaml.safe_load((base / "runs" / "two" / "config.yaml").read_text())
    assert config["settings"]["device_batch_size"] == 3


@pytest.mark.parametrize(
    "depth,attention,network,rows",
    [
        (20, "gaussian", "february", 32),
        (24, "dot_product", "february", 16),
        (26, "gaussian", "february", 32),
        (26, "successor", "july", 16),
    ],
)
def test_the_first_try_is_the_largest_that_the_estimate_allows_on_80_gb(depth, attention, network, rows):
    """By hand for eight H100: 32 rows of d24 dot product are 76 GB of activations, and 12 GB stay on each device."""
    config = GPTConfig.from_depth(depth, attention, network=network, sequence_len=2048)
    plan = toy_plan(config, TrainSettings(), 2, 1, Ranks(0, 0, 8))
    plan = replace(plan, machine=replace(plan.machine, dtype=torch.bfloat16))
    plan = replace(plan, batch=MicroBatch(32, 32, 2048))
    assert largest_batch(plan, 85_000_000_000).rows == rows
    assert largest_batch(plan, 10**12).rows == 32
    assert largest_batch(plan, 10**9).rows == 1


def test_a_try_on_a_gpu_leaves_neither_its_blocks_nor_its_peak(monkeypatch, capsys):
    """A GPU that allocates nothing: the calls that keep a failed try out of the next one and of the metrics."""
    calls, tries = [], iter([torch.OutOfMemoryError("CUDA out of memory"), None])

    def try_batch(*rest):
        calls.append("try")
        if error := next(tries):
            raise error

    monkeypatch.setattr(autobatch, "try_batch", try_batch)
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *device, name=name: calls.append(name))
    optimizer = SimpleNamespace(zero_grad=lambda: None)
    batch = autobatch.fit_batch(None, optimizer, MicroBatch(4, 4, 8), torch.device("cuda"), Ranks())
    assert batch.rows == 2
    assert calls == ["try", "empty_cache", "try", "empty_cache", "reset_peak_memory_stats"]
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "4 rows per device do not fit its memory: continuing with 2 (× 2 micro-batches)"


def test_the_main_rank_alone_says_how_long_the_compilation_took_if_it_is_asked_to(monkeypatch, capsys):
    monkeypatch.setattr(autobatch, "try_batch", lambda *of: None)
    monkeypatch.setattr(autobatch.time, "perf_counter", iter([10.0, 82.0, 10.0, 10.0]).__next__)
    monkeypatch.setattr(Ranks, "any", lambda ranks, flags, device: flags)
    optimizer, cpu = SimpleNamespace(zero_grad=lambda: None), torch.device("cpu")
    autobatch.fit_batch(None, optimizer, MicroBatch(4, 4, 8), cpu, Ranks(), say_time=True)
    assert capsys.readouterr().out == "compiled and tried a batch in 1m12s\n"
    autobatch.fit_batch(None, optimizer, MicroBatch(4, 4, 8), cpu, Ranks(1, 1, 2), say_time=True)
    assert capsys.readouterr().out == ""


def test_training_uses_the_graph_that_the_try_has_compiled():
    graphs, weight = [], torch.ones(3, requires_grad=True)

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    loss_fn = torch.compile(lambda ids, targets: (weight * (ids - targets)).sum(), backend=backend, dynamic=False)
    try_batch(loss_fn, None, MicroBatch(2, 4, 3), torch.device("cpu"))
    assert loss_fn(torch.full((2, 3), 5), torch.full((2, 3), 2)) == 18
    assert len(graphs) == 1
    torch._dynamo.reset()
