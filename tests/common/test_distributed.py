"""A process among several."""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from nanogka.common import distributed
from nanogka.common.distributed import Ranks


def test_each_rank_has_the_gpu_of_its_number_on_its_node():
    assert Ranks(11, 3, 16).device(torch.device("cuda")) == torch.device("cuda", 3)
    assert Ranks().device(torch.device("cuda", 1)) == torch.device("cuda", 1)


@pytest.mark.parametrize("device", ["cuda:1", "mps"])
def test_ranks_do_not_share_a_gpu(device):
    with pytest.raises(ValueError, match="^device: got"):
        Ranks(0, 0, 8).device(torch.device(device))


@pytest.mark.parametrize(
    "given", [{"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "x", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}]
)
def test_half_a_description_of_the_ranks_is_an_error(given, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert Ranks.from_environment() == Ranks()
    for name, value in (given | {"WORLD_SIZE": "1"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="^RANK: got"):
        Ranks.from_environment()


def test_ranks_that_do_not_come_are_named(monkeypatch, capsys):
    """Two of three ranks in threads of one process: the first one that waits says who is missing, and then gives up."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(probe.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(distributed, "LONG_WAIT", 2)  # seconds, in which rank 2 comes also on a busy machine

    def join(rank, timeout):
        ranks = Ranks(rank, rank, 3)
        store = ranks.open_store(timeout)
        ranks.meet(store, timeout)
        return store

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(join, rank, 20) for rank in (0, 2)]
        until, said = time.monotonic() + 15, ""
        while not said and time.monotonic() < until:
            time.sleep(0.05)
            said = capsys.readouterr().err
        assert said == "rank 0 is waiting for ranks 1\n"
        stores = [pool.submit(join, 1, 20).result(), *(one.result() for one in waiting)]  # it came after all
    assert len(stores) == 3
    monkeypatch.setenv("MASTER_PORT", str(int(os.environ["MASTER_PORT"]) + 1))
    with pytest.raises(TimeoutError, match="ranks: 1, 2 did not start within 1 s"):
        join(0, 0.6)


def test_one_rank_of_a_node_fetches_and_the_others_fetch_nothing_if_it_fails(monkeypatch):
    calls, first, second = [], Ranks(0, 0, 2), Ranks(1, 1, 2)
    monkeypatch.setattr(Ranks, "all_gather", lambda self, value: [value, None])
    assert first.first_on_each_node(lambda: calls.append(1) or "text") == "text"
    assert second.first_on_each_node(lambda: calls.append(2) or "text") == "text"
    failure = OSError("no network")
    with pytest.raises(OSError, match="no network"):
        first.first_on_each_node(lambda: (_ for _ in ()).throw(failure))
    monkeypatch.setattr(Ranks, "all_gather", lambda self, value: [failure, None])
    with pytest.raises(OSError, match="no network"):
        second.first_on_each_node(lambda: calls.append(3))
    assert calls == [1, 2]
