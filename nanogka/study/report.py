"""Report on a study, computed from the grid and the results file: Markdown tables and figures."""

import os
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex

from nanogka.common.formatting import MISSING, byte_size, code_span, markdown_table, number, scientific
from nanogka.model import model_costs
from nanogka.plots.style import COLORS, STYLE, cost_axis, label_ends, new_figure, save
from nanogka.study.grid import Family, Grid, Job
from nanogka.study.plan import Results, Trials, best_trial, try_rates

try:
    import pandas as pd
    import seaborn
except ImportError as error:
    raise ValueError('the report of a study needs pandas and seaborn: pip install "nanogka[study]"') from error

# 97.5 % quantiles of Student's t for 2, 3, … seeds: two seeds need 12.7 standard errors for a 95 % interval, not 2.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
COLUMNS = ["family", "parameters", "FLOPs / token", "tokens", "tokens / parameter", "training FLOPs", "seeds"]
SPEEDS = ["tokens / s", "cache B / token"]
EDITED = ("edited", "copied_from")  # texts added to a row by hand, see `Row`


class Summary:
    """A grid and its rows: for each family and size, the rows with the best learning rate."""

    def __init__(self, grid: Grid, results: Results) -> None:
        self.grid, self.protocol = grid, results.protocol
        self.trials: dict[tuple[str, str], Trials] = {}
        rows, self.missing = [], 0
        for size, at in grid.sizes.items():
            for name in (name for name, family in grid.families.items() if size in family.sizes):
                trials = self.trials[size, name] = try_rates(grid, name, size, results.find)
                rate = grid.rates(name, size)[best_trial(trials) or 0]
                jobs = [grid.job(name, size, seed, rate) for seed in at.seeds]
                cell = [self._row(job, row) for job in jobs if (row := results.find(job.decisive))]
                if cell:
                    size_of_model = scaling_parameters(jobs[0], cell[0]["parameters"])
                    cell = [row | {"tokens_per_parameter": row["tokens"] / size_of_model} for row in cell]
                self.missing += len(jobs) - len(cell) if cell else 0
                rows += cell
        self.frame = pd.DataFrame(rows, columns=None if rows else ["family", "size", "val_bpb", *EDITED])
        self.frame = self.frame.astype({name: float for name in ("val_bpb", "confirm_bpb") if name in self.frame})

    def _row(self, job: Job, row: dict) -> dict:
        names = {"family": job.family, "size": job.size, "seed": job.seed}
        return dict.fromkeys(EDITED, "") | row | names | {"label": self.grid.families[job.family].label}

    @cached_property
    def sound(self) -> pd.DataFrame:
        """Rows with a loss."""
        return self.frame[self.frame["val_bpb"].notna()]

    @property
    def sizes(self) -> list[str]:
        """Sizes with rows, in the order of the grid."""
        return list(self.frame["size"].unique())

    @property
    def families(self) -> list[Family]:
        """Families with rows, in the order of the grid."""
        return [family for name, family in self.grid.families.items() if name in set(self.frame["family"])]

    def compare(self, size: str, name: str) -> pd.DataFrame:
        """Return per family mean and half 95 % interval of a loss and of its `gap` to the reference, paired by seed."""
        table = self.sound[self.sound["size"] == size].pivot(index="seed", columns="family", values=name)
        gaps = table.sub(table.get(self.grid.reference, float("nan")), axis=0)
        columns = {"mean": table.mean(), "interval": half_interval(table)}
        return pd.DataFrame(columns | {"gap": gaps.mean(), "gap_interval": half_interval(gaps)})


def half_interval(table: pd.DataFrame) -> pd.Series:
    """Return half the width of the 95 % t interval of each column's mean. NaN for fewer than two seeds."""
    return table.sem() * table.count().map(dict(enumerate(T95, 2)))


def scaling_parameters(job: Job, parameters: int) -> float:
    """Return the number of matrix and lm_head parameters of a job's model, given its total number of `parameters`.

    A row does not record the vocabulary size. Both counts are linear in it, so two sizes determine the result.
    """
    small, large = (model_costs(job.settings.config(vocab_size)) for vocab_size in (256, 512))
    share = (parameters - small.total_parameters) / (large.total_parameters - small.total_parameters)
    return small.scaling_parameters + share * (large.scaling_parameters - small.scaling_parameters)


