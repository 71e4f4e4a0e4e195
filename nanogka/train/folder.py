"""Everything that a run writes: its folder, by the first rank; the other ranks write nothing.

with locked(run), RunFolder(run, step) as folder:
    folder.log("train", step, loss=2.5)
    folder.save(checkpoint)
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from nanogka.checkpoint import Checkpoint, list_checkpoints, remove_partial
from nanogka.distributed import Ranks
from nanogka.model import attention_name
from nanogka.runs import CONFIG, METRICS, read_metrics, write_config
from nanogka.signals import EXIT_CODES
from nanogka.train.metrics import MetricsLog, Progress
from nanogka.train.setup import RESULTS, RunContext
from nanogka.train.trackers import open_tracker
from nanogka.train.writer import CheckpointError, CheckpointWriter


@contextmanager
def locked(run: RunContext) -> Iterator[None]:
    """Hold the run's lock, which the system releases with the process; all ranks enter together.

    Raises:
        ValueError: on every rank, if another process holds the run or has changed it since `prepare`, or if the ranks
            have found different checkpoints.
    """
    # Beside the folder, which is not there before the first batch has been tried.
    lock, problem = FileLock(run.folder.with_name(f".{run.folder.name}.lock")), None
    try:
        if run.ranks.is_main:
            run.folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                problem = f"--run: {run.folder} is being trained by another process; wait for it, or --run NAME"
            if problem is None and tuple(p.name for p in list_checkpoints(run.folder / "checkpoints")) != run.found:
                problem = f"--run: {run.folder} has been changed by another process just now; start again"
        answers = run.ranks.gather((problem, run.resume_from and run.resume_from.name))
        if answers[0][0]:
            raise ValueError(answers[0][0])
        starts = [start or "none" for _, start in answers]
        if len(set(starts)) > 1:
            found = ", ".join(f"rank {rank}: {start}" for rank, start in enumerate(starts))
            raise ValueError(
                f"--resume: got different checkpoints on different ranks ({found}), takes one; let NANOGKA_BASE_DIR be "
                "a folder that all nodes share"
            )
        yield
    finally:
        lock.release()


class RunOutput:
    """The log, the progress line and the checkpoints of a run that goes on; a context manager.

    On ranks but the first its methods do nothing. A subclass opens the three in `open`.

    Args:
        main: true on the first rank.
    """

    _log: MetricsLog
    _writer: CheckpointWriter
    progress: Progress

    def __init__(self, main: bool) -> None:
        self.main = main
        self._stack = ExitStack()

    def open(self, stack: ExitStack) -> None:
        """Set `_log`, `progress` and `_writer`; `stack` closes them."""
        raise NotImplementedError

    def __enter__(self) -> "RunOutput":
        if self.main:
            with self._stack:  # closes what is open already if the rest fails
                self.open(self._stack)
                self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)

    def log(self, kind: str, step: int, **values: object) -> None:
        """Append a line to metrics.jsonl."""
        if self.main:
            self._log.write(kind, step, **values)

    def say(self, text: str) -> None:
        """A line for people."""
        if self.main:
            self.progress.say(text)

    def update(self, step: int, text: str) -> None:
        """Move the progress bar."""
        if self.main:
            self.progress.update(step, text)

    def save(self, checkpoint: Checkpoint) -> None:
        """Copy a checkpoint and start to write it."""
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


class RunFolder(RunOutput):
    """The open folder of a language model's run.

    Args:
        run: see `RunContext`.
        step: of the checkpoint that it resumed from, 0 for none.
    """

    def __init__(self, run: RunContext, step: int) -> None:
        super().__init__(run.ranks.is_main)
        self.run, self.step = run, step

    def open(self, stack: ExitStack) -> None:
        run, settings = self.run, self.run.settings
        resuming = run.resume_from is not None
        if not resuming:
            clear_run(run.folder, trained=settings.overwrite)
        (run.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        remove_partial(run.folder / "checkpoints")
        config = build_config_file(run)
        if not resuming:
            run.tokenizer.save(run.folder / "tokenizer")
            run.add_files(run.folder)
            write_config(run.folder, config)
        path, resumed_from = run.folder / METRICS, self.step if resuming else None
        track = stack.enter_context(open_tracker(settings.tracker, run.folder, config, resumed_from))
        self._log = MetricsLog(path, resumed_from, track)
        stack.callback(self._log.close)
        if not resuming:
            self.log("run", 0, **{name: value for name, value in config["run"].items() if name != "kind"})
        self.progress = Progress(run.horizon.num_iterations, self.step)
        stack.callback(self.progress.close)
        evals = [line for line in read_metrics(path) if line["kind"] == "eval" and run.score in line]
        self._writer = stack.enter_context(
            CheckpointWriter(
                run.folder / "checkpoints",
                keep=settings.keep,
                keep_best=settings.keep_best,
                scores={line["step"]: line[run.score] for line in evals},
                resumed_from=self.step,
                say=self.progress.say,
            )
        )

    def score(self, step: int, values: dict[str, float]) -> None:
        """Note a validation, by which the best checkpoints are kept."""
        if self.main and self.run.score in values:
            self._writer.score(step, values[self.run.score])


def clear_run(folder: Path, trained: bool) -> None:
    """Delete the beginnings of an earlier run of that name; with `trained`, also its checkpoints and results."""
    delete(folder, ("tokenizer", "tensorboard", CONFIG, METRICS, *(("checkpoints", *RESULTS) if trained else ())))


def delete(folder: Path, names: Iterable[str]) -> None:
    """Delete files and folders of `folder` that may or may not be there."""
    for path in (folder / name for name in names):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def build_config_file(run: RunContext) -> dict:
    """The content of config.yaml."""
    return {
        "model": run.config.to_dict(),
        "settings": run.settings_as_run().to_dict(),
        "run": {
            "tag": run.folder.name,
            "kind": run.kind,
            "attention": attention_name(run.config.mixer_pattern),
            "depth": run.config.n_layer,
            "parameters": run.accounting.total_parameters,
            "flops_per_token": run.accounting.flops_per_token,
            "total_batch_size": run.horizon.total_batch_size,
            "num_iterations": run.horizon.num_iterations,
            "hardware": run.hardware.name,
            "peak_flops": run.hardware.peak_flops,
            "world_size": run.ranks.world_size,
            "device": run.device.type,
            "dtype": str(run.dtype).removeprefix("torch."),
            "compiled": run.compile,
            "activation_checkpointing": run.settings.activation_checkpointing,
            "torch": str(torch.__version__),
            "tokenizer": run.tokenizer.fingerprint,
            **run.facts(),
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        },
    }
