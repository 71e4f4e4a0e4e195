"""A batch whose numbers are not finite: stopped before the update and explained, or passed over without a trace."""

import shutil

import pytest
import torch
from rank_worlds import run_training

from nanogka.data import PackingLoader, open_corpus
from nanogka.tokenizer import Tokenizer
from nanogka.train.bad_batch import examine, shorten
from nanogka.train.checkpoint import load_checkpoint, newest_sound
from nanogka.train.loop import Trainer
from nanogka.train.metrics import read_metrics
from scripts import base_train

MARK = "~"
TIMES = {"tokens_per_second", "flops_per_second", "seconds", "total_seconds", "data_wait", "created"}


def train(*words):
    return base_train.main([str(word) for word in words])


@pytest.fixture
def poisoned(base, flags, world, monkeypatch):
    """The flags of a run over a corpus in which one document has a token whose embedding is NaN; batches of one row."""
    shutil.copytree(world / "text", base / "text")
    (base / "text" / "zz_bad.txt").write_text(f"the old {MARK} cat sees the red river")
    corpus = open_corpus(base / "text")
    assert any(MARK in text for text in corpus.documents("train"))
    words = [base / "text" if word == str(world / "text") else word for word in flags]
    poison(monkeypatch.setattr)
    return [*words, "--dtype", "float32", "--num-iterations", 40, "--eval-every", 0]


def poison(setattr=setattr):
    original = Trainer._steps

    def steps(self, *rest):
        (token,) = self.prep.tokenizer.encode(MARK)
        with torch.no_grad():
            self.model.embedding.weight[token] = float("nan")
        return original(self, *rest)

    setattr(Trainer, "_steps", steps)


def where_it_is(base, rank=0, world_size=1, rows=2):
    """(step, micro-batch, row) of the mark, found by reading the loader's batches: 4 rows a step over all ranks."""
    tokenizer = Tokenizer.load(base / "tokenizers" / "tiny")
    (token,) = tokenizer.encode(MARK)
    accumulation = 4 // (rows * world_size)
    options = {"batch_size": rows, "sequence_len": 32, "seed": 1, "rank": rank, "world_size": world_size}
    with PackingLoader(open_corpus(base / "text"), "train", tokenizer, **options) as loader:
        for i in range(40 * accumulation):
            hit = (next(loader).inputs == token).any(dim=1)
            if hit.any():
                return i // accumulation + 1, i % accumulation, int(hit.nonzero()[0])
    return None


def trace(folder):
    lines = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines if line["kind"] != "run"]


def test_the_run_stops_before_the_update_and_names_step_rank_row_and_documents(base, poisoned, capsys):
    step, micro, row = where_it_is(base)
    assert train(*poisoned, "--run", "a", "--save-every", 1) == 3
    text = capsys.readouterr().err
    assert f"stopped at step {step} before its update: the loss is nan" in text
    assert f"rank 0, micro-batch {micro}, row {row}: the loss is nan; documents: " in text
    assert "zz_bad.txt, bytes 0 to " in text
    if step > 1:
        assert newest_sound(base / "runs" / "a" / "checkpoints")[0].name == f"step_{step - 1:06d}"


def test_a_skipped_batch_leaves_no_trace_in_weights_optimiser_and_losses(base, poisoned, monkeypatch, capsys):
    step, _, _ = where_it_is(base)
    short = [*poisoned[:-4], "--num-iterations", step + 3, "--eval-every", 0]
    assert train(*short, "--run", "skipped", "--skip-bad-batches", 1) == 0
    assert f"step {step}: the loss is nan; batch skipped (1 of 1)" in capsys.readouterr().err
    gradients = Trainer._gradients

    def without_it(self, loader):  # the oracle: the batch is not in the data at all
        if self.step == step - 1 and not self.skipped:
            self.skipped = 1
            for _ in range(self.prep.accumulation):
                next(loader)
        return gradients(self, loader)

    monkeypatch.setattr(Trainer, "_gradients", without_it)
    assert train(*short, "--run", "never") == 0
    skipped, never = (load_checkpoint(newest_sound(base / "runs" / n / "checkpoints")[0]) for n in ("skipped", "never"))
    for name, value in never.weights.items():
        assert torch.equal(skipped.weights[name].nan_to_num(), value.nan_to_num()), name
    for name, state in never.optimizer["state"].items():
        assert all(torch.equal(skipped.optimizer["state"][name][key], value) for key, value in state.items()), name
    lines = trace(base / "runs" / "skipped")
    (skip,) = (line for line in lines if line["kind"] == "skip")
    assert skip["step"] == step - 1
    assert any("zz_bad.txt" in name for name in skip["findings"][0]["documents"])
    assert [line for line in lines if line["kind"] == "train"] == [
        line for line in trace(base / "runs" / "never") if line["kind"] == "train"
    ]


