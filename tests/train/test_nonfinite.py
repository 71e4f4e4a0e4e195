"""A loss or gradient that is not finite stops the run before the update, or its batch is skipped."""

import os
import re
import shutil
import signal

import pytest
import torch
from rank_worlds import run_training
from training import bits, newest, trace, train

from nanogka.checkpoint import list_checkpoints
from nanogka.data import open_corpus
from nanogka.train import run as run_module
from nanogka.train import trainer
from nanogka.train.pretraining import load_tokenizer
from nanogka.train.sharded_optimizer import ShardedOptimizer

MARK = "~"
STEPS = 30  # in which the document with the mark comes


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
    original = run_module.fit_batch

    def fit_batch(model, *rest, **options):
        (token,) = load_tokenizer("tiny").encode(MARK)
        batch = original(model, *rest, **options)
        with torch.no_grad():
            model.embedding.weight[token] = float("nan")
        return batch

    setattr(run_module, "fit_batch", fit_batch)


def test_a_skipped_batch_leaves_no_trace_in_weights_optimizer_and_losses(base, poisoned, monkeypatch, capsys):
    assert train(*poisoned, "--run", "skipped", "--skip-bad-batches", 1) == 0
    assert re.search(r"step \d+: the loss is nan; batch skipped \(1 of 1\)", capsys.readouterr().err)
    (skip,) = trace(base / "runs" / "skipped", "skip")
    original, calls = trainer.forward_backward, []

    def without_it(loader, *rest):  # the oracle: the batch is not in the data at all
        calls.append(loader)
        if len(calls) == skip["step"] + 1:
            next(loader), next(loader)  # the micro-batches of the step
        return original(loader, *rest)

    monkeypatch.setattr(trainer, "forward_backward", without_it)
    assert train(*poisoned, "--run", "never") == 0
    assert [path.name for path in list_checkpoints(base / "runs" / "never" / "checkpoints")] == [f"step_{STEPS:06d}"]
    assert bits(base / "runs" / "skipped") == bits(base / "runs" / "never")
    assert trace(base / "runs" / "skipped", "train") == trace(base / "runs" / "never", "train")


def test_skips_are_counted_across_a_resume(base, poisoned, interrupted, monkeypatch, capsys):
    words = [*poisoned, "--run", "parts", "--skip-bad-batches", 1, "--resume", "auto", "--save-every", 1]
    norm = ShardedOptimizer.reduce_gradients
    interrupted(STEPS - 1, *words)  # after the skip
    assert newest(base / "runs" / "parts").state["skipped"] == 1
    monkeypatch.setattr(ShardedOptimizer, "reduce_gradients", lambda self, loss: (float("inf"), norm(self, loss)[1]))
    capsys.readouterr()
    assert train(*words) == 3
    out, err = capsys.readouterr()
    assert "the gradient norm is inf (1 such batches were skipped before it)" in err
    assert "done:" not in out


def test_a_signal_ends_a_run_that_skips_batches_and_its_last_step_is_saved(base, flags, monkeypatch, capsys):
    words = [*flags, "--run", "skips", "--skip-bad-batches", 9, "--resume", "auto", "--save-every", 0]
    norm, calls = ShardedOptimizer.reduce_gradients, []

    def broken_after_two(self, loss):
        calls.append(loss)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return (norm(self, loss)[0] if len(calls) <= 2 else float("inf")), [loss.item()]

    with monkeypatch.context() as patch:
        patch.setattr(ShardedOptimizer, "reduce_gradients", broken_after_two)
        assert train(*words) == 130
    assert len(calls) == 4
    assert "stopped by SIGINT after step 2" in capsys.readouterr().err
    saved = newest(base / "runs" / "skips")
    assert (saved.step, saved.state["skipped"]) == (2, 2)
    assert train(*words) == 0  # the skipped batches do not come again
    assert newest(base / "runs" / "skips").state["skipped"] == 2


def test_two_ranks_stop_before_the_update(base, poisoned):
    words = [*poisoned, "--run", "two", "--save-every", 1]
    (code, errors), (other, _) = run_training(2, words, base, poison)
    assert code == other == 3
    (step,) = re.findall(r"stopped at step (\d+) before its update: the loss is nan", errors)
    assert step == "1" or newest(base / "runs" / "two").step == int(step) - 1
