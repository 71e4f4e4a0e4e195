"""What the loop logs of a step, and what a seed decides, on runs of a few steps."""

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from training import Recorder, toy_plan, trace, train

from nanogka.common.distributed import Ranks
from nanogka.common.formatting import duration
from nanogka.data import open_corpus
from nanogka.data.loader import Batch, validation_batches
from nanogka.model import GPT, GPTConfig, model_costs
from nanogka.runs import Run, load_run
from nanogka.train import costs, trainer
from nanogka.train.budget import plan_budget
from nanogka.train.optimizer import Schedule
from nanogka.train.pretraining import plan_pretraining
from nanogka.train.resume import LoopState
from nanogka.train.run_log import describe_best
from nanogka.train.settings import TrainSettings
from nanogka.train.sharded_optimizer import ShardedOptimizer

LOSSES = (8.0, 5.0, 6.5)


def test_smoothed_loss_and_times_of_each_step_and_of_all(monkeypatch):
    """A clock that the loader moves by 2 s and the loss of step n by n seconds: their sums are known."""
    now = [100.0]
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: now[0])
    config = GPTConfig.from_depth(1, vocab_size=50, sequence_len=8)
    model, settings = GPT(config), TrainSettings()
    optimizer = ShardedOptimizer(
        model, settings, plan_budget(config, num_iterations=3, total_batch_size=64), torch.float32
    )

    class Loader:
        data_wait, progress, step, merge = 5.0, {}, 0, staticmethod(lambda states: states[0])

        def __next__(self):
            now[0] += 2
            self.data_wait, self.step = self.data_wait + 2, self.step + 1
            return Batch(torch.tensor(self.step), torch.tensor(0), {}, tokens=100 * self.step)

    def loss(inputs, targets):
        now[0] += inputs.item()
        return LOSSES[inputs.item() - 1] + 0 * sum(p.sum() for p in model.parameters())

    plan, log, schedule = toy_plan(config, settings, 3, 1), Recorder(), Schedule.of(settings, 3, "february")
    assert trainer.train(plan, model, optimizer, schedule, Loader(), loss, log, [], LoopState()) == 0
    logged = {name: [line[name] for line in log.lines] for name in log.lines[0]}
    assert logged["loss"] == pytest.approx(LOSSES)
    assert logged["seconds"] == pytest.approx([3, 4, 5])
    assert logged["total_seconds"] == pytest.approx([3, 7, 12])
    assert logged["data_wait"] == pytest.approx([2, 2, 2])
    assert logged["tokens"] == [100, 300, 600]  # what the loader says that passed, not what was planned
    assert logged["flops"] == [tokens * model_costs(config).flops_per_token for tokens in (100, 300, 600)]
    assert logged["tokens_per_second"] == pytest.approx([100 / 3, 200 / 4, 300 / 5])
    # The weights of an average over about ten steps, each 0.9 of the next one's.
    means = [8.0, (0.9 * 8 + 5) / 1.9, (0.81 * 8 + 0.9 * 5 + 6.5) / 2.71]
    assert logged["smooth_loss"] == pytest.approx(means)


def test_the_garbage_collector_skips_what_the_first_step_left_until_the_end(flags, monkeypatch):
    """A full collection would visit all objects of torch in every step in which it happens."""
    events = []
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(trainer.gc, name, lambda name=name: events.append(name))
    log_step = trainer.log_step
    monkeypatch.setattr(trainer, "log_step", lambda *values: events.append("step") or log_step(*values))
    assert train(*flags, "--num-iterations", 3, "--eval-every", 0) == 0
    assert events == ["step", "freeze", "step", "step", "unfreeze"]


def test_a_seed_decides_the_first_weights(base, flags):
    for seed in (1, 2):
        assert train(*flags, "--num-iterations", 1, "--eval-every", 1, "--seed", seed, "--run", f"seed{seed}") == 0
    first, second = (trace(base / "runs" / f"seed{seed}", "eval")[0] for seed in (1, 2))
    assert first["step"] == second["step"] == 0
    assert first["val_bpb"] != second["val_bpb"]  # of the same text, before any training


