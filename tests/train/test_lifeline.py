"""A rank that dies is named by the others, which end too."""

import time

import pytest
import torch
import torch.distributed as dist
from rank_worlds import run_training

from nanogka.distributed import Ranks
from nanogka.train import lifeline
from nanogka.train.lifeline import Lifeline, is_broken_collective, run_together


class World:
    """Lifelines of several ranks over one store, fifty times as fast, and a clock that only `pass_time` moves.

    So a loaded machine, on which a thread may not run for seconds, makes no rank look silent.
    """

    STEP = 0.05

    def __init__(self):
        self.now, self.lives, self.left, self.store = 0.0, [], {}, dist.HashStore()

    def monotonic(self):
        return self.now

    def begin(self, world_size, timeout=2.0):
        for rank in range(world_size):
            leave = lambda code, rank=rank: self.left.update({rank: code})  # noqa: E731
            self.lives.append(Lifeline(Ranks(rank, rank, world_size), self.store, timeout, leave))
        self.pass_time(self.STEP)
        return self.lives

    def pass_time(self, seconds):
        """Every living rank gives two signs in each step, and so looks at the others' too."""
        for _ in range(round(seconds / self.STEP)):
            self.now += self.STEP
            wanted = [self.signs(rank) + 2 for rank in range(len(self.lives))]
            for rank, life in enumerate(self.lives):
                wait_for(lambda r=rank, n=wanted[rank], one=life: not one._thread.is_alive() or self.signs(r) >= n)

    def signs(self, rank):
        key = f"alive/{rank}"
        sign = self.store.get(key) if self.store.check([key]) else b"0"
        return int(sign) if sign.isdigit() else 0


@pytest.fixture
def world_of_ranks(monkeypatch):
    made = World()
    monkeypatch.setattr(lifeline, "INTERVAL", 0.02)
    monkeypatch.setattr(lifeline, "GRACE", 0.02)
    monkeypatch.setattr(lifeline, "time", made)
    yield made
    for life in made.lives:
        life._stop.set()
        life._thread.join()


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    assert condition()


class Mute:
    """A store that hears and tells nothing."""

    def set(self, key, value):
        pass

    def check(self, keys):
        return False


def fall_silent(life):
    """As SIGKILL would: no sign more, and none of leaving."""
    life.store = Mute()  # so that the thread cannot say that it is done
    life._stop.set()
    life._thread.join()


@pytest.mark.parametrize("victim", [2, 0])
def test_a_silent_rank_is_named_by_all_others_which_leave(world_of_ranks, capsys, victim):
    lives = world_of_ranks.begin(3)  # silence counts after 0.2 s
    world_of_ranks.pass_time(1.0)
    assert not world_of_ranks.left
    fall_silent(lives[victim])
    world_of_ranks.pass_time(0.4)
    others = {0, 1, 2} - {victim}
    wait_for(lambda: set(world_of_ranks.left) == others)
    assert set(world_of_ranks.left.values()) == {lifeline.EXIT_LOST_RANK}
    errors = capsys.readouterr().err
    for rank in others:
        assert f"rank {rank}: stopping, because rank {victim} has given no sign of life for " in errors


def test_a_rank_that_ends_with_an_error_says_so_and_the_others_hear_of_it(world_of_ranks):
    lives = world_of_ranks.begin(2, timeout=600.0)
    lives[1].announce(KeyError("lost keys"))
    lives[1].stop()
    wait_for(lambda: 0 in world_of_ranks.left)
    assert lives[0].verdict == "rank 1 ended with KeyError: 'lost keys'"


def test_after_a_broken_collective_a_short_silence_is_enough_for_all(world_of_ranks):
    lives = world_of_ranks.begin(3, timeout=6.0)  # silence counts after 0.6 s, after an error after 0.1 s already
    fall_silent(lives[2])
    lives[1]._suspicious = True  # as `who_is_lost` makes it
    world_of_ranks.pass_time(0.3)
    assert "rank 2 has given no sign of life" in lives[1].who_is_lost()
    wait_for(lambda: set(world_of_ranks.left) == {0, 1})


def test_ranks_that_are_done_are_not_missed(world_of_ranks):
    lives = world_of_ranks.begin(3)
    for life in lives[1:]:
        life.stop()
        wait_for(lambda one=life: not one._thread.is_alive())
    world_of_ranks.pass_time(1.0)
    assert not world_of_ranks.left
    assert lives[0].verdict is None


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
