"""The dry run finds a micro-batch that fits, all ranks the same, unless one was given."""

import pytest
import torch
import yaml
from rank_worlds import run_training

from nanogka.train import dry_run as module
from nanogka.train.metrics import read_metrics
from scripts import base_train


def fits(most, only_rank=None):
    """A device on which more than `most` rows do not fit (on one rank alone, if given)."""
    original = module._forward_backward

    def limited(prep, *rest):
        if prep.device_batch_size > most and only_rank in (None, prep.ranks.rank):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nlong story")
        return original(prep, *rest)

    module._forward_backward = limited


@pytest.fixture
def limit(monkeypatch):
    monkeypatch.setattr(module, "_forward_backward", module._forward_backward)  # put back afterwards
    return fits


@pytest.fixture
def automatic(flags):
    """Without --device-batch-size; 12 rows a step."""
    at = flags.index("--device-batch-size")
    words = [*flags[:at], *flags[at + 2 :], "--total-batch-size", str(12 * 32), "--num-iterations", "2"]
    return [*words, "--dtype", "float32", "--eval-every", "0"]


def train(*words):
    return base_train.main([str(word) for word in words])


def losses(folder):
    return [line["loss"] for line in read_metrics(folder / "metrics.jsonl") if line["kind"] == "train"]


def test_it_is_halved_until_it_fits_and_the_losses_stay(base, automatic, limit, capsys):
    assert train(*automatic, "--run", "whole") == 0
    limit(5)
    assert train(*automatic, "--run", "halved") == 0
    said = capsys.readouterr().out
    assert "12 rows a device do not fit its memory: going on with 6 (× 2 micro-batches)" in said
    assert "6 rows a device do not fit its memory: going on with 3 (× 4 micro-batches)" in said
    config = yaml.safe_load((base / "runs" / "halved" / "config.yaml").read_text())
    assert config["settings"]["device_batch_size"] == 3
    assert losses(base / "runs" / "halved") == pytest.approx(losses(base / "runs" / "whole"), rel=1e-5)


def test_one_that_was_given_is_an_error_that_names_the_flag(base, automatic, limit, capsys):
    limit(5)
    assert train(*automatic, "--run", "given", "--device-batch-size", 6) == 2
    errors = capsys.readouterr().err
    assert "--device-batch-size: got 6, which does not fit the device's memory; half of it may (CUDA out of" in errors
    assert not (base / "runs" / "given").exists()


def test_where_one_row_does_not_fit_the_error_says_what_else_to_try(base, automatic, limit, capsys):
    limit(0)
    assert train(*automatic, "--run", "none") == 2
    assert "got 1 (found by halving), which does not fit" in (errors := capsys.readouterr().err)
    assert "try --activation-checkpointing" in errors


def too_much_on_rank_one():
    fits(3, only_rank=1)


def test_ranks_agree_where_it_fits_one_of_them_alone(base, automatic):
    results = run_training(2, [*automatic, "--run", "two"], base, too_much_on_rank_one)
    assert [code for code, _ in results] == [0, 0], results
    config = yaml.safe_load((base / "runs" / "two" / "config.yaml").read_text())
    assert config["settings"]["device_batch_size"] == 3
