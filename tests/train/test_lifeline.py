"""A rank that dies is named by the others, which end too."""

import time

import pytest
import torch
import torch.distributed as dist
from rank_worlds import run_training

from nanogka.train import lifeline
from nanogka.train.distributed import Ranks
from nanogka.train.lifeline import Lifeline, is_broken_collective, run_together


@pytest.fixture
def lives(monkeypatch):
    """Makes the lifelines of several ranks over one store, a hundred times as fast; returns their exit codes too."""
    monkeypatch.setattr(lifeline, "INTERVAL", 0.02)
    monkeypatch.setattr(lifeline, "GRACE", 0.05)
    store, made, left = dist.HashStore(), [], {}

    def make(world_size, timeout=2.0):
        for rank in range(world_size):
            made.append(Lifeline(Ranks(rank, rank, world_size), store, timeout, lambda c, r=rank: left.update({r: c})))
        return made, left

    yield make
    for life in made:
        life.stop()


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def fall_silent(life):
    """As SIGKILL would: no sign more, and none of leaving."""
    life._stop.set()
    life.store = None
    life._thread.join()


def test_a_silent_rank_is_named_by_all_others_which_leave(lives, capsys):
    made, left = lives(3)
    time.sleep(0.1)
    fall_silent(made[2])
    wait_for(lambda: set(left) == {0, 1})
    assert set(left.values()) == {lifeline.EXIT_LOST_RANK}
    errors = capsys.readouterr().err
    for rank in (0, 1):
        assert f"rank {rank}: stopping, because rank 2 has given no sign of life for " in errors


def test_the_first_rank_is_watched_too(lives):
    made, left = lives(3)
    time.sleep(0.1)
    fall_silent(made[0])
    wait_for(lambda: set(left) == {1, 2})
    assert "rank 0 has given no sign of life" in made[1].verdict


def test_a_rank_that_ends_with_an_error_says_so_and_the_others_hear_of_it(lives):
    made, left = lives(2, timeout=600.0)
    made[1].announce(KeyError("lost keys"))
    made[1].stop()
    wait_for(lambda: 0 in left)
    assert made[0].verdict == "rank 1 ended with KeyError: 'lost keys'"


def test_a_broken_collective_makes_the_wait_short_and_the_guilty_known_to_all(lives):
    made, left = lives(3, timeout=6.0)  # silence counts after 0.6 s, after an error already after 0.1 s
    time.sleep(0.1)
    fall_silent(made[2])
    began = time.monotonic()
    verdict = made[1].who_is_lost()
    assert "rank 2 has given no sign of life" in verdict
    assert time.monotonic() - began < 0.5


def test_ranks_that_are_done_are_not_missed(lives):
    made, left = lives(3)
    made[1].stop()
    made[2].stop()
    time.sleep(0.6)
    assert not left
    assert made[0].verdict is None


def test_errors_of_collectives_are_told_from_others():
    gloo = RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")
    assert is_broken_collective(gloo)
    assert is_broken_collective(dist.DistBackendError("NCCL communicator was aborted"))
    assert not is_broken_collective(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_broken_collective(ValueError("gloo"))


def test_running_out_of_memory_has_a_message_and_a_code_of_its_own(capsys):
    def run():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    assert run_together(Ranks(), torch.device("cpu"), 5.0, "base_train", run) == 5
    errors = capsys.readouterr().err
    assert "base_train: rank 0 is out of memory: CUDA out of memory. Tried to allocate 2 GiB; lower" in errors


@pytest.mark.slow  # two processes for seconds
@pytest.mark.parametrize("victim", [1, 0])
def test_a_killed_rank_takes_the_other_with_it_and_is_named(base, flags, victim):
    words = [*flags, "--num-iterations", 100_000, "--eval-every", 0, "--run", "killed", "--rank-timeout", 12]
    metrics = base / "runs" / "killed" / "metrics.jsonl"
    results = run_training(2, words, base, kill=(victim, metrics), timeout=60)
    code, errors = results[1 - victim]
    assert results[victim][0] == -9
    assert code == lifeline.EXIT_LOST_RANK
    assert f"rank {1 - victim}: stopping, because rank {victim} " in errors


def raise_on_rank_one():
    from nanogka.train.loop import Trainer

    original = Trainer._step

    def step(self, loader):
        if self.ranks.rank == 1 and self.step == 3:
            raise KeyError("a bug on one rank")
        return original(self, loader)

    Trainer._step = step


@pytest.mark.slow  # two processes for seconds
def test_an_error_on_one_rank_ends_the_other_with_that_error_named(base, flags):
    words = [*flags, "--num-iterations", 100_000, "--eval-every", 0, "--run", "bug", "--rank-timeout", 12]
    (first, said), (second, traceback) = run_training(2, words, base, raise_on_rank_one, timeout=60)
    assert (first, second) == (lifeline.EXIT_LOST_RANK, 1)
    assert "a bug on one rank" in traceback
    assert "rank 0: stopping, because rank 1 ended with KeyError: 'a bug on one rank'" in said


def test_one_process_alone_has_no_lifeline(monkeypatch):
    monkeypatch.setattr(lifeline, "Lifeline", lambda *args: pytest.fail("a thread was started"))
    assert run_together(Ranks(), torch.device("cpu"), 5.0, "x", lambda: 7) == 7
    assert not dist.is_initialized()
