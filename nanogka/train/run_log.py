"""The files that a run writes: config.yaml, metrics.jsonl and checkpoints. Only rank 0 writes.

A line of `metrics.jsonl` is one JSON object with `kind` and `step` (finished updates). A resumed run drops the lines
that it will write again, so that a step appears once.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from nanogka import backends
from nanogka.checkpoint import Checkpoint, delete_checkpoint, list_checkpoints, remove_partial, step_of
from nanogka.common.files import annotate_oserror, atomic_write
from nanogka.model import attention_name
from nanogka.runs import METRICS, read_metrics, write_config
from nanogka.train.async_checkpoint import CheckpointError, CheckpointWriter
from nanogka.train.plan import TrainPlan
from nanogka.train.progress import Progress, describe_numbers
from nanogka.train.resume import LoopState
from nanogka.train.trackers import Log, open_tracker

KINDS_WRITTEN_AFTER_SAVING = ("eval", "skip")

# Threads that wait for each other at every operation lose most on a busy machine: one of two may take the longer.
BUSY_CPU = "If other programs use the cores, one thread may be faster (OMP_NUM_THREADS=1)"


class MetricsLog:
    """Appends to a `metrics.jsonl` and hands the numbers to a tracker.

    A resumed run keeps the lines of the first `resume_step` steps; None starts an empty file.
    """

    def __init__(self, path: Path, resume_step: int | None = None, track: Log | None = None) -> None:
        if resume_step is None:
            path.write_text("")
        else:
            kept = [line for line in read_metrics(path) if _precedes(line, resume_step)]
            atomic_write(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._path, self._file = path, path.open("ab", buffering=0)  # a full disk fails at this write, not later
        self._track = track

    def write(self, kind: str, step: int, **values: object) -> None:
        with annotate_oserror(self._path):
            self._file.write((json.dumps({"kind": kind, "step": step, **values}) + "\n").encode())
        if self._track is not None and kind != "run":
            self._track(step, {f"{kind}/{name}": v for name, v in values.items() if isinstance(v, int | float)})

    def close(self) -> None:
        self._file.close()


def _precedes(line: dict, step: int) -> bool:
    # A checkpoint is saved before the evaluations of its step, so those come again.
    after = line["kind"] in KINDS_WRITTEN_AFTER_SAVING
    return line["step"] < step if after else line["step"] <= step


@dataclass
class RunLog:
    """Writes a run's files. On ranks other than 0 every method is a no-op."""

    monitor: str = ""  # the evaluation that decides which checkpoints are best
    metrics: MetricsLog | None = None
    progress: Progress | None = None
    writer: CheckpointWriter | None = None
    validations: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # by step

    def log(self, kind: str, step: int, **values: Any) -> None:
        """Append a line to metrics.jsonl. Training lines also show the progress, evaluations the best checkpoints."""
        if self.metrics:
            self.metrics.write(kind, step, **values)
            if kind == "train" and self.progress:
                self.progress.update(step, values)
            elif kind == "eval" and self.writer and self.monitor in values:
                self.writer.scores[step] = values[self.monitor]
                self.validations[step] = values

    def evaluated(self, seconds: Mapping[int, float]) -> None:
        """Tell the progress how long evaluations took, by the steps between them, for its estimate of the time left."""
        if self.progress:
            self.progress.evaluations |= seconds

    def say(self, text: str) -> None:
        """Print lines for people."""
        if self.progress:
            self.progress.say(text)

    def save(self, make: Callable[[], Checkpoint]) -> None:
        """Start to write a checkpoint. All ranks call it, because `make` gathers the optimizer state of all of them."""
        if self.writer:
            self.writer.wait_for_turn()  # before `make` copies the state: the host holds one copy at a time
        checkpoint = make()
        if self.writer:
            self.writer.submit(checkpoint)

    @property
    def failed(self) -> bool:
        """True if a checkpoint could not be written."""
        return self.writer is not None and self.writer.failed

    def wait(self) -> None:
        """Return when every checkpoint is on the disk. Raises CheckpointError if one could not be written."""
        if self.writer:
            self.writer.wait()

    def raise_failure(self) -> None:
        """Raise CheckpointError, on every rank."""
        self.wait()
        raise CheckpointError("stopped, because rank 0 could not write a checkpoint")


