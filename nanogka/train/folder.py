"""Everything that a run writes: its folder, by the first rank; the other ranks write nothing."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from nanogka import dispatch
from nanogka.checkpoint import Checkpoint, list_checkpoints, remove_partial
from nanogka.common.distributed import Ranks
from nanogka.common.signals import EXIT_CODES
from nanogka.runs import CONFIG, METRICS, read_metrics, write_config
from nanogka.train.context import RESULTS, RunContext
from nanogka.train.metrics import MetricsLog, Progress
from nanogka.train.trackers import open_tracker
from nanogka.train.writer import CheckpointError, CheckpointWriter


@contextmanager
def locked(run: RunContext) -> Iterator[None]:
    """Hold the run's lock, which the system releases with the process; all ranks enter together.

    Every rank raises if another process holds the run or has changed it since `prepare`, or if the ranks have found
    different checkpoints.
    """
    # Beside the folder, which is not there before the first batch has been tried.
    lock, problem = FileLock(run.folder.with_name(f".{run.folder.name}.lock")), None
    try:
        if run.ranks.is_main:
            run.folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0)
                if tuple(path.name for path in list_checkpoints(run.folder / "checkpoints")) != run.entry.found:
                    problem = f"--run: {run.folder} has been changed by another process just now; start again"
            except Timeout:
                problem = f"--run: {run.folder} is being trained by another process; wait for it, or --run NAME"
        answers = run.ranks.gather((problem, run.resume_from and run.resume_from.name))
        if answers[0][0]:
            raise ValueError(answers[0][0])
        starts = [start or "none" for _, start in answers]
        if len(set(starts)) > 1:
            found = ", ".join(f"rank {rank}: {start}" for rank, start in enumerate(starts))
            raise ValueError(
                f"--resume: got different checkpoints on the ranks ({found}), expected one; let NANOGKA_BASE_DIR be "
                "a folder that all nodes share"
            )
        yield
    finally:
        lock.release()


class RunFolder:
    """The open folder of a run: its log, progress line and checkpoints; on ranks but the first its methods do nothing.

    `step` is that of the checkpoint resumed from, 0 for none.
    """

    _log: MetricsLog
    _writer: CheckpointWriter
    progress: Progress

    def __init__(self, run: RunContext, step: int) -> None:
        self.main = run.ranks.is_main
        self.run, self.step = run, step
        self._stack = ExitStack()

    def __enter__(self) -> "RunFolder":
        if self.main:
            with self._stack:  # closes what is open already if the rest fails
                self._open(self._stack)
                self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)

    def _open(self, stack: ExitStack) -> None:
        run, settings = self.run, self.run.settings
        resuming = run.resume_from is not None
        if not resuming:
            clear_run(run.folder, trained=settings.overwrite)
        (run.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        remove_partial(run.folder / "checkpoints")
        config = build_config_file(run)
        if not resuming:
            run.add_files(run.folder)
            write_config(run.folder, config)
        path, resumed_from = run.folder / METRICS, self.step if resuming else None
        track = stack.enter_context(open_tracker(settings.tracker, run.folder, config, resumed_from))
        self._log = MetricsLog(path, resumed_from, track)
        stack.callback(self._log.close)
        if not resuming:
            self.log("run", 0, **{name: value for name, value in config["run"].items() if name != "kind"})
        self.progress = Progress(run.num_iterations, self.step)
        stack.callback(self.progress.close)
        self._writer = stack.enter_context(open_writer(run, self.step, self.progress.say))

    def log(self, kind: str, step: int, **values: object) -> None:
        """Append a line to metrics.jsonl; by validations the best checkpoints are kept."""
        if self.main:
            self._log.write(kind, step, **values)
            if kind == "eval" and self.run.score in values:
                self._writer.score(step, values[self.run.score])

    def say(self, text: str) -> None:
        if self.main:
            self.progress.say(text)

    def update(self, step: int, text: str) -> None:
        if self.main:
            self.progress.update(step, text)

    def save(self, checkpoint: Checkpoint) -> None:
        if self.main:
            self._writer.submit(checkpoint)

    @property
    def failed(self) -> bool:
        """True if a checkpoint could not be written."""
        return self.main and self._writer.failed

    def wait(self) -> None:
        """Return when every checkpoint is on the disk. Raises CheckpointError if one could not be written."""
        if self.main:
            self._writer.wait()

    def raise_failure(self) -> None:
        """Raise CheckpointError, on every rank."""
        self.wait()
        raise CheckpointError("stopped, because the first rank could not write a checkpoint")

    def stop(self, ranks: Ranks, received: int | None, step: int) -> int:
        """Wait for the checkpoint of `step`, say which signal ended the run, and return its exit code.

        All ranks call it; `received` is the signal's number on those to which it came, None on the others.
        """
        self.wait()
        number = max(ranks.gather(received or 0))
        name = next(signal.name for signal in EXIT_CODES if signal == number)
        self.say(f"stopped by {name} after step {step}; --resume auto goes on from there")
        return EXIT_CODES[number]


def open_writer(run: RunContext, step: int, say: Callable[[str], None] = print) -> CheckpointWriter:
    """The writer of a run's checkpoints that goes on from `step`."""
    evals = [line for line in read_metrics(run.folder / METRICS) if line["kind"] == "eval" and run.score in line]
    scores = {line["step"]: line[run.score] for line in evals}
    options = {"keep": run.settings.keep, "keep_best": run.settings.keep_best, "resumed_from": step, "say": say}
    return CheckpointWriter(run.folder / "checkpoints", scores=scores, **options)


def tidy(run: RunContext) -> None:
    """Delete what a finished run that was killed before the last rotation keeps too many of."""
    if len(run.entry.found) > run.settings.keep:
        with locked(run):
            if run.ranks.is_main:
                open_writer(run, run.num_iterations).__exit__(None)


def clear_run(folder: Path, trained: bool) -> None:
    """Delete the beginnings of an earlier run of that name; with `trained`, also its checkpoints and results."""
    for name in ("tokenizer", "tensorboard", CONFIG, METRICS, *(("checkpoints", *RESULTS) if trained else ())):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def build_config_file(run: RunContext) -> dict:
    """The content of config.yaml."""
    facts = {
        "tag": run.folder.name,
        "kind": run.kind,
        **run.facts(),
        "hardware": run.hardware.name,
        "peak_flops": run.hardware.peak_flops,
        "world_size": run.ranks.world_size,
        "device": run.device.type,
        "dtype": str(run.dtype).removeprefix("torch."),
        "kernels": dispatch.prepare(run.device, run.dtype, training=True),
        "torch": str(torch.__version__),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    return {"model": run.model_config(), "settings": run.settings_as_run().to_dict(), "run": facts}