def test_a_seed_decides_the_order_of_the_documents(base, world):
    def first_batch(seed):
        words = {"data": str(world / "text"), "tokenizer": "tiny", "depth": 1, "sequence_len": 32, "seed": seed}
        settings = TrainSettings(**words, num_iterations=1, total_batch_size=128, device="cpu")
        plan, recipe = plan_pretraining(settings, Ranks(), core=[])
        with recipe.loader(plan, None, None) as loader:
            return next(loader).inputs

    assert torch.equal(first_batch(1), first_batch(1))
    assert not torch.equal(first_batch(1), first_batch(2))


def test_a_validation_says_its_tokens_and_its_error(base, flags, capsys):
    """The figure is a ratio of two sums over documents; the oracle computes its error from the documents' sums."""
    random, text = np.random.default_rng(0), base / "talks"
    text.mkdir()
    for shard, count in enumerate((30, 25)):  # the last shard is the validation split
        texts = ["x" + "".join(random.choice(list("abcdé "), random.integers(5, 90))) for _ in range(count)]
        pq.write_table(pa.table({"text": texts}), text / f"shard_{shard:05}.parquet")
    words = (
        "--num-iterations 2 --eval-every 1 --save-every 1 --eval-tokens 4096 --packing bos-bestfit-crop --run a".split()
    )
    assert train(*flags, *words, "--data", text) == 0
    said = capsys.readouterr().err
    run = load_run("a")
    token_bytes, documents = run.tokenizer.token_bytes(), defaultdict(lambda: np.zeros(3))
    options = {"sequence_len": 32, "max_tokens": 4096, "packing": "bos-bestfit-crop"}
    data = validation_batches(open_corpus(text), run.tokenizer, batch_size=3, **options)
    for batch in data:
        losses, lengths = run.model(batch.inputs, batch.targets, reduction="none"), token_bytes[batch.targets.numpy()]
        losses = losses.detach().reshape(batch.targets.shape).double().numpy()
        for row, pieces in enumerate(batch.pieces):
            for document, first, count in pieces:
                loss, length = losses[row, first : first + count], lengths[row, first : first + count]
                documents[document] += loss[length > 0].sum(), length.sum(), (length > 0).sum()
    nats, size, tokens = np.array([sums for sums in documents.values() if sums[1]]).T
    count = len(nats)
    assert count > 9
    line = trace(base / "runs" / "a", "eval")[-1]
    assert line["val_tokens"] == tokens.sum()
    assert line["val_bpb"] == pytest.approx(nats.sum() / size.sum() / np.log(2), rel=1e-3)
    spread = np.std(nats - nats.sum() / size.sum() * size, ddof=1)
    assert line["val_bpb_se"] == pytest.approx(spread * count**0.5 / size.sum() / np.log(2), rel=1e-2)
    shown = f"{line['val_bpb']:.4f} ± {line['val_bpb_se']:.4f} SE ({line['val_tokens']:,} tokens)"
    assert f"step 2: val_bpb {shown}" in said
    assert f"best checkpoint kept: step 2, val_bpb {shown}" in said


def test_the_best_checkpoint_is_the_kept_one_with_the_lowest_finite_validation(tmp_path):
    for step in (10, 20, 30, 40):
        (tmp_path / f"step_{step:06}").mkdir()
    lines = {5: 0.5, 10: float("nan"), 20: 1.00, 30: 1.04, 40: 1.30}  # step 5 is not kept
    lines = {step: {"val_bpb": value, "val_bpb_se": 0.05, "val_tokens": 16300} for step, value in lines.items()}
    expected = "best checkpoint kept: step 20, val_bpb 1.0000 ± 0.0500 SE (16,300 tokens)"
    assert describe_best(tmp_path, "val_bpb", lines) == expected
    assert describe_best(tmp_path, "val_bpb", {20: lines[20]}) is None


def test_on_a_cpu_the_estimate_and_the_progress_know_the_measured_peak(base, flags, monkeypatch, capsys):
    monkeypatch.setattr(costs, "measure_matmul", lambda *_: 3e5)
    assert train(*flags, "--run", "a") == 0
    said, progress = capsys.readouterr()
    run = Run.open(base / "runs" / "a")
    seconds = run.accounting.flops_per_token * trace(run.folder, "train")[-1]["tokens"] / (0.2 * 3e5)
    assert f"about {duration(seconds)} of training at 20% of 3e+05 FLOP/s per device" in said
    assert "per parameter of matrices and head)" in said
    assert "% MFU)" in progress
    assert run.fact("peak_flops") is None  # equal runs have equal files
