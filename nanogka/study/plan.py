"""Finished jobs, lines of a file of JSON objects, and the jobs to run: the sweep as far as results have decided it."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from nanogka.files import read_bytes
from nanogka.formatting import one_line, shorten
from nanogka.study.grid import Grid, Job, Stage, decisive, describe_error

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
            damaged, first = damaged + 1, first or f"line {number}: {one_line(shorten(why, 200))}"
    if damaged:
        print(f"{path}: {damaged} damaged lines left out ({first})", file=sys.stderr)
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


@dataclass(frozen=True)
class Search:
    """The sweep of one family as far as results go."""

    family: str
    stages: list[tuple[Stage, list[tuple[Job, dict | None]]]]  # begun, with their jobs and results (None: not there)
    chosen: dict[str, str] | None  # the best value of every setting; None while that is open

    @property
    def diverged(self) -> bool:
        return self.chosen is None and all(row is not None for _, row in self.stages[-1][1])


def best_trial(trials: Sequence[tuple[Job, dict | None]]) -> int | None:
    """The index of the trial with the lowest `val_bpb`; None while one is missing, or if all have diverged."""
    losses = {i: row["val_bpb"] for i, (_, row) in enumerate(trials) if row and row["val_bpb"] is not None}
    return min(losses, key=losses.get) if losses and all(row is not None for _, row in trials) else None


def search_rates(grid: Grid, family: str, find: Find) -> Search:
    """Follow the stages of a family's sweep: the value with the lowest `val_bpb` goes on to the next."""
    chosen: dict[str, str] = {}
    stages = []
    for stage in grid.stages_of(family):
        place = (family, grid.sweep.size, grid.sweep.seed)
        jobs = [grid.job(*place, chosen | {stage.setting: value}) for value in stage.values]
        trials = [(job, find(job.decisive)) for job in jobs]
        stages.append((stage, trials))
        best = best_trial(trials)
        if best is None:
            return Search(family, stages, None)
        chosen = chosen | {stage.setting: stage.values[best]}
    return Search(family, stages, chosen)


@dataclass(frozen=True)
class Plan:
    """The jobs in the order in which they are to run, each once."""

    done: list[Job]  # those that have a result
    ready: list[Job]
    waiting: list[Job]  # for the sweep's next choice; their swept values are not those that they will have
    diverged: list[str]  # families of which every rate of a stage diverged


def plan_jobs(grid: Grid, find: Find, families: Sequence[str] = (), sizes: Sequence[str] = ()) -> Plan:
    """All jobs of some families at some sizes (none named: all).

    The sweeps come first, then the sizes in the order of the grid, in each the seeds, in each the families: a study
    that is stopped early leaves families that can be compared.
    """
    chosen = [family for name, family in grid.families.items() if not families or name in families]
    searches = {name: search_rates(grid, name, find) for name in dict.fromkeys(family.sweep_as for family in chosen)}
    assumed = {name: {stage.setting: stage.values[0] for stage in grid.stages_of(name)} for name in searches}
    trials: list[tuple[tuple, bool, Job]] = []
    for rank, (name, search) in enumerate(searches.items()):
        for number, stage in enumerate(grid.stages_of(name)):
            known = number < len(search.stages)
            later = grid.job(name, grid.sweep.size, grid.sweep.seed, assumed[name])
            jobs = [job for job, _ in search.stages[number][1]] if known else [later] * len(stage.values)
            trials += [((number, i, rank), known, job) for i, job in enumerate(jobs)]
    jobs = [(known, job) for _, known, job in sorted(trials, key=lambda trial: trial[0])]
    for size in (size for size in grid.sizes if not sizes or size in sizes):
        for seed in grid.sizes[size].seeds:
            for family in chosen:
                if size in family.sizes:
                    rates = searches[family.sweep_as].chosen
                    swept = assumed[family.sweep_as] if rates is None else rates
                    jobs.append((rates is not None, grid.job(family.name, size, seed, swept)))
    known_jobs: list[Job] = []
    for known, job in jobs:
        if known and all(job.decisive != other.decisive for other in known_jobs):
            known_jobs.append(job)
    return Plan(
        done=[job for job in known_jobs if find(job.decisive)],
        ready=[job for job in known_jobs if not find(job.decisive)],
        waiting=[job for known, job in jobs if not known],
        diverged=[name for name, search in searches.items() if search.diverged],
    )
