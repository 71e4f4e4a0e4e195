"""Several gloo ranks in a test: forked from a clean process that has torch loaded, so that a world takes a moment."""

import faulthandler
import gc
import importlib
import multiprocessing
import os
import socket
import sys
import tempfile

import torch
import torch.distributed as dist

from nanogka.common.distributed import Ranks

SECONDS = 120  # that a rank may take
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["scripts.base_train", "torch._dynamo"])  # the latter takes seconds, as torch does


def run_ranks(world_size, function, *args):
    """`function(ranks, *args)` on every rank of a process group; returns what each returned, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(world_size, _in_group, os.path.join(folder, "store"), function, args)


def run_training(world_size, words, base, patch=None, script="base_train"):
    """`scripts.base_train` (or another) on every rank, after `patch()`; returns (exit code, stderr) of each.

    What a rank writes to stdout is in the file rank0.out of the base folder, and so on.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    environment = {"NANOGKA_BASE_DIR": str(base), **address}
    return _run(world_size, _train, script, [str(word) for word in words], environment, patch)


def _run(world_size, function, *args):
    """`function(ranks, *args)` in a process per rank; raises what the first rank to fail raises."""
    calls = [(Ranks(rank, rank, world_size), function, args) for rank in range(world_size)]
    with CONTEXT.Pool(world_size) as pool:
        ended = pool.imap_unordered(_call, calls)
        found = dict(ended.next(SECONDS) for _ in calls)
    return [found[rank] for rank in range(world_size)]


def _call(what):
    ranks, function, args = what
    faulthandler.dump_traceback_later(SECONDS, exit=True)  # also where a training takes SIGTERM for a request
    gc.freeze()  # a training collects garbage, which would copy the pages shared with the fork server
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    return ranks.rank, function(ranks, *args)


def _in_group(ranks, store, function, args):
    store = dist.FileStore(store, ranks.world_size)
    dist.init_process_group("gloo", store=store, rank=ranks.rank, world_size=ranks.world_size)
    return function(ranks, *args)


def _train(ranks, script, words, environment, patch):
    numbers = {"RANK": ranks.rank, "LOCAL_RANK": ranks.local_rank, "WORLD_SIZE": ranks.world_size}
    os.environ |= environment | {name: str(number) for name, number in numbers.items()}
    module = importlib.import_module(f"scripts.{script}")
    if patch is not None:
        patch()
    stdout = os.path.join(environment["NANOGKA_BASE_DIR"], f"rank{ranks.rank}.out")
    with open(stdout, "wb") as printed, tempfile.TemporaryFile("w+") as stderr:
        os.dup2(printed.fileno(), 1)
        os.dup2(stderr.fileno(), 2)
        code = module.main(words)
        sys.stdout.flush()
        stderr.seek(0)
        return code, stderr.read()