def labels(rows: pd.DataFrame) -> str:
    """List the families of some rows for a sentence. Labels may contain commas."""
    return "; ".join(dict.fromkeys(rows["label"]))


# ---- text ----


def write_report(grid: Grid, results: Results, path: Path) -> list[Path]:
    """Write the report to `path` and its figures to the folder of that name. Returns all paths."""
    summary = Summary(grid, results)
    if summary.sound.empty:
        raise ValueError(f"--report: got {len(results.rows)} results, none for a table of this grid; run it first")
    folder = path.with_suffix("")
    path.parent.mkdir(parents=True, exist_ok=True)
    sections = [f"# Study {code_span(grid.name)}", *describe_setup(summary, results.others)]
    for size in summary.sizes:
        sections += [f"## {size}: depth {grid.sizes[size].depth}", size_table(summary, size)]
    sections += rates_section(summary)
    figures = {
        "Bits per byte by size": plot_sizes(summary, folder / "sizes.png"),
        "Bits per byte against training FLOPs": plot_lines(summary, "flops", folder / "flops.png"),
        "Bits per byte against tokens per parameter": plot_lines(
            summary, "tokens_per_parameter", folder / "tokens_per_parameter.png"
        ),
        "Validation during training": plot_curves(summary, folder / "curves.png"),
    }
    made = {title: figure for title, figure in figures.items() if figure}
    sections += ["## Figures", *(f"![{title}]({os.path.relpath(at, path.parent)})" for title, at in made.items())]
    path.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return [path, *made.values()]


def describe_setup(summary: Summary, others: int) -> list[str]:
    """Explain the protocol and how to read the tables. `others`: number of results of another protocol."""
    grid, used, most = summary.grid, summary.frame, summary.protocol.get("measure_tokens")
    machines = Counter(f"{row.hardware}, {row.dtype}, torch {row.torch}" for row in used.itertuples())
    where = "; ".join(f"{machine} ({runs} runs)" for machine, runs in machines.most_common())
    part = f"the first {most:,} tokens of the" if most else "the whole"
    lines = [
        f"{len(used)} runs. Sizes are matched in {'training FLOPs' if grid.match == 'flops' else 'tokens'}. The tables "
        f"show the FLOPs spent in whole steps, and tokens per parameter of matrices and head. Bits per byte are of "
        f"{part} validation split ({grid.val_name}), and of that of a second corpus ({grid.confirm_name}). Differences "
        f"are to {code_span(grid.families[grid.reference].label)}, paired by seed, because runs of one seed read the "
        "same text in the same order. Negative differences are better. ± is half the width of the 95 % interval of the "
        "mean over the seeds (t distribution), so it is wide for two seeds. A number without ± comes from one seed.",
        f"Machines: {where}. Tokens per second are medians over steps. Jobs that ran in parallel shared the machine.",
    ]
    for what, rows in used[used["edited"] != ""].groupby("edited"):
        sources = sorted({source.partition(",")[0] for source in rows["copied_from"] if source})
        origin = f" copied from {' and '.join(sources)} and" if sources else ""
        lines.append(f"{len(rows)} rows were{origin} edited by hand ({what}): {labels(rows)}.")
    if others:
        lines.append(f"{others} results with another corpus, tokenizer or measurement were left out.")
    if summary.missing:
        lines.append(f"{summary.missing} planned runs of these tables have not been done.")
    if diverged := len(used) - len(summary.sound):
        lines.append(f"{diverged} runs diverged and are excluded from all means.")
    return lines


def size_table(summary: Summary, size: str) -> str:
    """Build one row per family with costs, both losses, their differences to the reference, and speed."""
    part = summary.frame[summary.frame["size"] == size]
    titles = {"val_bpb": summary.grid.val_name}
    if part["confirm_bpb"].notna().any():
        titles["confirm_bpb"] = summary.grid.confirm_name
    compared = {name: summary.compare(size, name) for name in titles}
    rows = []
    for family in (family for family in summary.families if family.name in set(part["family"])):
        mine = part[part["family"] == family.name].sort_values("val_bpb", na_position="last")
        sound, facts = mine[mine["val_bpb"].notna()], mine.iloc[0]
        row = [family.label, number(int(facts["parameters"])), scientific(facts["flops_per_token"])]
        row += [number(int(facts["tokens"])), number(facts["tokens_per_parameter"], 2), scientific(facts["flops"])]
        row.append(str(len(sound)))
        for table in compared.values():
            values = table.loc[family.name] if len(sound) else {}
            row.append(plus_minus(values.get("mean"), values.get("interval")))
            own = family.name == summary.grid.reference
            row.append(MISSING if own else plus_minus(values.get("gap"), values.get("gap_interval"), sign="+"))
        speed = sound["tokens_per_second"].mean()
        row += [MISSING if pd.isna(speed) else f"{speed:,.0f}", byte_size(int(facts["cache_bytes_per_token"]))]
        rows.append(row)
    losses = [column for title in titles.values() for column in (title, "difference")]
    return markdown_table([*COLUMNS, *losses, *SPEEDS], rows)


