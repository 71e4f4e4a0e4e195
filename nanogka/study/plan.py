"""The results file of a study, with one JSON object per finished run, and the plan of the remaining runs."""

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from nanogka.common.files import read_bytes
from nanogka.common.formatting import say
from nanogka.study.grid import Grid, Job, decisive

# Values that decide the numbers of a row in addition to its settings: the fingerprints of the training corpus, the
# tokenizer and the second corpus, how many tokens of each validation split are measured, and in how many streams the
# split is read, which decides what its first tokens are. Rows without this number were measured when it was 1.
PROTOCOL = ("corpus", "tokenizer", "confirm", "measure_tokens", "validation_streams")
FIRST = {"validation_streams": 1}
Find = Callable[[dict], dict | None]  # maps the decisive settings of a job to its row, or None


class Results:
    """The rows of one protocol (`PROTOCOL`, by default that of the last row). Other rows are counted and left out.

    A row that lacks a value of the protocol is older than this value and is accepted.
    """

    def __init__(self, rows: Sequence[dict], protocol: dict | None = None) -> None:
        last = FIRST | rows[-1] if rows else {}
        self.protocol = {name: last[name] for name in PROTOCOL if name in last} if protocol is None else protocol
        self.rows: list[dict] = []
        self._found: dict[str, dict] = {}
        for row in rows:
            self.add(row)
        self.others = len(rows) - len(self.rows)

    def add(self, row: dict) -> None:
        """Add a row unless it has another protocol."""
        if all((FIRST | row).get(name, value) == value for name, value in self.protocol.items()):
            self.rows.append(row)
            self._found[json.dumps(decisive(row["settings"]), sort_keys=True)] = row

    def find(self, settings: dict) -> dict | None:
        """Return the last row with these decisive settings."""
        return self._found.get(json.dumps(settings, sort_keys=True))


def read_results(path: Path) -> list[dict]:
    """Read the rows of a results file. Another line is skipped with a note: a crash can cut the last one."""
    rows = []
    for number, line in enumerate(read_bytes(path).splitlines() if path.exists() else [], 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            say(f"{path}: skipped line {number}, which is not JSON")
            continue
        if isinstance(row, dict) and isinstance(row.get("settings"), dict):
            rows.append(row)
        else:
            say(f"{path}: skipped line {number}, which is not a row of a study")
    return rows


def append_row(path: Path, row: dict) -> None:
    """Append a row in one write and flush it to the disk. Ends an incomplete last line first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = read_bytes(path) if path.exists() else b""
    line = ("\n" if before and not before.endswith(b"\n") else "") + json.dumps(row, allow_nan=False) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())
        os.fsync(file.fileno())


# ---- what to run ----

Trials = list[tuple[Job, dict | None]]  # one job per learning rate with its row, None if it is not done


def try_rates(grid: Grid, family: str, size: str, find: Find) -> Trials:
    """Return the jobs of a family at a size with the first seed, one per learning rate."""
    jobs = [grid.job(family, size, grid.sizes[size].seeds[0], rate) for rate in grid.rates(family, size)]
    return [(job, find(job.decisive)) for job in jobs]


def best_trial(trials: Trials) -> int | None:
    """Return the index of the finished trial with the lowest `val_bpb`, or None. Diverged trials rank last."""
    losses = {i: math.inf if row["val_bpb"] is None else row["val_bpb"] for i, (_, row) in enumerate(trials) if row}
    return min(losses, key=losses.__getitem__, default=None)


@dataclass(frozen=True)
class Plan:
    """The distinct jobs in the order in which they run."""

    done: list[Job]
    ready: list[Job]
    waiting: list[Job]  # jobs that wait for the choice of a learning rate; their current rate is a placeholder
    diverged: list[str]  # families and sizes at which every rate diverged


def plan_jobs(grid: Grid, find: Find, families: Sequence[str] = (), sizes: Sequence[str] = ()) -> Plan:
    """Plan all jobs of some families at some sizes (empty: all).

    Sizes keep the order of the grid. Within a size, the trials of learning rates come first, then the other seeds. The
    families take turns, so that the families of an interrupted study can be compared.
    """
    known: dict[str, Job] = {}
    waiting, diverged = [], []

    def add(job: Job) -> None:
        known.setdefault(json.dumps(job.decisive, sort_keys=True), job)

    for size, at in grid.sizes.items():
        if sizes and size not in sizes:
            continue
        chosen = [name for name, f in grid.families.items() if size in f.sizes and name in (families or grid.families)]
        tried = {name: try_rates(grid, name, size, find) for name in chosen}
        # All rates before any further seed: the other seeds need the choice.
        for trials in zip_longest(*tried.values()):
            for trial in filter(None, trials):
                add(trial[0])
        lost = {name for name, trials in tried.items() if all(row and row["val_bpb"] is None for _, row in trials)}
        diverged += [f"{name} at {size}" for name in chosen if name in lost]
        for seed in at.seeds[1:]:
            for name, trials in tried.items():
                best = best_trial(trials)
                if name not in lost and best is not None and all(row for _, row in trials):
                    add(grid.job(name, size, seed, grid.rates(name, size)[best]))
                else:  # also for a lost family, so that the plan says what is missing
                    waiting.append(grid.job(name, size, seed, grid.rates(name, size)[0]))
    done = [job for job in known.values() if find(job.decisive)]
    return Plan(done, [job for job in known.values() if not find(job.decisive)], waiting, diverged)
