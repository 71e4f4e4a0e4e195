"""Finished jobs, lines of a file of JSON objects, and the jobs to run, as far as results have decided their rates."""

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from nanogka.common.files import read_bytes
from nanogka.common.formatting import say, shorten
from nanogka.study.grid import Grid, Job, decisive, describe_error

# What decides the numbers of a line beside the settings: fingerprints of the training corpus, of the tokenizer and of
# the second validation corpus, and how many tokens of each split are measured.
PROTOCOL = ("corpus", "tokenizer", "confirm", "measure_tokens")
Find = Callable[[dict], dict | None]  # the result of a job by its decisive settings, None while it has none


class Row(BaseModel):
    """A finished job, as a line of results has it; None: not measured, or not finite."""

    model_config = ConfigDict(allow_inf_nan=False)

    id: str
    family: str
    size: str
    seed: int
    settings: dict
    val_bpb: float | None
    confirm_bpb: float | None
    parameters: int
    flops_per_token: float
    cache_bytes_per_token: int
    steps: int
    tokens: int
    flops: float
    curve: list[tuple[int, float | None]]
    seconds: float | None
    tokens_per_second: float | None
    bandwidth: dict[int, list[float | None]] | None
    hardware: str
    dtype: str
    compiled: bool
    torch: str


class Results:
    """The finished jobs of one protocol: the values of `PROTOCOL`, by default the last row's; other rows are left out.

    A row without one of them fits any value.
    """

    def __init__(self, rows: Sequence[dict], protocol: dict | None = None) -> None:
        if protocol is None:
            protocol = {name: rows[-1][name] for name in PROTOCOL if name in rows[-1]} if rows else {}
        self.protocol = protocol
        self._rows: list[tuple[dict, dict]] = []
        for row in rows:
            self.add(row)
        self.others = len(rows) - len(self._rows)

    @property
    def rows(self) -> list[dict]:
        return [row for _, row in self._rows]

    def add(self, row: dict) -> None:
        if all(row.get(name, value) == value for name, value in self.protocol.items()):
            self._rows.append((decisive(row["settings"]), row))

    def find(self, settings: dict) -> dict | None:
        """The row of a run with these settings, the last one of several."""
        return next((row for known, row in reversed(self._rows) if known == settings), None)


def read_results(path: Path, kind: type[BaseModel] = Row) -> list[dict]:
    """The lines of a results file that are of a kind; the others are left out and counted on stderr."""
    rows, damaged, first = [], 0, ""
    for number, line in enumerate(read_bytes(path).splitlines() if path.exists() else [], 1):
        try:
            row = json.loads(line)
            kind.model_validate(row)
            rows.append(row)
        except (ValueError, RecursionError) as error:
            why = describe_error(error.errors()[0]) if isinstance(error, ValidationError) else "not JSON"
            damaged, first = damaged + 1, first or f"line {number}: {shorten(why, 200)}"
    if damaged:
        say(f"{path}: {damaged} damaged lines left out ({first})")
    return rows


def append_line(path: Path, content: dict) -> None:
    """Append one JSON object as a line, in one write that is on the disk before this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = read_bytes(path) if path.exists() else b""
    cut = before and not before.endswith(b"\n")
    line = ("\n" if cut else "") + json.dumps(content, allow_nan=False) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())
        os.fsync(file.fileno())


# ---- what is to run ----


Trials = list[tuple[Job, dict | None]]  # a job per learning rate, with its result (None: not there)


def try_rates(grid: Grid, family: str, size: str, find: Find) -> Trials:
    """The jobs of a family at a size with the first seed."""
    jobs = [grid.job(family, size, grid.sizes[size].seeds[0], rate) for rate in grid.rates(family, size)]
    return [(job, find(job.decisive)) for job in jobs]


def best_trial(trials: Trials) -> int | None:
    """Index of the trial with the lowest `val_bpb` of those that are there, a diverged one last; None without any."""
    losses = {i: math.inf if row["val_bpb"] is None else row["val_bpb"] for i, (_, row) in enumerate(trials) if row}
    return min(losses, key=losses.get, default=None)


def all_diverged(trials: Trials) -> bool:
    return all(row and row["val_bpb"] is None for _, row in trials)


@dataclass(frozen=True)
class Plan:
    """The jobs in the order in which they are to run, each once."""

    done: list[Job]  # those that have a result
    ready: list[Job]
    waiting: list[Job]  # for the choice of a rate, which may not be theirs
    diverged: list[str]  # families of which every rate diverged at a size, and the size


def plan_jobs(grid: Grid, find: Find, families: Sequence[str] = (), sizes: Sequence[str] = ()) -> Plan:
    """All jobs of some families at some sizes (none named: all).

    The sizes come in the order of the grid, in each the rates, then the seeds, in each the families: a study that is
    stopped early leaves families that can be compared.
    """
    known: list[Job] = []
    waiting, diverged = [], []
    for size, at in grid.sizes.items():
        if sizes and size not in sizes:
            continue
        chosen = [name for name, f in grid.families.items() if size in f.sizes and name in (families or grid.families)]
        tried = {name: try_rates(grid, name, size, find) for name in chosen}
        known += [trial[0] for rate in zip_longest(*tried.values()) for trial in rate if trial]
        diverged += [f"{name} at {size}" for name, trials in tried.items() if all_diverged(trials)]
        for seed in at.seeds[1:]:
            for name, trials in tried.items():
                decided = all(row for _, row in trials) and not all_diverged(trials)
                rate = grid.rates(name, size)[best_trial(trials) if decided else 0]
                (known if decided else waiting).append(grid.job(name, size, seed, rate))
    unique: list[Job] = []
    for job in known:
        if all(job.decisive != other.decisive for other in unique):
            unique.append(job)
    done = [job for job in unique if find(job.decisive)]
    return Plan(done, [job for job in unique if not find(job.decisive)], waiting, diverged)
