"""Find the start of training: the first step, a checkpoint, or none because the run is complete.

In this order: `check_folder` (in `plan`) compares the settings when the plan is made, before anything is built.
`claim` locks the folder, checks it again, verifies the newest checkpoint, and compares the ranks. `restore`
loads the checkpoint. The loader then checks that its state belongs to the same text.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nanogka.checkpoint import (
    STATE,
    latest_valid,
    list_checkpoints,
    load_checkpoint,
    load_weights,
    remove_partial,
    step_of,
    try_checkpoint,
)
from nanogka.common.cli import flag_name
from nanogka.common.errors import differences
from nanogka.common.files import acquire, free_bytes, holder_of
from nanogka.common.formatting import gigabytes, shorten
from nanogka.model import GPT
from nanogka.runs import METRICS, read_metrics
from nanogka.train.estimate import checkpoint_bytes, checkpoints_at_once
from nanogka.train.plan import ADVICE, DATA_FINGERPRINTS, TrainPlan, check_folder
from nanogka.train.sharded_optimizer import ShardedOptimizer


@dataclass(frozen=True)
class Start:
    """The start of training, the same on all ranks."""

    checkpoint: Path | None = None  # None: with the first step
    finished: bool = False  # the last step was saved and evaluated: there is nothing to do


@dataclass
class LoopState:
    """The loop's own part of a checkpoint, next to weights and optimizer."""

    step: int = 0  # finished updates
    tokens: int = 0  # that passed through the model in them
    loader: dict | None = None  # state of the data after them; None at the start
    smooth_loss: float = 0.0  # exponential average, not yet corrected for its start at 0
    seconds: float = 0.0  # that all steps took
    skipped: int = 0  # batches that were not finite


def find_start(plan: TrainPlan) -> tuple[Start, list[str]]:
    """The newest checkpoint that verifies, and lines about it for people. Rank 0 calls this, with the lock."""
    found = check_folder(plan.folder, plan.settings, plan.config, plan.about.facts)
    if not found:
        return Start(), []
    try:
        path, notes = latest_valid(plan.folder / "checkpoints")
    except OSError as error:
        raise ValueError(f"run: {plan.folder} cannot be read ({error}); it was not changed") from error
    if path is None:
        why = "".join(f"\n  {note}" for note in notes)
        holds = f"has no checkpoint to resume from, but holds {', '.join(found)}"
        raise ValueError(f"run: {plan.folder} {holds}; {ADVICE}{why}")
    # A checkpoint is saved before the evaluations of its step. A crash between the two leaves a last step without its
    # validation, which comes last: the run then resumes only to evaluate.
    step = step_of(path)
    lines = read_metrics(plan.folder / METRICS)
    evaluated = any(line["kind"] == "eval" and line["step"] == step and plan.about.monitor in line for line in lines)
    finished = step == plan.num_iterations and evaluated
    return Start(path, finished), notes if finished else [*notes, f"resuming from {path.name}"]


@contextmanager
def claim(plan: TrainPlan) -> Iterator[Start]:
    """Hold the run's lock, which the system releases with the process, and yield where training starts.

    All ranks enter together, joined. Rank 0 verifies the checkpoints, many gigabytes, and tells the others.
    Every rank raises ValueError if another process holds the run, if rank 0 finds something wrong with the folder, if
    the ranks have different settings, or if they do not share the folder.
    """
    # Next to the folder, which is created after the first batch has been tried.
    lock, ranks = FileLock(plan.folder.with_name(f".{plan.folder.name}.lock")), plan.machine.ranks
    problem: Exception | None = None
    start, notes = Start(), []
    try:
        if ranks.is_main:
            try:
                plan.folder.parent.mkdir(parents=True, exist_ok=True)
                acquire(lock, timeout=0)
                remove_partial(plan.folder / "checkpoints")  # of a killed process
                start, notes = find_start(plan)
                if not start.finished:
                    notes += check_disk(plan)
                    try_checkpoint(plan.folder if plan.folder.is_dir() else plan.folder.parent)
            except Timeout:
                text = f"run: {plan.folder} is being trained by {holder_of(lock)}; wait for it, or --run NAME"
                problem = ValueError(text)
            except (ValueError, OSError) as error:
                problem = error
        name = start.checkpoint and start.checkpoint.name
        problem, name, finished = ranks.all_gather((problem, name, start.finished))[0]
        if problem is not None:
            raise problem
        refuse_unlike_ranks(plan, Path(lock.lock_file))
        for note in notes:
            print(note, flush=True)
        yield Start(name and plan.folder / "checkpoints" / name, finished)
    finally:
        lock.release()


