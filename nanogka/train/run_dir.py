"""A run and its folder: who may write to it, where training starts, and all files that a run writes.

`check_folder` finds what is wrong before anything is built. `claim` locks the folder and lets rank 0 choose the
checkpoint to resume from. `RunDirectory` writes config.yaml, metrics.jsonl and checkpoints; only rank 0 writes.
"""

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from nanogka import backends
from nanogka.checkpoint import Checkpoint, latest_valid, list_checkpoints, remove_partial, step_of
from nanogka.common.cli import flag_name
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.runtime import Hardware
from nanogka.common.signals import EXIT_CODES
from nanogka.model import mixer_options
from nanogka.runs import CONFIG, METRICS, model_config, read_config, read_metrics, write_config
from nanogka.train.async_checkpoint import CheckpointError, CheckpointWriter
from nanogka.train.metrics import MetricsLog, Progress
from nanogka.train.settings import RunSettings
from nanogka.train.trackers import open_tracker

# Computed from a run and kept in its folder.
RESULTS = ("evaluation.json", "chat_evaluation.json", "report.md", "report.html")
RESULTS += ("plots", "visualization", "maps", "profile")
# Fingerprints of data in config.yaml: the flag that names the data, and what a difference means.
DATA_FINGERPRINTS = {
    "corpus": ("data", "other text, or its files have changed"),
    "footers": ("data", "the same files with other contents"),
    "tokenizer": ("tokenizer", "another vocabulary"),
    "data": ("data", "other pictures"),
}
ADVICE = "--overwrite deletes it, --run NAME makes another"


@dataclass(kw_only=True)
class Run:
    """A run that was checked and can start: what its folder and the loop must know, whatever it trains."""

    kind: str  # base, chat or vision, as config.yaml names it
    folder: Path
    settings: RunSettings  # everything that decides the losses is filled in
    model: dict  # the model's configuration, as config.yaml has it
    facts: dict  # for config.yaml, beyond the settings: counts, and the fingerprints of data
    ranks: Ranks
    device: torch.device
    dtype: torch.dtype
    hardware: Hardware
    num_iterations: int
    eval_every: int  # steps, as `save_every`; 0: only at the end
    save_every: int
    monitor: str = "val_bpb"  # the evaluation that decides which checkpoints are best; lower is better
    lr_flag: str = "--lr-scale"  # lowers all learning rates


@dataclass(frozen=True)
class Start:
    """Where training starts. All ranks have the same."""

    checkpoint: Path | None = None  # None: with the first step
    finished: bool = False  # the last step was saved and evaluated: there is nothing to do


# ---- resume, start or refuse ----


def check_folder(settings: RunSettings, folder: Path, model: dict, facts: Mapping[str, object]) -> list[str]:
    """Return the names of the checkpoints and results in the folder from which a run is to resume; [] to start.

    Raises ValueError where checkpoints or results would be lost without `--overwrite`, where nothing in the folder can
    be used, and where the folder has a run with other settings. No checkpoint is read.
    """
    if settings.dry_run or settings.overwrite:
        return []
    try:
        found = [path.name for path in list_checkpoints(folder / "checkpoints")]
        found += [name for name in RESULTS if (folder / name).exists()]
        configured = (folder / CONFIG).exists()
    except OSError as error:
        raise ValueError(f"--run: {folder} cannot be read ({error}); it was not changed") from error
    if found and not configured:
        raise ValueError(f"--run: {folder} has no {CONFIG}, but holds {', '.join(found)}; {ADVICE}")
    if found and settings.resume == "never":
        raise ValueError(f"--run: {folder} holds a run already; --resume auto continues it, {ADVICE}")
    if configured and settings.resume == "auto":
        refuse_differences(settings, folder, model, facts)
    return found


def refuse_differences(settings: RunSettings, folder: Path, model: dict, facts: Mapping[str, object]) -> None:
    """Raise ValueError naming every way in which the run in `folder` differs from the one that is to resume it."""
    saved = read_config(folder)
    now, before, errors = settings.to_dict(), saved["settings"], Errors()
    for name in now:
        known = name in before or name in mixer_options()  # a mixer's option that is not in an old file was off
        differs = known and name not in settings.free_on_resume and before.get(name) != now[name]
        errors.require(not differs, flag_name(name), now[name], f"{before.get(name)!r}, as {folder} has")
    other_data = set()
    for name, (flag, difference) in DATA_FINGERPRINTS.items():
        here, there = facts.get(name), (saved.get("run") or {}).get(name)
        if here and there and here != there and flag in now and flag not in other_data:
            other_data.add(flag)
            errors.lines.append(
                f"--{flag}: got {now[flag]!r} ({here[:12]}…), expected what {folder} was trained with, "
                f"{before.get(flag)!r} ({there[:12]}…): it is {difference}"
            )
    other = saved["model"]
    if "mixer_pattern" in model:  # a language model, whose old config file may lack options that are newer
        other = model_config(saved, folder).to_dict()
    for name in {**other, **model}:
        same = other.get(name) == model.get(name)
        errors.require(same, f"model {name}", model.get(name), f"{other.get(name)!r}, as {folder} has")
    errors.raise_if_any()