def test_skips_are_counted_across_a_resume_and_logged_once(base, poisoned, monkeypatch, capsys):
    step, _, _ = where_it_is(base)
    common = [*poisoned[:-4], "--num-iterations", step + 4, "--eval-every", 0, "--skip-bad-batches", 1]
    common += ["--save-every", step + 1]
    assert train(*common, "--run", "whole") == 0
    original = Trainer._step

    def dies(self, loader):
        if self.step == self.dies:
            raise KeyboardInterrupt
        return original(self, loader)

    monkeypatch.setattr(Trainer, "_step", dies)
    for at in (step, step + 2, None):  # after the skip but before a checkpoint; after both; never
        Trainer.dies = at
        assert train(*common, "--run", "parts", "--resume", "auto") == (0 if at is None else 130)
    assert trace(base / "runs" / "parts") == trace(base / "runs" / "whole")
    assert load_checkpoint(newest_sound(base / "runs" / "parts" / "checkpoints")[0]).state["skipped"] == 1
    monkeypatch.setattr(Trainer, "_step", original)
    gradients = Trainer._gradients

    def one_more(self, loader):
        batches, parts, loss, norm = gradients(self, loader)
        return batches, parts, loss, float("inf") if self.step == step + 2 else norm

    monkeypatch.setattr(Trainer, "_gradients", one_more)
    for checkpoint in sorted((base / "runs" / "parts" / "checkpoints").glob("step_*"))[1:]:
        shutil.rmtree(checkpoint)
    assert train(*common, "--run", "parts", "--resume", "auto") == 3
    text = capsys.readouterr().err
    assert "the gradient norm is inf (1 such batches were skipped before it)" in text
    assert "rank 0: every micro-batch is finite when repeated alone" in text


def test_two_ranks_stop_together_and_name_the_one_at_fault(base, poisoned):
    places = {rank: where_it_is(base, rank, 2) for rank in (0, 1)}
    rank = min((place[0], rank) for rank, place in places.items() if place)[1]
    step, micro, row = places[rank]
    results = run_training(2, [*poisoned, "--run", "two"], base, poison)
    for code, errors in results:
        assert code == 3
        assert f"stopped at step {step} before its update: the loss is nan" in errors
        assert f"rank {rank}, micro-batch {micro}, row {row}: the loss is nan; documents: " in errors
        assert "zz_bad.txt" in errors


def test_a_gradient_that_is_not_finite_is_found_by_its_parameter():
    from nanogka.data.loader import Batch
    from nanogka.model import GPT, GPTConfig

    model = GPT(GPTConfig.from_depth(1, vocab_size=50, sequence_len=8))
    bad = torch.full((2, 8), 3)
    good = torch.full((2, 8), 4)

    def loss(ids, targets):
        value = model(ids, targets)
        if (ids == 3).any():
            model.lm_head.weight.register_hook(lambda g: g * float("inf"))
        return value

    batches = [Batch(good, good, {}, ((1,), (2,))), Batch(bad, bad, {}, ((7,), (8, 7)))]
    (finding,) = examine(model, loss, batches, 5, torch.device("cpu"), lambda document: f"d{document}")
    assert (finding.rank, finding.micro_batch) == (5, 1)
    assert finding.cause == "the gradient of lm_head.weight is not finite"
    assert finding.documents == ["d7", "d8"]
    assert all(p.grad is None for p in model.parameters())


def test_long_lists_of_documents_are_shortened():
    assert shorten([]) == "not known"
    assert shorten(["a", "b"]) == "a; b"
    assert shorten([str(i) for i in range(11)]).endswith("7; and 3 more")
