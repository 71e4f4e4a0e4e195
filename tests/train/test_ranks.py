"""Ranks together are one run: the same losses as one rank, and checkpoints that any number of them goes on from."""

import pytest
from rank_worlds import run_training

from nanogka.train.metrics import read_metrics
from scripts import base_train


def train(*words):
    return base_train.main([str(word) for word in words])


def losses(folder):
    return [line["loss"] for line in read_metrics(folder / "metrics.jsonl") if line["kind"] == "train"]


def test_one_rank_and_two_give_the_same_losses_over_fifty_steps(base, flags):
    """Two micro-batches of one row, on one rank or on two: then the sums have the same terms in the same order.

    Grouped otherwise, rounding differs, which Muon amplifies where a gradient is rounding and nothing else: one rank
    with micro-batches of 2 rows and with those of 4 is 6e-5 apart after 50 steps (docs/LOG.md).
    """
    common = [*flags, "--dtype", "float32", "--num-iterations", 50, "--eval-every", 0, "--lr-scale", 0.1]
    common += ["--sequence-len", 64, "--device-batch-size", 1]
    assert train(*common, "--run", "one") == 0
    assert [code for code, _ in run_training(2, [*common, "--run", "two"], base)] == [0, 0]
    one, two = losses(base / "runs" / "one"), losses(base / "runs" / "two")
    assert len(one) == 50
    assert one[-1] < one[0] - 1  # it did learn
    assert two == pytest.approx(one, rel=1e-5)


def stop_at_four():
    stop_at(4)


def stop_at(step, setattr=setattr):
    from nanogka.train.loop import Trainer

    original = Trainer._step

    def steps(self, loader):
        if self.step == step:
            raise KeyboardInterrupt
        return original(self, loader)

    setattr(Trainer, "_step", steps)


def test_a_checkpoint_of_two_ranks_goes_on_with_one_and_that_of_one_with_two(base, flags, monkeypatch):
    common = [*flags, "--dtype", "float32", "--save-every", 4, "--eval-every", 0, "--resume", "auto"]
    assert train(*common, "--run", "whole") == 0
    assert [code for code, _ in run_training(2, [*common, "--run", "parts"], base, stop_at_four)] == [130, 130]
    with monkeypatch.context() as patched:
        stop_at(8, patched.setattr)
        assert train(*common, "--run", "parts") == 130
    assert [code for code, _ in run_training(2, [*common, "--run", "parts"], base)] == [0, 0]
    whole, parts = losses(base / "runs" / "whole"), losses(base / "runs" / "parts")
    assert len(parts) == 12
    assert parts == pytest.approx(whole, rel=1e-5)