def plus_minus(value: float | None, error: float | None, sign: str = "") -> str:
    """Format `value ± error` with four decimals, or only `value` without an error."""
    if pd.isna(value):
        return MISSING
    return f"{value:{sign}.4f}" + ("" if pd.isna(error) else f" ± {error:.4f}")


def rates_section(summary: Summary) -> list[str]:
    """List the learning rates tried, with the best in bold, and whether it is bracketed. Empty without trials."""
    rows = []
    for (size, name), trials in summary.trials.items():
        tried = {job.rate: row["val_bpb"] for job, row in trials if row}
        if not tried or not summary.grid.sizes[size].lr_scale:
            continue
        best = trials[best_trial(trials)][0].rate
        texts = {rate: f"{rate}: " + ("diverged" if loss is None else f"{loss:.4f}") for rate, loss in tried.items()}
        texts[best] = f"**{texts[best]}**"
        ordered = sorted(tried, key=float) if len(tried) > 1 else []
        edges = {ordered[0]: "no: lowest", ordered[-1]: "no: highest"} if ordered else {best: "no: the only one"}
        rows.append([size, summary.grid.families[name].label, " · ".join(texts.values()), edges.get(best, "yes")])
    val, confirm = summary.grid.val_name, summary.grid.confirm_name
    copied = summary.frame[summary.frame["copied_from"] != ""]
    exception = f" Exceptions are families with copied rows ({labels(copied)}), whose rates were chosen on {confirm}."
    text = (
        f"Rates were tried with the first seed. The one with the lowest bits per byte on {val} (bold) is used for the "
        f"other seeds. The choice did not use {confirm}.{exception * bool(len(copied))} A best rate at the edge of "
        "the range is not bracketed: a better one may exist outside the range."
    )
    table = markdown_table(["size", "family", f"lr_scale and bits per byte on {val}", "bracketed"], rows, left=4)
    return ["## Learning rates", text, table] if rows else []


# ---- figures ----


def family_colors(families: Iterable[Family]) -> dict[str, str]:
    """Return {label: color}: the family's own color, or a color that no family names."""
    families = list(families)
    given = {family.label: family.color for family in families if family.color}
    others = [family.label for family in families if not family.color]
    spare = [color for color in COLORS if color not in given.values()]
    if len(others) > len(spare):
        spare = list(map(to_hex, mpl.colormaps["turbo"](np.linspace(0, 1, len(others)))))
    return given | dict(zip(others, spare))


@mpl.rc_context(STYLE)
def plot_sizes(summary: Summary, path: Path) -> Path:
    """Draw one panel per size, with the families sorted by their mean, a dot per seed and a line at the mean."""
    colors = family_colors(summary.grid.families.values())
    counts = [summary.sound.loc[summary.sound["size"] == size, "family"].nunique() for size in summary.sizes]
    figure = new_figure(8, 1 + sum(0.34 * families + 0.8 for families in counts), headline(summary), "a dot per seed")
    panels = figure.subplots(len(counts), 1, squeeze=False, height_ratios=[families + 1 for families in counts])
    for axes, size in zip(panels.flat, summary.sizes):
        part = summary.sound[summary.sound["size"] == size]
        order = part.groupby("label")["val_bpb"].mean().sort_values().index
        shared = {"data": part, "x": "val_bpb", "y": "label", "order": order, "ax": axes}
        seaborn.stripplot(**shared, hue="label", palette=colors, legend=False, jitter=False, size=6, alpha=0.7)
        seaborn.pointplot(**shared, errorbar=None, linestyle="none", marker="|", markersize=16, color="#222222")
        axes.set(title=f"{size}: depth {summary.grid.sizes[size].depth}", ylabel="", xlabel="")
    panels[-1, 0].set_xlabel(f"bits per byte, {summary.grid.val_name}")
    return save(figure, path)


