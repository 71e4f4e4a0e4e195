"""A trace of some steps, for ui.perfetto.dev, and on a GPU the history of its memory, for pytorch.org/memory_viz."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import profile, schedule

WARMUP = 3  # steps before, in which caches are filled


@contextmanager
def profiled(steps: int, path: Path, cuda: bool, say: Callable[[str], None]) -> Iterator[Callable[[], None] | None]:
    """Yield a function to call after each step; after the first few, `steps` of them are traced into `path`."""
    if steps == 0:
        yield None
        return

    def keep(profiler: profile) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        if cuda:
            torch.cuda.memory._dump_snapshot(str(path.with_suffix("").with_suffix(".memory.pickle")))
            torch.cuda.memory._record_memory_history(enabled=None)
        say(f"profile of {steps} steps: {path}")

    if cuda:
        torch.cuda.memory._record_memory_history()
    plan = schedule(wait=WARMUP - 1, warmup=1, active=steps, repeat=1)
    with profile(schedule=plan, on_trace_ready=keep, record_shapes=True) as profiler:
        yield profiler.step