@contextmanager
def open_run_log(plan: TrainPlan, start: LoopState, *, resumes: bool, files: Mapping[str, str]) -> Iterator[RunLog]:
    """Open the folder of a run, and wait at the end until its last checkpoint is on the disk.

    The run starts, or it `resumes` after the step of `start`. `files` are further files of a run that starts.
    """
    if not plan.machine.ranks.is_main:
        yield RunLog()
        return
    folder, settings, monitor = plan.folder, plan.settings, plan.about.monitor
    checkpoints, config = folder / "checkpoints", build_config_file(plan)
    prepare_folder(folder, start.step, empty=not resumes and settings.overwrite)
    if not resumes:
        plan.own_tokenizer.save(folder / "tokenizer")
        for name, text in files.items():
            atomic_write(folder / name, text, private=True)  # they may quote the user's own text
        write_config(folder, config)
    lines = read_metrics(folder / METRICS) if resumes else []
    validations: dict[int, Mapping[str, Any]] = {
        line["step"]: line for line in lines if line["kind"] == "eval" and monitor in line
    }
    peak_flops = plan.machine.peak_flops if plan.about.fixed_tokens else 0
    usual_mfu, gpu = plan.machine.hardware.usual_mfu, plan.machine.device.type == "cuda"
    advice = "scripts.gpu_first finds out why" if gpu else BUSY_CPU
    progress = Progress(plan.num_iterations, start.step, plan.amounts(start.tokens), peak_flops, usual_mfu, advice)
    options = {"keep": settings.keep, "keep_best": settings.keep_best, "say": progress.say}
    scores, resumed_from = {step: line[monitor] for step, line in validations.items()}, start.step if resumes else None
    with (
        open_tracker(settings.tracker, folder, config, resumed_from) as track,
        closing(MetricsLog(folder / METRICS, resumed_from, track)) as metrics,
        CheckpointWriter(checkpoints, scores=scores, **options) as writer,
    ):
        log = RunLog(monitor, metrics, progress, writer, validations)
        logged = {line["step"] for line in lines if line["kind"] == "train"}
        if missing := [step for step in range(1, start.step + 1) if step not in logged]:
            log.say(f"{METRICS} lacks {len(missing):,} of the {start.step:,} steps before, from step {missing[0]}")
        if not resumes:
            log.log("run", 0, **{name: value for name, value in config["run"].items() if name != "kind"})
        yield log
    if settings.keep_best and (best := describe_best(checkpoints, monitor, validations)):
        progress.say(best)


def prepare_folder(folder: Path, step: int, empty: bool) -> None:
    """Create the folder of a run or `empty` it, and delete what a run that continues after `step` must not meet."""
    if empty and folder.exists():
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    remove_partial(checkpoints)
    # A damaged checkpoint would count among the newest ones that rotation keeps, and displace a valid one.
    for path in list_checkpoints(checkpoints):
        if step_of(path) > step:
            delete_checkpoint(path)


def describe_best(folder: Path, monitor: str, validations: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Name the checkpoint with the best validation, and that figure; None if there is nothing to choose."""
    steps = [step_of(path) for path in list_checkpoints(folder)]
    values = {step: float(validations[step][monitor]) for step in steps if step in validations}
    values = {step: value for step, value in values.items() if math.isfinite(value)}
    if len(values) < 2:
        return None
    best = min(values, key=values.__getitem__)
    numbers = {name: validations[best].get(name) for name in (monitor, f"{monitor}_se", "val_tokens")}
    numbers = {name: value for name, value in numbers.items() if value is not None}
    return f"best checkpoint kept: step {best}, {', '.join(describe_numbers(numbers))}"


def build_config_file(plan: TrainPlan) -> dict:
    """The content of config.yaml: the model, all settings, and facts about the run and its machine."""
    facts = {
        "tag": plan.folder.name,
        "kind": plan.about.kind,
        "attention": attention_name(plan.config.mixer_pattern),
        "depth": plan.config.n_layer,
        "parameters": plan.costs.total_parameters,
        "flops_per_token": plan.costs.flops_per_token,
        "total_batch_size": plan.budget.total_batch_size,
        "num_iterations": plan.num_iterations,
        "activation_checkpointing": plan.settings.activation_checkpointing,
        **plan.about.facts,
        "compiled": plan.machine.compile,
        "hardware": plan.machine.hardware.name,
        # A measured peak is another number each time, and the files of equal runs are equal.
        "peak_flops": None if plan.machine.hardware.measured else plan.machine.hardware.peak_flops,
        "world_size": plan.machine.ranks.world_size,
        "device": plan.machine.device.type,
        "dtype": str(plan.machine.dtype).removeprefix("torch."),
        "kernels": backends.select_kernels(plan.machine.device, plan.machine.dtype),
        "torch": str(torch.__version__),
        # To the millisecond: trackers tell runs of one name apart by it.
        "created": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
    }
    settings = replace(plan.settings, run=plan.folder.name, device_batch_size=plan.batch.rows)
    return {"model": plan.config.to_dict(), "settings": settings.to_dict(), "run": facts}