@mpl.rc_context(STYLE)
def plot_lines(summary: Summary, x: str, path: Path) -> Path | None:
    """Draw bits per byte against a column, one line per family and depth. None if no family has two budgets."""
    cells = summary.sound.groupby(["label", "depth"])
    data = summary.sound[cells["size"].transform("nunique") > 1]
    if data.empty:
        return None
    left_out = summary.sound[~summary.sound["label"].isin(data["label"])]
    text = "mean and one dot per seed; " + (f"one budget only, not drawn: {labels(left_out)}" if len(left_out) else "")
    figure = new_figure(9, 5.5, headline(summary), text.rstrip("; "))
    axes, colors = figure.subplots(), family_colors(summary.grid.families.values())
    # The seeds of a family and size differ in x by less than a step, so they get the same x.
    data = data.assign(x=data.groupby(["label", "size"])[x].transform("mean"))
    shared = {"data": data, "x": "x", "y": "val_bpb", "hue": "label", "palette": colors, "ax": axes, "legend": False}
    seaborn.lineplot(**shared, style="depth", errorbar=None)
    seaborn.scatterplot(**shared, s=30, alpha=0.7)
    names = {"flops": "training FLOPs", "tokens_per_parameter": "tokens per parameter of matrices and head"}
    axes.set(xlabel=names[x], ylabel=f"bits per byte, {summary.grid.val_name}")
    cost_axis(axes)
    depths, ends = data["depth"].nunique(), []
    for (label, depth), line in data.groupby(["label", "depth"]):
        last = line[line["x"] == line["x"].max()]
        name = label if depths == 1 else f"{label}, depth {depth}"
        ends.append((last["x"].iloc[0], last["val_bpb"].mean(), name, colors[label]))
    label_ends(axes, ends)
    return save(figure, path)


@mpl.rc_context(STYLE)
def plot_curves(summary: Summary, path: Path) -> Path | None:
    """Draw the validations during training, one panel per size and one line per run. None without any."""
    points = [
        {"label": row.label, "size": row.size_, "seed": row.seed, "flops": step * row.flops / row.steps, "bpb": bpb}
        for row in summary.sound.rename(columns={"size": "size_"}).itertuples()
        for step, bpb in row.curve
        if step > 0 and bpb is not None
    ]
    if not points:
        return None
    data, colors = pd.DataFrame(points), family_colors(summary.grid.families.values())
    bare = summary.sound[~summary.sound["curve"].map(bool)]
    text = f"no curves were recorded for: {labels(bare)}" if len(bare) else ""
    sizes = list(data["size"].unique())
    figure = new_figure(9, 1 + 3.6 * len(sizes), "Validation during training, one line per run", text)
    for axes, size in zip(figure.subplots(len(sizes), 1, squeeze=False).flat, sizes):
        part = data[data["size"] == size]
        shared = {"x": "flops", "y": "bpb", "hue": "label", "palette": colors, "legend": False, "ax": axes}
        seaborn.lineplot(data=part, **shared, units="seed", estimator=None, linewidth=1.2)
        axes.set_title(f"{size}: depth {summary.grid.sizes[size].depth}")
        axes.set(xlabel="training FLOPs", ylabel="bits per byte")
        cost_axis(axes)
        axes.set_ylim(part["bpb"].min() - 0.02, part.groupby("label")["bpb"].nth(1).max())  # skip the first fall
        lasts = part.sort_values("flops").groupby("label").last()
        label_ends(axes, [(row.flops, row.bpb, row.Index, colors[row.Index]) for row in lasts.itertuples()])
    return save(figure, path)


def headline(summary: Summary) -> str:
    """Write the title of a figure: which family is best at the largest budget, and by how much."""
    size = summary.sound.loc[summary.sound["flops"].idxmax(), "size"]
    part = summary.sound[summary.sound["size"] == size]
    means = part.groupby("label")["val_bpb"].mean().sort_values()
    title = f"{means.index[0]} has the lowest loss at {size} (depth {summary.grid.sizes[size].depth})"
    if len(means) > 1:
        title += f", {means.iloc[1] - means.iloc[0]:.3f} ahead of {means.index[1]}"
    return f"{title} (seeds: {part.groupby('label')['seed'].nunique()[means.index[:2]].min()})"