def find_start(run: Run) -> tuple[Start, list[str]]:
    """The newest checkpoint that verifies, and lines about it for people. Rank 0 calls this, with the lock."""
    found = check_folder(run.settings, run.folder, run.model, run.facts)
    if not found:
        return Start(), []
    lines = read_metrics(run.folder / METRICS)
    try:
        path, notes = latest_valid(run.folder / "checkpoints")
    except OSError as error:
        raise ValueError(f"--run: {run.folder} cannot be read ({error}); it was not changed") from error
    if path is None:
        why = "".join(f"\n  {note}" for note in notes)
        holds = f"has no checkpoint to resume from, but holds {', '.join(found)}"
        raise ValueError(f"--run: {run.folder} {holds}; {ADVICE}{why}")
    step = step_of(path)
    logged = {line["step"] for line in lines if line["kind"] == "train" and line["step"] <= step}
    if len(logged) < step:
        notes.append(f"{METRICS} lacks {step - len(logged)} of the {step} steps before")
    # A crash may come between the last checkpoint and its validation, the last evaluation of a step.
    evaluated = any(line["kind"] == "eval" and line["step"] == step and run.monitor in line for line in lines)
    finished = step == run.num_iterations and evaluated
    return Start(path, finished), notes if finished else [*notes, f"resuming from {path.name}"]


@contextmanager
def claim(run: Run) -> Iterator[Start]:
    """Hold the run's lock, which the system releases with the process, and yield where training starts.

    All ranks enter together, joined. Rank 0 verifies the checkpoints and tells the others, which read none of them.
    Every rank raises ValueError if another process holds the run, if rank 0 finds something wrong with the folder, if
    the ranks have different settings, or if they do not share the folder.
    """
    # Next to the folder, which is created after the first batch has been tried.
    lock, ranks, parent = FileLock(run.folder.with_name(f".{run.folder.name}.lock")), run.ranks, run.folder.parent
    problem: Exception | None = None
    start, notes = Start(), []
    try:
        if ranks.is_main:
            try:
                parent.mkdir(parents=True, exist_ok=True)
                lock.acquire(timeout=0)
                start, notes = find_start(run)
            except Timeout:
                text = f"--run: {run.folder} is being trained by another process; wait for it, or --run NAME"
                problem = ValueError(text)
            except (ValueError, OSError) as error:
                problem = error
        name = start.checkpoint and start.checkpoint.name
        problem, name, finished = ranks.gather((problem, name, start.finished))[0]
        if problem is not None:
            raise problem
        refuse_unlike_ranks(run)
        for note in notes:
            print(note, flush=True)
        if finished and ranks.is_main:  # a run that was killed before its last rotation keeps too many
            open_writer(run, run.num_iterations).__exit__(None)
        yield Start(name and run.folder / "checkpoints" / name, finished)
    finally:
        lock.release()


def refuse_unlike_ranks(run: Run) -> None:
    """Raise ValueError, on every rank, if the ranks have other settings than rank 0 or do not see its folder."""
    if run.ranks.world_size == 1:
        return
    marker = f".{uuid.uuid4().hex}" if run.ranks.is_main else ""
    if marker:
        (run.folder.parent / marker).touch()
    mine = run.settings.to_dict() | {f"model {key}": value for key, value in run.model.items()}
    mine |= {name: run.facts.get(name) for name in DATA_FINGERPRINTS}
    gathered = run.ranks.gather((marker, mine))
    marker, main = gathered[0]
    sees = run.ranks.gather((run.folder.parent / marker).exists())
    if run.ranks.is_main:
        (run.folder.parent / marker).unlink()
    unlike = [
        f"{flag_name(name)} is {other.get(name)!r} on rank {rank}, {main[name]!r} on rank 0"
        for rank, (_, other) in enumerate(gathered)
        for name in main
        if other.get(name) != main[name]
    ]
    if unlike:
        raise ValueError(f"ranks: got different settings, expected the same command on all: {'; '.join(unlike[:8])}")
    if not all(sees):
        blind = ", ".join(str(rank) for rank, seen in enumerate(sees) if not seen)
        raise ValueError(
            f"NANOGKA_BASE_DIR: got a folder on rank 0 that these ranks do not share: {blind}; expected a folder on "
            "a file system of all nodes"
        )


# ---- the files ----


