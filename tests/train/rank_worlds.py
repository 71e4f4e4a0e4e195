"""Several gloo ranks in a test: forked from a clean process that has torch loaded, so that a world takes a moment."""

import importlib
import multiprocessing
import os
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from nanogka.distributed import Ranks

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["scripts.base_train"])


def run_ranks(world_size, function, *args, timeout=60):
    """`function(ranks, *args)` on every rank; returns what each returned, by rank (`torch.save`able)."""
    with tempfile.TemporaryDirectory() as folder:
        processes = _start(world_size, _work, folder, function, args)
        _join(processes, timeout)
        errors = [path.read_text() for path in sorted(Path(folder).glob("*.error"))]
        assert not errors, "\n".join(errors)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world_size)]


def run_training(world_size, words, base, patch=None, timeout=120, script="base_train"):
    """`scripts.base_train` (or another) on every rank, after `patch()`; returns (exit code, stderr) of each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        environment = {"NANOGKA_BASE_DIR": str(base), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes = _start(world_size, _train, folder, script, [str(word) for word in words], environment, patch)
        _join(processes, timeout)
        return [(p.exitcode, Path(folder, f"{rank}.stderr").read_text()) for rank, p in enumerate(processes)]


def _start(world_size, target, folder, *args):
    ranks = [Ranks(rank, rank, world_size) for rank in range(world_size)]
    processes = [CONTEXT.Process(target=target, args=(rank, folder, *args), daemon=True) for rank in ranks]
    for process in processes:
        process.start()
    return processes


def _join(processes, timeout):
    end = time.monotonic() + timeout
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    late = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for rank in late:
        processes[rank].kill()
    assert not late, f"ranks {late} did not end in {timeout} s"


def _prepare():
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"


def _work(ranks, folder, function, args):
    _prepare()
    try:
        store = dist.FileStore(os.path.join(folder, "store"), ranks.world_size)
        dist.init_process_group("gloo", store=store, rank=ranks.rank, world_size=ranks.world_size)
        torch.save(function(ranks, *args), os.path.join(folder, f"{ranks.rank}.pt"))
        dist.barrier()
        dist.destroy_process_group()
    except Exception:
        Path(folder, f"{ranks.rank}.error").write_text(f"rank {ranks.rank}:\n{traceback.format_exc()}")
        raise


def _train(ranks, folder, script, words, environment, patch):
    _prepare()
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(os.path.join(folder, f"{ranks.rank}.{name}"), os.O_CREAT | os.O_WRONLY), number)
    numbers = {"RANK": ranks.rank, "LOCAL_RANK": ranks.local_rank, "WORLD_SIZE": ranks.world_size}
    os.environ |= environment | {name: str(number) for name, number in numbers.items()}
    module = importlib.import_module(f"scripts.{script}")
    if patch is not None:
        patch()
    sys.exit(module.main(words))
