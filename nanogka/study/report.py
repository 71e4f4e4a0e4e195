"""The report of a study: tables in Markdown and plots, from the grid and the results file alone."""

import os
from collections import Counter
from itertools import pairwise
from pathlib import Path

from nanogka.formatting import MISSING, byte_size, code_span, markdown_table, number, scientific
from nanogka.study.figures import plot_bandwidth, plot_budgets, plot_costs, plot_curves, plot_scaling
from nanogka.study.fit import Scaling, fit_scaling
from nanogka.study.grid import Grid
from nanogka.study.summary import Cell, Summary

COLUMNS = ["family", "parameters", "FLOPs / token", "tokens", "training FLOPs", "seeds", "val bits / byte"]
SPEEDS = ["tokens / s", "cache B / token"]


def write_report(grid: Grid, rows: list[dict], path: Path) -> list[Path]:
    """Write the report to `path` and its plots to the folder of that name without its suffix; returns all paths.

    Raises:
        ValueError: if there is no result that the grid asks for.
    """
    summary = Summary(grid, rows)
    if not any(cell.sound for cell in summary.cells.values()):
        raise ValueError(f"--report: got {len(rows)} results, none of them for a table of this grid; run it first")
    laws = fit_families(summary)
    folder = path.with_suffix("")
    plots = [
        ("Bits per byte against training FLOPs", plot_scaling(summary, laws, folder / "scaling.png")),
        ("Bits per byte against seconds, parameters and cache", plot_costs(summary, folder / "costs.png")),
        ("Depths that share a budget", plot_budgets(summary, folder / "budgets.png")),
        ("Validation during training", plot_curves(summary, folder / "curves.png")),
        ("Bandwidth by layer", plot_bandwidth(summary, folder / "bandwidth.png")),
    ]
    made = [(title, plot) for title, plot in plots if plot is not None]
    images = [f"![{title}]({os.path.relpath(plot, path.parent)})" for title, plot in made]
    sections = [f"# Study {code_span(grid.name)}", describe_setup(summary)]
    for size in summary.sizes:
        sections += [f"## {size}: depth {grid.sizes[size].depth}", size_table(summary, size)]
    sections += [*scaling_section(laws, summary), *sweep_section(summary), "## Plots", *images]
    path.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return [path, *(plot for _, plot in made)]


def fit_families(summary: Summary) -> dict[str, Scaling]:
    """The law of every family that has results at two budgets or more, and gets better with each."""
    laws = {}
    for family in summary.families:
        losses = {cell.mean("flops"): cell.values("val_bpb") for cell in summary.best_depths(family.name)}
        if len(losses) > 1 and falls(summary, family.name):
            laws[family.name] = fit_scaling(losses)
    return laws


def falls(summary: Summary, family: str) -> bool:
    """Whether the mean loss of a family falls from each budget to the next: otherwise no law describes it."""
    means = [cell.mean("val_bpb") for cell in sorted(summary.best_depths(family), key=lambda cell: cell.mean("flops"))]
    return all(after < before for before, after in pairwise(means))


def describe_setup(summary: Summary) -> str:
    """A paragraph on the study: its protocol, and how to read the tables."""
    grid, used = summary.grid, summary.used
    machines = Counter(f"{row['hardware']}, {row['dtype']}, torch {row['torch']}" for row in used)
    where = "; ".join(f"{machine} ({runs} runs)" for machine, runs in machines.most_common())
    part = f"the first {grid.measure_tokens:,} tokens of the" if grid.measure_tokens else "the whole"
    lines = [
        f"{len(used)} runs. Sizes are matched in {'training FLOPs' if grid.match == 'flops' else 'tokens'}; steps are "
        f"whole, so the tables have the FLOPs that were really spent. Bits per byte are of {part} validation split, "
        "`confirm` of that of a second corpus, by which nothing was chosen. ± is the sample standard deviation over "
        "the seeds (n − 1), and behind a difference the standard error of its mean: differences are to "
        f"{code_span(grid.families[grid.reference].label)}, seed by seed, since runs of one seed see the same text in "
        "the same order; below 0 is better than it.",
        f"Runs were made on: {where}. Tokens per second are medians over steps; jobs that ran side by side share the "
        "machine.",
    ]
    if len({(row["corpus"], row["tokenizer"]) for row in used}) > 1:
        lines.append("**The results are of more than one corpus or tokenizer: they do not compare.**")
    absent = sum(cell.missing for cell in summary.cells.values())
    diverged = sum(row["val_bpb"] is None for row in used)
    if absent:
        lines.append(f"{absent} runs of these tables are missing.")
    if diverged:
        lines.append(f"{diverged} runs diverged and are in no mean.")
    return "\n\n".join(lines)


