"""The jobs of a study: the sweep as far as results have decided it, what can run now, what comes after."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nanogka.study.grid import Grid, Job, Stage

Find = Callable[[Job], dict | None]  # the result of a job, None while it has none


@dataclass(frozen=True)
class Search:
    """The sweep of one family as far as results go.

    Attributes:
        stages: of each stage that has begun, its jobs with their results (None: not there yet).
        chosen: the best value of every setting; None while that is open.
    """

    family: str
    stages: list[tuple[Stage, list[tuple[Job, dict | None]]]]
    chosen: dict | None

    @property
    def hopeless(self) -> bool:
        """True if every value of the last stage diverged."""
        return self.chosen is None and all(row is not None for _, row in self.stages[-1][1])


def search_rates(grid: Grid, family: str, find: Find) -> Search:
    """Follow the stages of a family's sweep: the value with the lowest `val_bpb` goes on to the next."""
    taken: dict = {}
    stages = []
    for stage in grid.stages_of(family):
        jobs = [grid.job(family, grid.sweep_size, grid.sweep_seed, taken | {stage.setting: v}) for v in stage.values]
        trials = [(job, find(job)) for job in jobs]
        stages.append((stage, trials))
        sound = [(row["val_bpb"], i) for i, (_, row) in enumerate(trials) if row and row["val_bpb"] is not None]
        if any(row is None for _, row in trials) or not sound:
            return Search(family, stages, None)
        taken = dict(trials[min(sound)[1]][0].swept)
    return Search(family, stages, taken)


@dataclass(frozen=True)
class Plan:
    """The jobs in the order in which they are to run, each once.

    Attributes:
        ready: those whose settings are known, done ones included.
        waiting: one for each that is to come when the sweep has gone on; its swept values are not those it will have.
        hopeless: families of which every rate of a stage diverged.
    """

    ready: list[Job]
    waiting: list[Job]
    hopeless: list[str]


def plan(grid: Grid, find: Find, families: Sequence[str] = (), sizes: Sequence[str] = ()) -> Plan:
    """All jobs of some families at some sizes (none named: all).

    The sweeps come first, then the sizes as they stand in the grid, in each the seeds, in each the families: a study
    that is stopped early leaves families that can be compared.
    """
    chosen_families = [family for family in grid.families if not families or family in families]
    chosen_sizes = [size for size in grid.sizes if not sizes or size in sizes]
    swept = list(dict.fromkeys(grid.families[family].sweep_as for family in chosen_families))
    searches = {family: search_rates(grid, family, find) for family in swept}
    order: list[tuple[tuple, bool, Job]] = []
    for rank, (family, search) in enumerate(searches.items()):
        assumed: dict = {}
        for depth, stage in enumerate(grid.stages_of(family)):
            known = depth < len(search.stages)
            assumed = assumed | {stage.setting: stage.values[0]}
            jobs = [job for job, _ in search.stages[depth][1]] if known else [None] * len(stage.values)
            for i, job in enumerate(jobs):
                job = job or grid.job(family, grid.sweep_size, grid.sweep_seed, assumed)
                order.append(((0, depth, i, rank), known, job))
    for place, size in enumerate(chosen_sizes):
        for turn, seed in enumerate(grid.sizes[size].seeds):
            for rank, family in enumerate(chosen_families):
                if size not in grid.families[family].sizes:
                    continue
                source = grid.families[family].sweep_as
                rates = searches[source].chosen
                assumed = {stage.setting: stage.values[0] for stage in grid.stages_of(source)}
                job = grid.job(family, size, seed, assumed if rates is None else rates)
                order.append(((1 + place, turn, rank, 0), rates is not None, job))
    order.sort(key=lambda entry: entry[0])
    ready: dict[str, Job] = {}
    for _, known, job in order:
        if known:
            ready.setdefault(job.key, job)
    return Plan(
        ready=list(ready.values()),
        waiting=[job for _, known, job in order if not known],
        hopeless=[family for family, search in searches.items() if search.hopeless],
    )
