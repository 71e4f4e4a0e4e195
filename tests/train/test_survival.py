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
from nanogka.data.loader import Batch
from nanogka.model import GPT, GPTConfig
from nanogka.train import loop, survival
from nanogka.train.survival import NonFiniteReport, locate_non_finite
from nanogka.train.zero import ShardedOptimizer

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
    original = loop.fit_batch

    def fit_batch(run, model, *rest):
        original(run, model, *rest)
        (token,) = run.tokenizer.encode(MARK)
        with torch.no_grad():
            model.embedding.weight[token] = float("nan")

    setattr(loop, "fit_batch", fit_batch)


def test_a_skipped_batch_leaves_no_trace_in_weights_optimizer_and_losses(base, poisoned, monkeypatch, capsys):
    assert train(*poisoned, "--run", "skipped", "--skip-bad-batches", 1) == 0
    assert re.search(r"step \d+: the loss is nan; batch skipped \(1 of 1\)", capsys.readouterr().err)
    (skip,) = trace(base / "runs" / "skipped", "skip")
    assert any("zz_bad.txt" in name for name in skip["findings"][0]["documents"])
    original, left_out = loop.next_batch, []

    def without_it(run, loader, model, optimizer, folder, state):  # the oracle: the batch is not in the data at all
        while state.step == skip["step"] and len(left_out) < run.accumulation:
            left_out.append(next(loader))
        return original(run, loader, model, optimizer, folder, state)

    monkeypatch.setattr(loop, "next_batch", without_it)
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
    assert "rank 0: every micro-batch is finite when repeated alone" in text


def test_two_ranks_stop_before_the_update_and_name_the_documents(base, poisoned):
    words = [*poisoned, "--run", "two", "--save-every", 1]
    (code, errors), (other, _) = run_training(2, words, base, poison)
    assert code == other == 3
    (step,) = re.findall(r"stopped at step (\d+) before its update: the loss is nan", errors)
    assert re.search(r"rank [01], micro-batch 0: the loss is nan; documents: .*zz_bad.txt, bytes 0 to ", errors)
    assert step == "1" or newest(base / "runs" / "two").step == int(step) - 1


def test_a_gradient_that_is_not_finite_is_found_by_its_parameter():
    model = GPT(GPTConfig.from_depth(1, vocab_size=50, sequence_len=8))
    good, bad = torch.full((2, 8), 4), torch.full((2, 8), 3)

    def loss(ids, targets):
        value = model(ids, targets)
        if (ids == 3).any():
            model.lm_head.weight.register_hook(lambda g: g * float("inf"))
        return value

    run = SimpleNamespace(ranks=Ranks(), device=torch.device("cpu"), locate="d{}".format)
    batches = [Batch(good, good, {}, ((1,), (2,))), Batch(bad, bad, {}, ((7,), (8, 7)))]
    (report,) = locate_non_finite(run, model, loss, batches)
    assert report == NonFiniteReport(0, 1, "the gradient of lm_head.weight is not finite", ["d7", "d8"])
    assert all(p.grad is None for p in model.parameters())


# ---- memory ----


def fits(most, only_rank=None, setattr=setattr):
    """A device on which more than `most` rows do not fit (on one rank alone, if given)."""
    original = survival.try_batch

    def limited(run, *rest):
        if run.device_batch_size > most and only_rank in (None, run.ranks.rank):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nlong story")
        return original(run, *rest)

    setattr(survival, "try_batch", limited)


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
    assert "12 rows per device do not fit its memory: going on with 6 (× 2 micro-batches)" in said
    assert "6 rows per device do not fit its memory: going on with 3 (× 4 micro-batches)" in said
    config = yaml.safe_load((base / "runs" / "halved" / "config.yaml").read_text())
    assert config["settings"]["device_batch_size"] == 3
    assert losses(base / "runs" / "halved") == pytest.approx(losses(base / "runs" / "whole"), rel=1e-5)


@pytest.mark.parametrize(
    "most,words,said",
    [
        (5, "--device-batch-size 6", "got 6, which does not fit the device's memory; half of it may (CUDA out of"),
        (0, "", "got 1 (found by halving), which does not fit the device's memory; try --activation-checkpointing"),
    ],
)
def test_where_nothing_fits_the_error_says_what_else_to_try(base, automatic, monkeypatch, capsys, most, words, said):
    fits(most, setattr=monkeypatch.setattr)
    assert train(*automatic, "--run", "none", *words.split()) == 2
    assert f"--device-batch-size: {said}" in capsys.readouterr().err
    assert not (base / "runs" / "none").exists()


def test_ranks_agree_on_a_micro_batch_that_fits_all_of_them(base, automatic):
    results = run_training(2, [*automatic, "--run", "two"], base, partial(fits, 3, only_rank=1))
    assert [code for code, _ in results] == [0, 0], results
    config = yaml.safe_load((base / "runs" / "two" / "config.yaml").read_text())
    assert config["settings"]["device_batch_size"] == 3
