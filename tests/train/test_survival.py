"""Trouble in a long run: numbers that are not finite, too little memory."""

import re
import shutil
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import yaml
from rank_worlds import run_training
from training import bits, losses, newest, trace, train

from nanogka.common.distributed import Ranks
from nanogka.data import open_corpus
from nanogka.train import autobatch, pretraining, trainer
from nanogka.train.autobatch import MicroBatch
from nanogka.train.pretraining import load_tokenizer
from nanogka.train.sharded_optimizer import ShardedOptimizer

MARK = "~"
STEPS = 30  # in which the document with the mark comes

# ---- numbers that are not finite ----


@pytest.fixture
def poisoned(base, flags, world, monkeypatch):
    """The flags of a run over a corpus in which one document has a token whose embedding is NaN; batches of one row."""
    shutil.copytree(world / "text", base / "text")
    (base / "text" / "zz_bad.txt").write_text(f"the old {MARK} cat sees the red river")
    assert any(MARK in text for text in open_corpus(base / "text").documents("train"))
    words = [base / "text" if word == str(world / "text") else word for word in flags]
    poison(monkeypatch.setattr)
    return [*words, "--dtype", "float32", "--num-iterations", STEPS, "--eval-every", 0]


def poison(setattr=setattr):
    original = pretraining.fit_batch

    def fit_batch(model, *rest, **options):
        (token,) = load_tokenizer("tiny").encode(MARK)
        batch = original(model, *rest, **options)
        with torch.no_grad():
            model.embedding.weight[token] = float("nan")
        return batch

    setattr(pretraining, "fit_batch", fit_batch)


def test_a_skipped_batch_leaves_no_trace_in_weights_optimizer_and_losses(base, poisoned, monkeypatch, capsys):
    assert train(*poisoned, "--run", "skipped", "--skip-bad-batches", 1) == 0
    assert re.search(r"step \d+: the loss is nan; batch skipped \(1 of 1\)", capsys.readouterr().err)
    (skip,) = trace(base / "runs" / "skipped", "skip")
    original, left_out = trainer.next_batch, []

    def without_it(loader, model, optimizer, run_dir, state):  # the oracle: the batch is not in the data at all
        while state.step == skip["step"] and len(left_out) < 2:  # micro-batches per step
            left_out.append(next(loader))
        return original(loader, model, optimizer, run_dir, state)

    monkeypatch.setattr(trainer, "next_batch", without_it)
    assert train(*poisoned, "--run", "never") == 0
    assert bits(base / "runs" / "skipped") == bits(base / "runs" / "never")
    assert trace(base / "runs" / "skipped", "train") == trace(base / "runs" / "never", "train")


def test_skips_are_counted_across_a_resume_and_logged_once(base, poisoned, interrupted, monkeypatch, capsys):
    common = [*poisoned, "--skip-bad-batches", 1, "--resume", "auto"]
    assert train(*common, "--run", "whole") == 0
    step = trace(base / "runs" / "whole", "skip")[0]["step"] + 1
    common += ["--save-every", step + 1]
    interrupted(step, *common, "--run", "parts")  # after the skip but before a checkpoint
    interrupted(step + 2, *common, "--run", "parts")
    assert train(*common, "--run", "parts") == 0
    assert trace(base / "runs" / "parts")[1:] == trace(base / "runs" / "whole")[1:]
    assert newest(base / "runs" / "parts").state["skipped"] == 1

    shutil.rmtree(sorted((base / "runs" / "parts" / "checkpoints").iterdir())[-1])
    norm = ShardedOptimizer.reduce_gradients
    monkeypatch.setattr(ShardedOptimizer, "reduce_gradients", lambda self, loss: (float("inf"), norm(self, loss)[1]))
    assert train(*common, "--run", "parts") == 3
    text = capsys.readouterr().err
    assert "the gradient norm is inf (1 such batches were skipped before it)" in text


def test_two_ranks_stop_before_the_update(base, poisoned):
    words = [*poisoned, "--run", "two", "--save-every", 1]
    (code, errors), (other, _) = run_training(2, words, base, poison)
    assert code == other == 3
    (step,) = re.findall(r"stopped at step (\d+) before its update: the loss is nan", errors)
    assert step == "1" or newest(base / "runs" / "two").step == int(step) - 1


# ---- memory ----


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
    said = capsys.readouterr().out
    assert "12 rows per device do not fit its memory: continuing with 6 (× 2 micro-batches)" in said
    assert "6 rows per device do not fit its memory: continuing with 3 (× 4 micro-batches)" in said
    config = yaml.safe_load((base / "runs" / "halved" / "config.yaml").read_text())
    assert config["settings"]["device_batch_size"] == 3
    assert losses(base / "runs" / "halved") == pytest.approx(losses(base / "runs" / "whole"), rel=1e-5)


@pytest.mark.parametrize("most,words", [(5, "--device-batch-size 6"), (0, "")])
def test_where_nothing_fits_the_setting_is_named(base, automatic, monkeypatch, capsys, most, words):
    fits(most, setattr=monkeypatch.setattr)
    assert train(*automatic, "--run", "none", *words.split()) == 2
    assert f"--device-batch-size: got {6 if words else 1}" in capsys.readouterr().err
    assert not (base / "runs" / "none").exists()


def test_ranks_agree_on_a_micro_batch_that_fits_all_of_them(base, automatic):
    results = run_training(2, [*automatic, "--run", "two"], base, partial(fits, 3, only_rank=1))
    assert [code for code, _ in results] == [0, 0], results
    config = yaml.safe_load((base / "runs" / "two" / "config.yaml").read_text())
    assert config["settings"]["device_batch_size"] == 3


def test_a_try_on_a_gpu_leaves_neither_its_blocks_nor_its_peak(monkeypatch):
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
