"""Find the start of training: the first step, a checkpoint, or none because the run is complete.

`check_folder` finds what is wrong before anything is built. `claim` locks the folder and chooses the checkpoint.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from nanogka.checkpoint import latest_valid, list_checkpoints, step_of
from nanogka.common.cli import flag_name
from nanogka.common.errors import Errors
from nanogka.model import mixer_options
from nanogka.runs import CONFIG, METRICS, model_config, read_config, read_metrics
from nanogka.train.disk import check_disk
from nanogka.train.run import TrainingRun
from nanogka.train.settings import compared_on_resume

# Computed from a run and kept in its folder.
RESULTS = ("evaluation.json", "chat_evaluation.json", "report.md", "report.html")
RESULTS += ("plots", "visualization", "maps", "profile")
# Fingerprints of data in config.yaml: the flag that names the data, and what a difference means.
DATA_FINGERPRINTS = {
    "corpus": ("data", "other text, or its files have changed"),
    "footers": ("data", "the same files with other contents"),
    "tokenizer": ("tokenizer", "another vocabulary"),
}
ADVICE = "--overwrite deletes it, --run NAME makes another"


@dataclass(frozen=True)
class Start:
    """The start of training, the same on all ranks."""

    checkpoint: Path | None = None  # None: with the first step
    finished: bool = False  # the last step was saved and evaluated: there is nothing to do


def check_folder(run: TrainingRun) -> list[str]:
    """Return the names of the checkpoints and results in the folder from which a run is to resume; [] to start.

    Raises ValueError where checkpoints or results would be lost without `--overwrite`, where nothing in the folder can
    be used, and where the folder has a run with other settings. No checkpoint is read.
    """
    folder, settings = run.folder, run.settings
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
        refuse_differences(run)
    return found


def refuse_differences(run: TrainingRun) -> None:
    """Raise ValueError naming every way in which `run` differs from the one in its folder."""
    folder, settings = run.folder, run.settings
    saved = read_config(folder)
    now, before, errors = settings.to_dict(), saved["settings"], Errors()
    compared = compared_on_resume(type(settings))
    for name in now:
        known = name in before or name in mixer_options()  # a mixer's option that is not in an old file was off
        differs = known and name in compared and before.get(name) != now[name]
        errors.require(not differs, flag_name(name), now[name], f"{before.get(name)!r}, as {folder} has")
    other_data = set()
    for name, (flag, difference) in DATA_FINGERPRINTS.items():
        here, there = run.data_facts.get(name), (saved.get("run") or {}).get(name)
        if here and there and here != there and flag in now and flag not in other_data:
            other_data.add(flag)
            errors.lines.append(
                f"--{flag}: got {now[flag]!r} ({here[:12]}…), expected what {folder} was trained with, "
                f"{before.get(flag)!r} ({there[:12]}…): it is {difference}"
            )
    # An old config file may lack options that are newer, so it is read as a configuration first.
    model, other = run.config.to_dict(), model_config(saved, folder).to_dict()
    for name in {**other, **model}:
        same = other.get(name) == model.get(name)
        errors.require(same, f"model {name}", model.get(name), f"{other.get(name)!r}, as {folder} has")
    errors.raise_if_any()


def find_start(run: TrainingRun) -> tuple[Start, list[str]]:
    """The newest checkpoint that verifies, and lines about it for people. Rank 0 calls this, with the lock."""
    found = check_folder(run)
    if not found:
        return Start(), []
    try:
        path, notes = latest_valid(run.folder / "checkpoints")
    except OSError as error:
        raise ValueError(f"--run: {run.folder} cannot be read ({error}); it was not changed") from error
    if path is None:
        why = "".join(f"\n  {note}" for note in notes)
        holds = f"has no checkpoint to resume from, but holds {', '.join(found)}"
        raise ValueError(f"--run: {run.folder} {holds}; {ADVICE}{why}")
    # A checkpoint is saved before the evaluations of its step. A crash between the two leaves a last step without its
    # validation, which comes last: the run then resumes only to evaluate.
    step = step_of(path)
    lines = read_metrics(run.folder / METRICS)
    evaluated = any(line["kind"] == "eval" and line["step"] == step and run.monitor in line for line in lines)
    finished = step == run.num_iterations and evaluated
    return Start(path, finished), notes if finished else [*notes, f"resuming from {path.name}"]


@contextmanager
def claim(run: TrainingRun) -> Iterator[Start]:
    """Hold the run's lock, which the system releases with the process, and yield where training starts.

    All ranks enter together, joined. Rank 0 verifies the checkpoints, many gigabytes, and tells the others.
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
                notes += [] if start.finished else check_disk(run)
            except Timeout:
                text = f"--run: {run.folder} is being trained by another process; wait for it, or --run NAME"
                problem = ValueError(text)
            except (ValueError, OSError) as error:
                problem = error
        name = start.checkpoint and start.checkpoint.name
        problem, name, finished = ranks.all_gather((problem, name, start.finished))[0]
        if problem is not None:
            raise problem
        refuse_unlike_ranks(run, Path(lock.lock_file))
        for note in notes:
            print(note, flush=True)
        yield Start(name and run.folder / "checkpoints" / name, finished)
    finally:
        lock.release()


def refuse_unlike_ranks(run: TrainingRun, lock: Path) -> None:
    """Raise ValueError, on every rank, if the ranks have other settings than rank 0 or do not see its `lock`.

    Otherwise the ranks would wait for each other in different collectives until these fail, after ten minutes.
    """
    mine = run.settings.to_dict() | {f"model {key}": value for key, value in run.config.to_dict().items()}
    mine |= {name: run.data_facts.get(name) for name in DATA_FINGERPRINTS}
    gathered = run.ranks.all_gather((mine, lock.exists()))
    main = gathered[0][0]
    unlike = [
        f"{flag_name(name)} is {other.get(name)!r} on rank {rank}, {main[name]!r} on rank 0"
        for rank, (other, _) in enumerate(gathered)
        for name in main
        if other.get(name) != main[name]
    ]
    if unlike:
        raise ValueError(f"ranks: got different settings, expected the same command on all: {'; '.join(unlike[:8])}")
    blind = ", ".join(str(rank) for rank, (_, sees) in enumerate(gathered) if not sees)
    if blind:
        raise ValueError(
            f"NANOGKA_BASE_DIR: got a folder on rank 0 that these ranks do not share: {blind}; expected a folder on "
            "a file system of all nodes"
        )
