"""A trace of some steps, for ui.perfetto.dev, and on a GPU the history of its memory, for pytorch.org/memory_viz."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.profiler import profile, schedule

from nanogka.train.context import RunContext

WARMUP = 3  # steps before, in which caches are filled


@contextmanager
def profiled(run: RunContext, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each step; each rank traces `--profile` steps after the first few."""
    steps, cuda = run.settings.profile, run.device.type == "cuda"
    if steps == 0:
        yield lambda: None
        return

    def keep(profiler: profile) -> None:
        path = run.folder / "profile" / f"rank{run.ranks.rank}.json.gz"
        path.parent.mkdir(exist_ok=True)
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
