"""The report of a study: tables in Markdown and plots, from the grid and the results file alone."""

import os
from collections import Counter
from pathlib import Path

import pandas as pd

from nanogka.formatting import MISSING, byte_size, code_span, markdown_table, number, scientific
from nanogka.study.figures import plot_bandwidth, plot_budgets, plot_costs, plot_curves
from nanogka.study.grid import Grid
from nanogka.study.plan import best_trial
from nanogka.study.results import Results
from nanogka.study.summary import Summary

COLUMNS = ["family", "parameters", "FLOPs / token", "tokens", "training FLOPs", "seeds", "val bits / byte"]
SPEEDS = ["tokens / s", "cache B / token"]


def write_report(grid: Grid, results: Results, path: Path) -> list[Path]:
    """Write the report to `path` and its plots to the folder of that name without its suffix; returns all paths.

    Raises:
        ValueError: if there is no result that the grid asks for.
    """
    summary = Summary(grid, results)
    if summary.sound.empty:
        raise ValueError(f"--report: got {len(results.rows)} results, none for a table of this grid; run it first")
    folder = path.with_suffix("")
    plots = {
        "Bits per byte against what a model costs": plot_costs(summary, folder / "costs.png"),
        "Depths that share a budget": plot_budgets(summary, folder / "budgets.png"),
        "Validation during training": plot_curves(summary, folder / "curves.png"),
        "Bandwidth by layer": plot_bandwidth(summary, folder / "bandwidth.png"),
    }
    made = {title: plot for title, plot in plots.items() if plot is not None}
    sections = [f"# Study {code_span(grid.name)}", describe_setup(summary, results.others)]
    for size in summary.sizes:
        sections += [f"## {size}: depth {grid.sizes[size].depth}", size_table(summary, size)]
    images = [f"![{title}]({os.path.relpath(plot, path.parent)})" for title, plot in made.items()]
    sections += [*sweep_section(summary), "## Plots", *images]
    path.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return [path, *made.values()]


def describe_setup(summary: Summary, others: int) -> str:
    """A paragraph on the study: its protocol, and how to read the tables. `others`: results of another protocol."""
    grid, used, most = summary.grid, summary.frame, summary.protocol.get("measure_tokens")
    machines = Counter(f"{row.hardware}, {row.dtype}, torch {row.torch}" for row in used.itertuples())
    where = "; ".join(f"{machine} ({runs} runs)" for machine, runs in machines.most_common())
    part = f"the first {most:,} tokens of the" if most else "the whole"
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
    if others:
        lines.append(f"{others} results of another corpus, tokenizer or measurement are left out.")
    if summary.missing:
        lines.append(f"{summary.missing} runs of these tables are missing.")
    if diverged := len(used) - len(summary.sound):
        lines.append(f"{diverged} runs diverged and are in no mean.")
    return "\n\n".join(lines)


def size_table(summary: Summary, size: str) -> str:
    """The table of one size."""
    part = summary.frame[summary.frame["size"] == size]
    names = ["val_bpb", "confirm_bpb"] if part["confirm_bpb"].notna().any() else ["val_bpb"]
    compared = {name: summary.compare(size, name) for name in names}
    header = [*COLUMNS, "difference", *(["confirm", "difference"] if len(names) > 1 else []), *SPEEDS]
    rows = []
    for family in (family for family in summary.families if family.name in set(part["family"])):
        mine = part[part["family"] == family.name].sort_values("val_bpb", na_position="last")
        sound, facts = mine[mine["val_bpb"].notna()], mine.iloc[0]
        row = [family.label, number(int(facts["parameters"])), f"{facts['flops_per_token']:.4g}"]
        row += [number(int(facts["tokens"])), scientific(facts["flops"]), str(len(sound))]
        for table in compared.values():
            values = table.loc[family.name] if len(sound) else {}
            row.append(plus_minus(values.get("mean"), values.get("std")))
            own = family.name == summary.grid.reference
            row.append(MISSING if own else plus_minus(values.get("gap"), values.get("error"), sign="+"))
        speed = sound["tokens_per_second"].mean()
        row += [MISSING if pd.isna(speed) else f"{speed:,.0f}", byte_size(int(facts["cache_bytes_per_token"]))]
        rows.append(row)
    return markdown_table(header, rows)


def plus_minus(value: float | None, error: float | None, sign: str = "") -> str:
    """A value and its ±, a dash if there is none."""
    if pd.isna(value):
        return MISSING
    return f"{value:{sign}.4f}" + ("" if pd.isna(error) else f" ± {error:.4f}")


def sweep_section(summary: Summary) -> list[str]:
    """All rates tried, the chosen ones in bold, and a warning for each at the edge; empty without a sweep."""
    grid, rows, warnings = summary.grid, [], []
    for search in summary.searches.values():
        for stage, trials in search.stages:
            best, tried = best_trial(trials), []
            for i, (job, row) in enumerate(trials):
                loss = MISSING if row is None else "diverged" if row["val_bpb"] is None else f"{row['val_bpb']:.4f}"
                value = job.swept[stage.setting]
                tried.append(f"**{value}: {loss}**" if i == best else f"{value}: {loss}")
            rows.append([grid.families[search.family].label, stage.setting, " · ".join(tried)])
            values = [job.swept[stage.setting] for job, _ in trials]
            ordered = len(values) > 1 and all(isinstance(value, int | float) for value in values)
            if best is not None and ordered and values[best] in (min(values), max(values)):
                at = f"{search.family}: the best {stage.setting}, {values[best]}"
                warnings.append(f"* {at}, is at the edge of those tried: a better one may lie beyond.")
    if not rows:
        return []
    carried = [
        f"{family.label} takes the rates of {grid.families[family.sweep_as].label}."
        for family in grid.families.values()
        if family.sweep_as != family.name
    ]
    text = (
        f"At size {grid.sweep.size} with seed {grid.sweep.seed}, one stage after the other: the value with the lowest "
        "validation bits per byte (bold) is kept for the next stage and for all other runs of the family. The rates "
        "were so chosen on the split that the tables report; `confirm` had no part in it."
    )
    table = markdown_table(["family", "setting", "values tried and bits per byte"], rows, left=3)
    return ["## Learning rates", " ".join([text, *carried]), table, *(["\n".join(warnings)] if warnings else [])]