def refuse_unlike_ranks(plan: TrainPlan, lock: Path) -> None:
    """Raise ValueError, on every rank, if the ranks have other settings than rank 0 or do not see its `lock`.

    Otherwise the ranks would wait for each other in different collectives until these fail, after ten minutes.
    """
    mine = plan.settings.to_dict() | {f"model {key}": value for key, value in plan.config.to_dict().items()}
    mine |= {name: plan.about.facts.get(name) for name in DATA_FINGERPRINTS}
    gathered = plan.machine.ranks.all_gather((mine, lock.exists()))
    unlike = [
        f"{flag_name(name)} is {other!r} on rank {rank}, {main!r} on rank 0"
        for rank, (theirs, _) in enumerate(gathered)
        for name, (main, other) in differences(gathered[0][0], theirs).items()
    ]
    if unlike:
        raise ValueError(f"ranks: got different settings, expected the same command on all: {'; '.join(unlike[:8])}")
    blind = ", ".join(str(rank) for rank, (_, sees) in enumerate(gathered) if not sees)
    if blind:
        raise ValueError(
            f"NANOGKA_BASE_DIR: got a folder on rank 0 that these ranks do not share: {blind}; expected a folder on "
            "a file system of all nodes"
        )


def check_disk(plan: TrainPlan) -> list[str]:
    """Return a warning if the disk has no room for all checkpoints that the run will keep.

    Raises ValueError if two do not fit: the second one is written while the first is still needed. Checkpoints in the
    run's folder count as free space, because rotation or --overwrite deletes them.
    """
    size, most = checkpoint_bytes(plan.config), checkpoints_at_once(plan)
    folder = plan.folder / "checkpoints"
    held = sum(file.stat().st_size for path in list_checkpoints(folder) for file in path.iterdir() if file.is_file())
    room = free_bytes(plan.folder) + held
    least = min(2, most)
    got = f"{gigabytes(room)} on the disk of {plan.folder}"
    if room < least * size:
        raise ValueError(
            f"NANOGKA_BASE_DIR: got {got}, expected room for {least} checkpoints of {gigabytes(size)}; "
            "free some space, or name a folder on another disk"
        )
    if room < most * size:
        return [
            f"WARNING: {got}, less than the {most} checkpoints of {gigabytes(size)} that --keep {plan.settings.keep} "
            f"and --keep-best {plan.settings.keep_best} will hold at once"
        ]
    return []


def restore(start: Start, plan: TrainPlan, model: GPT, optimizer: ShardedOptimizer) -> LoopState:
    """Load weights, optimizer and the loop's state from the checkpoint to resume from, if there is one."""
    if start.checkpoint is None:
        return LoopState()
    checkpoint = load_checkpoint(start.checkpoint)
    load_weights(model, checkpoint.weights, f"resume: {start.checkpoint}")
    optimizer.load_state_dict(checkpoint.optimizer)
    # Checkpoints of earlier versions do not have the tokens: their steps all had as many as planned.
    tokens = {"tokens": checkpoint.step * plan.budget.total_batch_size}
    return read_state(tokens | checkpoint.state, f"resume: {start.checkpoint / STATE}")


def read_state(saved: dict[str, Any], source: str) -> LoopState:
    """The loop's part of a checkpoint. Raises ValueError, which begins with `source`, for values of another kind."""
    known = {f.name: saved[f.name] for f in fields(LoopState) if f.name in saved}
    for name, value in known.items():
        kind = dict if name == "loader" else float if name in ("smooth_loss", "seconds") else int
        if not (type(value) is kind or (kind is float and type(value) is int)):
            raise ValueError(f"{source}: {name}: got {shorten(repr(value))}, expected {kind.__name__}")
    return LoopState(**known)
