"""The results of a study as a table of pandas: each family at each size with each seed, and the sweep's choices."""

import pandas as pd

from nanogka.study.grid import Family, Grid
from nanogka.study.plan import Search, search_rates
from nanogka.study.results import Results

NUMBERS = ["val_bpb", "flops", "seconds", "parameters", "cache_bytes_per_token"]


class Summary:
    """A grid with its results; a result that the grid does not ask for is left out.

    Attributes:
        searches: the sweep of each family that has one of its own.
        frame: one row per result in the tables; `family`, `size`, `seed` and `budget` are the grid's.
        missing: how many results the tables lack, of families and sizes that have one.
    """

    def __init__(self, grid: Grid, results: Results) -> None:
        self.grid, self.protocol = grid, results.protocol
        sources = dict.fromkeys(family.sweep_as for family in grid.families.values())
        self.searches: dict[str, Search] = {name: search_rates(grid, name, results.find) for name in sources}
        rows, self.missing = [], 0
        for size, at in grid.sizes.items():
            for name, family in grid.families.items():
                chosen = self.searches[family.sweep_as].chosen
                if size not in family.sizes or chosen is None:
                    continue
                found = [(seed, results.find(grid.job(name, size, seed, chosen).decisive)) for seed in at.seeds]
                place = {"family": name, "size": size, "budget": at.amount}
                cell = [row | place | {"seed": seed} for seed, row in found if row]
                self.missing += len(at.seeds) - len(cell) if cell else 0
                rows += cell
        self.frame = pd.DataFrame(rows, columns=None if rows else ["family", "size", *NUMBERS])
        self.frame = self.frame.astype({name: float for name in ("val_bpb", "confirm_bpb") if name in self.frame})

    @property
    def sound(self) -> pd.DataFrame:
        """The results that did not diverge."""
        return self.frame[self.frame["val_bpb"].notna()]

    @property
    def sizes(self) -> list[str]:
        """The sizes with a result."""
        return list(self.frame["size"].unique())

    @property
    def families(self) -> list[Family]:
        """The families with a result, in the order of the grid."""
        return [family for name, family in self.grid.families.items() if name in set(self.frame["family"])]

    def compare(self, size: str, name: str) -> pd.DataFrame:
        """Of each family at a size the `mean` and `std` of a number, and the mean and standard error of its `gap`.

        Runs of one seed see the same documents in the same order, so gaps to the reference are taken seed by seed.
        """
        table = self.sound[self.sound["size"] == size].pivot(index="seed", columns="family", values=name)
        gaps = table.sub(table.get(self.grid.reference, float("nan")), axis=0)
        return pd.DataFrame({"mean": table.mean(), "std": table.std(), "gap": gaps.mean(), "error": gaps.sem()})


def mean_over_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """`NUMBERS` of each family at each size; `spread`: the standard deviation of `val_bpb`, 0 for one seed."""
    groups = rows.groupby(["family", "size", "budget"], sort=False)
    return groups[NUMBERS].mean().assign(spread=groups["val_bpb"].std().fillna(0)).reset_index()


def best_depths(means: pd.DataFrame) -> pd.DataFrame:
    """Of each family's sizes that share a budget the one with the lowest loss, in the order of budgets."""
    return means.sort_values("val_bpb").drop_duplicates(["family", "budget"]).sort_values("budget")
