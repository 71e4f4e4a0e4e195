"""The jobs of a study: the sweep as far as results have decided it, the jobs that can run now, those that wait."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nanogka.study.grid import Grid, Job, Stage

Find = Callable[[dict], dict | None]  # the result of a job by its decisive settings, None while it has none


@dataclass(frozen=True)
class Search:
    """The sweep of one family as far as results go.

    Attributes:
        stages: those that have begun, each with its jobs and their results (None: not there yet).
        chosen: the best value of every setting; None while that is open.
    """

    family: str
    stages: list[tuple[Stage, list[tuple[Job, dict | None]]]]
    chosen: dict[str, str] | None

    @property
    def diverged(self) -> bool:
        """True if every value of the last stage diverged."""
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
    """The jobs in the order in which they are to run, each once.

    Attributes:
        done: those that have a result.
        ready: those to run now.
        waiting: those that need the sweep's next choice; their swept values are not those that they will have.
        diverged: families of which every rate of a stage diverged.
    """

    done: list[Job]
    ready: list[Job]
    waiting: list[Job]
    diverged: list[str]


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
