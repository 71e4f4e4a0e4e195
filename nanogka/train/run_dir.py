"""The files that a run writes: config.yaml, metrics.jsonl and checkpoints. Only rank 0 writes."""

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

import torch

from nanogka import backends
from nanogka.checkpoint import Checkpoint, delete_checkpoint, list_checkpoints, remove_partial, step_of
from nanogka.model import attention_name
from nanogka.runs import METRICS, read_metrics, write_config
from nanogka.train.async_checkpoint import CheckpointError, CheckpointWriter
from nanogka.train.metrics import MetricsLog, Progress, describe_numbers
from nanogka.train.run import TrainingRun
from nanogka.train.trackers import open_tracker


@dataclass
class RunDirectory:
    """The open folder of a run. On other ranks than 0 it has no log, and its methods do nothing."""

    run: TrainingRun
    metrics: MetricsLog | None = None
    progress: Progress | None = None
    writer: CheckpointWriter | None = None
    validations: dict[int, Mapping[str, object]] = field(default_factory=dict)  # by step

    def log(self, kind: str, step: int, **values: object) -> None:
        """Append a line to metrics.jsonl. Training lines also show the progress, evaluations the best checkpoints."""
        if self.metrics:
            self.metrics.write(kind, step, **values)
            if kind == "train":
                self.progress.update(step, values)
            elif kind == "eval" and self.run.monitor in values:
                self.writer.scores[step] = values[self.run.monitor]
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
def open_run_dir(
    run: TrainingRun,
    resumed_from: int | None,
    found: Mapping[str, object],
    add_files: Callable[[Path], None] = lambda folder: None,
) -> Iterator[RunDirectory]:
    """Open the folder of a run, and wait at the end until its last checkpoint is on the disk.

    `resumed_from` is the step of the checkpoint to continue from; None starts a run. `found` are settings that were
    decided while the run was built, such as the batch size. `add_files` writes further files of a run that starts.
    """
    if not run.ranks.is_main:
        yield RunDirectory(run)
        return
    folder, starts, step = run.folder, resumed_from is None, resumed_from or 0
    if starts and run.settings.overwrite and folder.exists():
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    remove_partial(checkpoints)
    # A damaged checkpoint would count among the newest ones that rotation keeps, and displace a valid one.
    for path in list_checkpoints(checkpoints):
        if step_of(path) > step:
            delete_checkpoint(path)
    config = build_config_file(run, found)
    if starts:
        add_files(folder)
        write_config(folder, config)
    lines = [] if starts else read_metrics(folder / METRICS)
    validations = {line["step"]: line for line in lines if line["kind"] == "eval" and run.monitor in line}
    scores = {step: line[run.monitor] for step, line in validations.items()}
    progress = Progress(run.num_iterations, step, run.per_step, run.peak_flops)
    options = {"keep": run.settings.keep, "keep_best": run.settings.keep_best, "say": progress.say}
    with (
        open_tracker(run.settings.tracker, folder, config, resumed_from) as track,
        closing(MetricsLog(folder / METRICS, resumed_from, track)) as metrics,
        CheckpointWriter(checkpoints, scores=scores, **options) as writer,
    ):
        run_dir = RunDirectory(run, metrics, progress, writer, validations)
        if starts:
            run_dir.log("run", 0, **{name: value for name, value in config["run"].items() if name != "kind"})
        yield run_dir
    if run.settings.keep_best and (best := describe_best(checkpoints, run.monitor, validations)):
        progress.say(best)


def describe_best(folder: Path, monitor: str, validations: Mapping[int, Mapping[str, object]]) -> str | None:
    """Name the checkpoint with the best validation, and how noisy that figure is; None if there is nothing to choose.

    The standard error is that of the text: all checkpoints were measured on the same text, so they differ with less.
    """
    steps = [step_of(path) for path in list_checkpoints(folder)]
    values = {step: float(validations[step][monitor]) for step in steps if step in validations}
    values = {step: value for step, value in values.items() if math.isfinite(value)}
    if len(values) < 2:
        return None
    best = min(values, key=values.get)
    line = validations[best]
    numbers = {name: line[name] for name in (monitor, f"{monitor}_se", "val_tokens") if name in line}
    error = line.get(f"{monitor}_se", 0.0)
    close = [str(step) for step, value in values.items() if step != best and value - values[best] < error]
    others = f"; within one SE of it: step {', '.join(close)}" if close else ""
    return f"best checkpoint kept: step {best}, {', '.join(describe_numbers(numbers))}{others}"


def build_config_file(run: TrainingRun, found: Mapping[str, object]) -> dict:
    """The content of config.yaml: the model, all settings, and facts about the run and its machine."""
    facts = {
        "tag": run.folder.name,
        "kind": run.kind,
        "attention": attention_name(run.config.mixer_pattern),
        "depth": run.config.n_layer,
        "parameters": run.costs.total_parameters,
        "flops_per_token": run.costs.flops_per_token,
        "total_batch_size": run.budget.total_batch_size,
        "num_iterations": run.num_iterations,
        "activation_checkpointing": run.settings.activation_checkpointing,
        **run.data_facts,
        "compiled": run.compile,
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
    return {"model": run.config.to_dict(), "settings": settings.to_dict(), "run": facts}