class RunDirectory:
    """The open folder of a run: log, progress line and checkpoints. On other ranks than 0 its methods do nothing.

    `step` is that of the checkpoint to resume from. `add_files` writes further files into the folder of a run that
    starts. `settings` are those found while the run was built, such as the batch size, for config.yaml.
    """

    _log: MetricsLog
    _writer: CheckpointWriter
    progress: Progress

    def __init__(
        self,
        run: Run,
        start: Start,
        step: int,
        per_step: Mapping[str, float],
        settings: Mapping[str, object] | None = None,
        add_files: Callable[[Path], None] = lambda folder: None,
    ) -> None:
        self.main, self.run, self.step, self.resuming = run.ranks.is_main, run, step, start.checkpoint is not None
        self.per_step, self.found, self.add_files = per_step, settings or {}, add_files
        self._stack = ExitStack()

    def __enter__(self) -> "RunDirectory":
        if self.main:
            with self._stack:  # closes what is open already if the rest fails
                self._open(self._stack)
                self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)

    def _open(self, stack: ExitStack) -> None:
        run = self.run
        if not self.resuming:
            clear_run(run.folder, trained=run.settings.overwrite)
        (run.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        remove_partial(run.folder / "checkpoints")
        config = build_config_file(run, self.found)
        if not self.resuming:
            self.add_files(run.folder)
            write_config(run.folder, config)
        path, resumed_from = run.folder / METRICS, self.step if self.resuming else None
        track = stack.enter_context(open_tracker(run.settings.tracker, run.folder, config, resumed_from))
        self._log = MetricsLog(path, resumed_from, track)
        stack.callback(self._log.close)
        if not self.resuming:
            self.log("run", 0, **{name: value for name, value in config["run"].items() if name != "kind"})
        peak = (run.hardware.peak_flops or 0) * run.ranks.world_size
        self.progress = Progress(run.num_iterations, self.step, self.per_step, peak)
        stack.callback(self.progress.close)
        self._writer = stack.enter_context(open_writer(run, self.step, self.progress.say))

    def log(self, kind: str, step: int, **values: object) -> None:
        """Append a line to metrics.jsonl. Evaluations decide which checkpoints are the best."""
        if self.main:
            self._log.write(kind, step, **values)
            if kind == "eval" and self.run.monitor in values:
                self._writer.scores[step] = values[self.run.monitor]

    def say(self, text: str) -> None:
        """Print lines for people."""
        if self.main:
            self.progress.say(text)

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Show the progress after `step`."""
        if self.main:
            self.progress.update(step, values)

    def wait_for_turn(self) -> None:
        """Return when the checkpoint before is on the disk."""
        if self.main:
            self._writer.wait_for_turn()

    def save(self, checkpoint: Checkpoint) -> None:
        """Start to write a checkpoint."""
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
        raise CheckpointError("stopped, because rank 0 could not write a checkpoint")

    def stop(self, received: int | None, step: int) -> int:
        """Wait for the checkpoint of `step`, print which signal ended the run, and return its exit code.

        All ranks call it; `received` is the signal's number on those to which it came, None on the others.
        """
        self.wait()
        number = max(self.run.ranks.gather(received or 0))
        name = next(signal.name for signal in EXIT_CODES if signal == number)
        self.say(f"stopped by {name} after step {step}; --resume auto continues from there")
        return EXIT_CODES[number]


def open_writer(run: Run, step: int, say: Callable[[str], None] = print) -> CheckpointWriter:
    """The writer of a run's checkpoints after `step`."""
    evals = [line for line in read_metrics(run.folder / METRICS) if line["kind"] == "eval" and run.monitor in line]
    scores = {line["step"]: line[run.monitor] for line in evals}
    options = {"keep": run.settings.keep, "keep_best": run.settings.keep_best, "resumed_from": step, "say": say}
    return CheckpointWriter(run.folder / "checkpoints", scores=scores, **options)


def clear_run(folder: Path, trained: bool) -> None:
    """Delete the beginnings of an earlier run of that name; with `trained`, also its checkpoints and results."""
    for name in ("tokenizer", "tensorboard", CONFIG, METRICS, *(("checkpoints", *RESULTS) if trained else ())):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def build_config_file(run: Run, found: Mapping[str, object]) -> dict:
    """The content of config.yaml; `found` are settings that were decided while the run was built."""
    facts = {
        "tag": run.folder.name,
        "kind": run.kind,
        **run.facts,
        "hardware": run.hardware.name,
        "peak_flops": run.hardware.peak_flops,
        "world_size": run.ranks.world_size,
        "device": run.device.type,
        "dtype": str(run.dtype).removeprefix("torch."),
        "kernels": backends.select_kernels(run.device, run.dtype),
        "torch": str(torch.__version__),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    settings = replace(run.settings, run=run.folder.name, **found)
    return {"model": run.model, "settings": settings.to_dict(), "run": facts}
