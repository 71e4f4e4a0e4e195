"""The rows of a study at the best learning rates, with means, paired differences and intervals over seeds."""

import pandas as pd

from nanogka.common.formatting import MISSING
from nanogka.evaluate.intervals import student_quantile
from nanogka.model import model_costs
from nanogka.study.grid import Grid, Job
from nanogka.study.plan import Results, Trials, best_trial, try_rates


class Summary:
    """A grid and its rows: for each family and size, the rows with the best learning rate."""

    def __init__(self, grid: Grid, results: Results) -> None:
        self.grid, self.protocol = grid, results.protocol
        self.trials: dict[tuple[str, str], Trials] = {}
        self.missing = 0  # runs without a result, of families and sizes that have some
        rows = []
        for size, at in grid.sizes.items():
            for name in (name for name, family in grid.families.items() if size in family.sizes):
                trials = self.trials[size, name] = try_rates(grid, name, size, results.find)
                rate = grid.rates(name, size)[best_trial(trials) or 0]
                jobs = [grid.job(name, size, seed, rate) for seed in at.seeds]
                found = [self._row(job, row) for job in jobs if (row := results.find(job.decisive))]
                self.missing += len(jobs) - len(found) if found else 0
                rows += found
        if not any(row["val_bpb"] is not None for row in rows):
            raise ValueError(f"report: got {len(results.rows)} results, none for a table of this grid; run it first")
        self.frame = pd.DataFrame(rows).astype({"val_bpb": float, "confirm_bpb": float})
        self.sound = self.frame[self.frame["val_bpb"].notna()]  # the rows with a loss

    def _row(self, job: Job, row: dict) -> dict:
        """A row of results under the names of this grid, and what a person `edited` after the measurement."""
        names = {"family": job.family, "size": job.size, "seed": job.seed}
        ratio = {"tokens_per_parameter": row["tokens"] / scaling_parameters(job, row["parameters"])}
        return {"edited": ""} | row | names | ratio | {"label": self.grid.families[job.family].label}

    @property
    def sizes(self) -> dict[str, str]:
        """Sizes with rows and their headings, in the order of the grid."""
        return {size: f"{size}: depth {self.grid.sizes[size].depth}" for size in self.frame["size"].unique()}

    def compare(self, size: str, name: str) -> pd.DataFrame:
        """Return per family mean and half 95 % interval of a loss and of its `gap` to the reference, paired by seed."""
        table = self.sound[self.sound["size"] == size].pivot(index="seed", columns="family", values=name)
        # The order of the text moves both losses of a seed alike. Their difference varies less than either.
        gaps = table.sub(table.get(self.grid.reference, float("nan")), axis=0)
        columns = {"mean": table.mean(), "interval": half_interval(table)}
        return pd.DataFrame(columns | {"gap": gaps.mean(), "gap_interval": half_interval(gaps)})


def half_interval(table: pd.DataFrame) -> pd.Series:
    """Return half the width of the 95 % t interval of each column's mean. NaN for fewer than two seeds.

    Two seeds need 12.7 standard errors, not 2.
    """
    quantiles = {seeds: student_quantile(seeds - 1) for seeds in table.count() if seeds > 1}
    return table.sem() * table.count().map(quantiles)


def scaling_parameters(job: Job, parameters: int) -> float:
    """Return the number of matrix and lm_head parameters of a job's model, given its total number of `parameters`.

    A row does not record the vocabulary size. Both counts are linear in it, so two sizes determine the result.
    """
    small, large = (model_costs(job.settings.config(vocab_size)) for vocab_size in (256, 512))
    share = (parameters - small.total_parameters) / (large.total_parameters - small.total_parameters)
    return small.scaling_parameters + share * (large.scaling_parameters - small.scaling_parameters)


def plus_minus(value: float | None, error: float | None, sign: str = "") -> str:
    """Format `value ± error` with four decimals, or only `value` without an error."""
    if pd.isna(value):
        return MISSING
    return f"{value:{sign}.4f}" + ("" if pd.isna(error) else f" ± {error:.4f}")