def size_table(summary: Summary, size: str) -> str:
    """The table of one size."""
    cells = summary.at(size)
    reference = summary.cells.get((size, summary.grid.reference))
    confirmed = any(cell.values("confirm_bpb") for cell in cells)
    header = [*COLUMNS, "difference", *(["confirm", "difference"] if confirmed else []), *SPEEDS]
    rows = []
    for cell in cells:
        facts = (cell.sound or cell.rows)[0]
        row = [cell.family.label, number(facts["parameters"]), f"{facts['flops_per_token']:.4g}"]
        row += [number(facts["tokens"]), scientific(facts["flops"]), str(len(cell.sound))]
        for name in ("val_bpb", "confirm_bpb") if confirmed else ("val_bpb",):
            row += [plus_minus(cell.mean(name), cell.spread(name)), describe_difference(cell, reference, name)]
        speed = cell.mean("tokens_per_second")
        row += [MISSING if speed is None else f"{speed:,.0f}", byte_size(facts["cache_bytes_per_token"])]
        rows.append(row)
    return markdown_table(header, rows)


def plus_minus(value: float | None, error: float | None, sign: str = "") -> str:
    """A value and its ±, a dash for None."""
    if value is None:
        return MISSING
    return f"{value:{sign}.4f}" + (f" ± {error:.4f}" if error is not None else "")


def describe_difference(cell: Cell, reference: Cell | None, name: str) -> str:
    """The difference of a cell to the reference family, with its standard error."""
    if reference is None or cell is reference:
        return MISSING
    found = cell.difference(reference, name)
    return MISSING if found is None else plus_minus(*found, sign="+")


def scaling_section(laws: dict[str, Scaling], summary: Summary) -> list[str]:
    """The laws as a table; empty where no family has two budgets."""
    others = [family.label for family in summary.families if not falls(summary, family.name)]
    without = [f"No law for {'; '.join(others)}: more FLOPs did not make them better at every budget."] * bool(others)
    if not laws:
        return ["## Scaling laws", *without] if without else []
    rows = []
    for name, scaling in laws.items():
        law = scaling.law
        cells = [summary.grid.families[name].label, str(len(summary.best_depths(name)))]
        for parameter, digits in (("floor", 3), ("factor", 3), ("exponent", 4)):
            interval = scaling.interval(parameter)
            between = "" if interval is None else f" ({interval[0]:.{digits}f} to {interval[1]:.{digits}f})"
            cells.append(f"{getattr(law, parameter):.{digits}f}{between}")
        rows.append([*cells, scientific(law.unit)])
    text = (
        "L = E + A · (C / C₀)^−α through the means at each budget (of depths that share one, the best), by least "
        "squares of the relative error; with two budgets E is 0. In brackets the 5th and 95th percentile of fits to "
        "resampled means, whose spread is that of the seeds, pooled over the budgets. Three budgets fit three "
        "parameters exactly: such a law describes, and predicts little."
    )
    return ["## Scaling laws", text, markdown_table(["family", "budgets", "E", "A", "α", "C₀"], rows), *without]


def sweep_section(summary: Summary) -> list[str]:
    """All rates tried, the chosen ones in bold, and a warning for each at the edge; empty without a sweep."""
    grid, rows = summary.grid, []
    for search in summary.searches.values():
        for stage, trials in search.stages:
            losses = {i: row["val_bpb"] for i, (_, row) in enumerate(trials) if row and row["val_bpb"] is not None}
            complete = all(row is not None for _, row in trials)
            best = min(losses, key=losses.get) if losses and complete else None
            tried = []
            for i, (value, (_, row)) in enumerate(zip(stage.values, trials)):
                loss = f"{losses[i]:.4f}" if i in losses else ("diverged" if row else MISSING)
                tried.append(f"**{value}: {loss}**" if i == best else f"{value}: {loss}")
            rows.append([grid.families[search.family].label, stage.setting, " · ".join(tried)])
    if not rows:
        return []
    carried = [
        f"{f.label} takes the rates of {grid.families[f.sweep_as].label}."
        for f in grid.families.values()
        if f.sweep_as != f.name
    ]
    text = (
        f"At size {grid.sweep_size} with seed {grid.sweep_seed}, one stage after the other: the value with the lowest "
        "validation bits per byte (bold) is kept for the next stage and for all other runs of the family. The rates "
        "were so chosen on the split that the tables report; `confirm` had no part in it."
    )
    warnings = "\n".join(f"* {line}: a better one may lie beyond." for line in summary.edges())
    table = markdown_table(["family", "setting", "values tried and bits per byte"], rows, left=3)
    return ["## Learning rates", " ".join([text, *carried]), table, *([warnings] if warnings else [])]
