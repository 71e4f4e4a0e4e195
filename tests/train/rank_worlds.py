"""Several gloo ranks in a test: forked from a clean process that has torch loaded, so that a world takes a moment."""

import contextlib
import io
import multiprocessing
import os
import tempfile
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from nanogka.train.distributed import Ranks

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "nanogka.train.sharded"])


def run_ranks(world_size, function, *args, timeout=60):
    """`function(ranks, *args)` on every rank; returns what each returned, by rank (`torch.save`able)."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(rank, world_size, folder, function, args) for rank in range(world_size)]
        processes = [CONTEXT.Process(target=_work, args=job, daemon=True) for job in jobs]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout)
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
        errors = [path.read_text() for path in sorted(Path(folder).glob("*.error"))]
        assert not errors, "\n".join(errors)
        assert not late, f"ranks {late} did not end"
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world_size)]


def run_training(world_size, words, base, patch=None):
    """`scripts.base_train` on every rank, after `patch()`; returns (exit code, stderr) of each."""
    return run_ranks(world_size, _train, [str(word) for word in words], str(base), patch)


def _train(ranks, words, base, patch):
    from scripts import base_train

    os.environ |= {"NANOGKA_BASE_DIR": base, "RANK": str(ranks.rank), "LOCAL_RANK": str(ranks.local_rank)}
    os.environ |= {"WORLD_SIZE": str(ranks.world_size)}
    if patch is not None:
        patch()
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()):
        code = base_train.main(words)
    return code, errors.getvalue()


def _work(rank, world_size, folder, function, args):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if os.uname().sysname == "Darwin" else "lo"
    try:
        store = dist.FileStore(os.path.join(folder, "store"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        torch.save(function(Ranks(rank, rank, world_size), *args), os.path.join(folder, f"{rank}.pt"))
        if dist.is_initialized():  # a script leaves by itself
            dist.barrier()
            dist.destroy_process_group()
    except Exception:
        Path(folder, f"{rank}.error").write_text(f"rank {rank}:\n{traceback.format_exc()}")
        raise
