"""The results of a study as numbers: each family at each size over its seeds, differences, the sweep's choices."""

import math
import statistics
from dataclasses import dataclass
from functools import cached_property

from nanogka.study.grid import Family, Grid, Job, settings_key
from nanogka.study.plan import Search, search_rates


@dataclass(frozen=True)
class Cell:
    """One family at one size: the results of its seeds, in the order of the grid, and how many are missing."""

    family: Family
    size: str
    rows: list[dict]
    missing: int

    @cached_property
    def sound(self) -> list[dict]:
        """The results that did not diverge."""
        return [row for row in self.rows if row["val_bpb"] is not None]

    def values(self, name: str) -> list[float]:
        """A number of every sound result that has it."""
        return [row[name] for row in self.sound if row.get(name) is not None]

    def mean(self, name: str) -> float | None:
        """The mean over the seeds."""
        values = self.values(name)
        return statistics.fmean(values) if values else None

    def spread(self, name: str) -> float | None:
        """The sample standard deviation over the seeds (n − 1); None of fewer than two."""
        values = self.values(name)
        return statistics.stdev(values) if len(values) > 1 else None

    def difference(self, other: "Cell", name: str) -> tuple[float, float | None] | None:
        """Mean difference to another family over the seeds that both have, and its standard error.

        Runs of one seed see the same documents in the same order, so the differences are taken seed by seed; the
        standard error is that of their mean, None of fewer than two.
        """
        theirs = {row["seed"]: row.get(name) for row in other.sound}
        pairs = [(row.get(name), theirs.get(row["seed"])) for row in self.sound]
        gaps = [mine - reference for mine, reference in pairs if None not in (mine, reference)]
        if not gaps:
            return None
        error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else None
        return statistics.fmean(gaps), error


class Summary:
    """A grid with its results.

    Results are found by the settings that decide them, so what the grid no longer asks for is left out.

    Attributes:
        cells: by size and family, those with at least one result.
        searches: the sweep of each family that has one of its own.
    """

    def __init__(self, grid: Grid, rows: list[dict]) -> None:
        self.grid = grid
        self._rows = {settings_key(row["settings"], row.get("defaults", {})): row for row in rows}
        swept = dict.fromkeys(family.sweep_as for family in grid.families.values())
        self.searches: dict[str, Search] = {name: search_rates(grid, name, self.find) for name in swept}
        self.cells: dict[tuple[str, str], Cell] = {}
        for size in grid.sizes:
            for family in grid.families.values():
                cell = self._cell(family, size)
                if cell.rows:
                    self.cells[size, family.name] = cell

    def find(self, job: Job) -> dict | None:
        """The result of a job."""
        return self._rows.get(job.key)

    def _cell(self, family: Family, size: str) -> Cell:
        chosen = self.searches[family.sweep_as].chosen
        if size not in family.sizes or chosen is None:
            return Cell(family, size, [], 0)
        seeds = self.grid.sizes[size].seeds
        rows = [self.find(self.grid.job(family.name, size, seed, chosen)) for seed in seeds]
        return Cell(family, size, [row for row in rows if row], rows.count(None))

    @property
    def sizes(self) -> list[str]:
        """The sizes of which there is something."""
        return [size for size in self.grid.sizes if any(at == size for at, _ in self.cells)]

    @property
    def families(self) -> list[Family]:
        """The families of which there is something."""
        return [f for f in self.grid.families.values() if any(name == f.name for _, name in self.cells)]

    def at(self, size: str) -> list[Cell]:
        """The families at a size, in the order of the grid."""
        return [cell for (place, _), cell in self.cells.items() if place == size]

    def of(self, family: str) -> list[Cell]:
        """The sizes of a family at which it has a sound result, in the order of the grid."""
        return [cell for (_, name), cell in self.cells.items() if name == family and cell.sound]

    def best_depths(self, family: str) -> list[Cell]:
        """The sizes of a family, of those that share a budget the one with the lowest loss."""
        best: dict[float, Cell] = {}
        for cell in sorted(self.of(family), key=lambda cell: cell.mean("val_bpb")):
            best.setdefault(self.grid.sizes[cell.size].budget, cell)
        return [best[budget] for budget in sorted(best)]

    @property
    def used(self) -> list[dict]:
        """All results that stand in the tables."""
        return [row for cell in self.cells.values() for row in cell.rows]

    def edges(self) -> list[str]:
        """A line for each chosen rate that is the smallest or largest of those tried: a better one may lie beyond."""
        lines = []
        for search in self.searches.values():
            for stage, trials in search.stages:
                numbers = [value for value in stage.values if isinstance(value, int | float)]
                losses = [row and row["val_bpb"] for _, row in trials]
                sound = [(loss, i) for i, loss in enumerate(losses) if loss is not None]
                if len(numbers) < 2 or not sound or any(row is None for _, row in trials):
                    continue
                best = stage.values[min(sound)[1]]
                if best in (min(numbers), max(numbers)):
                    lines.append(f"{search.family}: the best {stage.setting}, {best}, is at the edge of those tried")
        return lines
