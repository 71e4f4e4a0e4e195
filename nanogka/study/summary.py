"""The rows of a study at the best learning rates, with means, paired differences and their intervals.

An interval over seeds covers the choice of the seed, one over documents the choice of the validation text. Rows of
earlier versions have no sums of documents, so differences with one of them have no interval over documents.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from nanogka.common.formatting import MISSING
from nanogka.evaluate.intervals import bits_per_byte_interval, student_quantile
from nanogka.model import model_costs
from nanogka.study.grid import Grid, Job
from nanogka.study.plan import Results, Trials, best_trial, try_rates

# Losses and, for each, the nats and bytes of the measured documents.
LOSSES = {"val_bpb": "val_documents", "confirm_bpb": "confirm_documents"}
OVER_DOCUMENTS = "± over documents"  # heading of a column


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
        sums = {name: _as_array(row.get(name)) for name in LOSSES.values()}
        return {"edited": ""} | row | names | ratio | sums | {"label": self.grid.families[job.family].label}

    @property
    def sizes(self) -> dict[str, str]:
        """Sizes with rows and their headings, in the order of the grid."""
        return {size: f"{size}: depth {self.grid.sizes[size].depth}" for size in self.frame["size"].unique()}

    def compare(self, size: str, name: str) -> pd.DataFrame:
        """Return per family mean and half 95 % interval of a loss and of its `gap` to the reference, paired by seed."""
        part = self.sound[self.sound["size"] == size]
        table, sums = (part.pivot(index="seed", columns="family", values=column) for column in (name, LOSSES[name]))
        # The order of the text moves both losses of a seed alike. Their difference varies less than either.
        gaps = table.sub(table.get(self.grid.reference, float("nan")), axis=0)
        over_documents, reference = {}, self.grid.reference
        for family in table.columns.drop(reference) if reference in table else ():
            paired = sums.loc[gaps[family].notna(), [family, reference]]
            differences = [combine_documents(pair, (1, -1)) for pair in paired.to_numpy()]
            over_documents[family] = half_interval_over_documents(differences)
        columns = {"mean": table.mean(), "interval": half_interval(table)}
        columns |= {"gap": gaps.mean(), "gap_interval": half_interval(gaps)}
        return pd.DataFrame(columns | {"over_documents": pd.Series(over_documents, dtype=float)})


def half_interval(table: pd.DataFrame) -> pd.Series:
    """Return half the width of the 95 % t interval of each column's mean. NaN for fewer than two seeds.

    Two seeds need 12.7 standard errors, not 2.
    """
    quantiles = {seeds: student_quantile(seeds - 1) for seeds in table.count() if seeds > 1}
    return table.sem() * table.count().map(quantiles)


def combine_documents(parts: Sequence[np.ndarray | float], weights: Sequence[float]) -> np.ndarray | float:
    """Return Σ weight · nats of the same documents, and their bytes: an array of the shape of each part.

    Bits per byte are linear in the nats of the same documents. So the sums of a difference, of a mean over seeds and of
    a loss between two runs are such combinations. NaN if a row has no sums, or if the documents differ.
    """
    known = [part for part in parts if isinstance(part, np.ndarray)]
    if len(known) < len(parts) or not all(np.array_equal(part[:, 1], known[0][:, 1]) for part in known):
        return math.nan
    nats = np.sum([weight * part[:, 0] for part, weight in zip(known, weights)], axis=0)
    return np.column_stack([nats, known[0][:, 1]])


def half_interval_over_documents(differences: Sequence[np.ndarray | float]) -> float:
    """Return half the width of the 95 % interval, over documents, of the mean of some paired differences.

    Each has the sums of a difference, by `combine_documents`. NaN for none.
    """
    seeds = len(differences)
    mean = combine_documents(differences, [1 / seeds] * seeds) if seeds else math.nan
    return bits_per_byte_interval(mean.tolist()).half if isinstance(mean, np.ndarray) else math.nan


def _as_array(sums: dict | None) -> np.ndarray | float:
    """Return nats and bytes with shape (groups of documents, 2), or NaN if the row has none."""
    return np.column_stack([sums["nats"], sums["bytes"]]).astype(float) if sums else math.nan


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


def half_width(error: float | None) -> str:
    """Format `± error` with four decimals."""
    return MISSING if pd.isna(error) else f"± {error:.4f}"
