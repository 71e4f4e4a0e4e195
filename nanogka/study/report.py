"""Report on a study, computed from the grid and the results file: Markdown tables and figures."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from matplotlib import rc_context

from nanogka.common.formatting import MISSING, byte_size, code_span, markdown_table, number, scientific
from nanogka.model import model_costs
from nanogka.plots.style import COLORS, DARK_STYLE, STYLE, cost_axis, label_ends, new_figure, on_dark, save
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
# Fields that a person adds to a row: what was edited after the measurement, and "file, line N" that it was copied from.
BY_HAND = ("edited", "copied_from")
AXES = {"flops": "training FLOPs", "tokens_per_parameter": "tokens per parameter"}


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
            raise ValueError(f"--report: got {len(results.rows)} results, none for a table of this grid; run it first")
        self.frame = pd.DataFrame(rows).astype({"val_bpb": float, "confirm_bpb": float})
        self.sound = self.frame[self.frame["val_bpb"].notna()]  # the rows with a loss

    def _row(self, job: Job, row: dict) -> dict:
        """A row of results under the names that this grid gives it."""
        names = {"family": job.family, "size": job.size, "seed": job.seed}
        ratio = {"tokens_per_parameter": row["tokens"] / scaling_parameters(job, row["parameters"])}
        return dict.fromkeys(BY_HAND, "") | row | names | ratio | {"label": self.grid.families[job.family].label}

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
    summary, folder = Summary(grid, results), path.with_suffix("")
    path.parent.mkdir(parents=True, exist_ok=True)
    sections = [f"# Study {code_span(grid.name)}", *describe_setup(summary, results.others)]
    for size, heading in summary.sizes.items():
        sections += [f"## {heading}", size_table(summary, size)]
    sections += rates_section(summary)
    figures = {"Bits per byte by size": plot_sizes(summary, folder / "sizes.png")}
    figures |= {f"Bits per byte against {AXES[x]}": plot_lines(summary, x, folder / f"{x}.png") for x in AXES}
    plot_lines(summary, "flops", folder / "flops-dark.png", DARK_STYLE)  # for README in dark mode
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
        f"{len(used)} runs. The tables show the FLOPs spent in whole steps, and tokens per parameter of matrices and "
        f"lm_head. Bits per byte are of {part} validation split ({grid.val_name}), and of that of a second corpus "
        f"({grid.confirm_name}). Lower is better. Differences are to {code_span(grid.families[grid.reference].label)}, "
        "paired by seed, because runs of one seed read the same text in the same order. Negative differences are "
        "better. ± is half the width of the 95 % interval of the mean over the seeds (t distribution), so it is wide "
        "for two seeds. A number without ± comes from one seed.",
        f"Machines: {where}. Tokens per second are medians over steps. Jobs that ran in parallel shared the machine.",
    ]
    for what, rows in used[used["edited"] != ""].groupby("edited"):
        sources = sorted({source.partition(",")[0] for source in rows["copied_from"] if source})
        origin = f"copied from {' and '.join(sources)} and " if sources else ""
        verb = "row was" if len(rows) == 1 else "rows were"
        lines.append(f"{len(rows)} {verb} {origin}edited by hand ({what}): {labels(rows)}.")
    if others:
        lines.append(f"The report leaves out {others} of the results: corpus, tokenizer or measurement differ.")
    if summary.missing:
        lines.append(f"These tables lack {summary.missing} of the planned runs.")
    if diverged := len(used) - len(summary.sound):
        lines.append(f"All means exclude {diverged} of the runs, because they diverged.")
    return lines


def size_table(summary: Summary, size: str) -> str:
    """Build one row per family with costs, both losses, their differences to the reference, and speed."""
    part = summary.frame[summary.frame["size"] == size]
    titles = {"val_bpb": summary.grid.val_name}
    if part["confirm_bpb"].notna().any():
        titles["confirm_bpb"] = summary.grid.confirm_name
    compared = {name: summary.compare(size, name) for name in titles}
    rows = []
    for name, mine in part.groupby("family", sort=False):
        sound = mine[mine["val_bpb"].notna()]
        facts = mine.loc[mine["val_bpb"].idxmin()] if len(sound) else mine.iloc[0]
        row = [facts["label"], number(int(facts["parameters"])), scientific(facts["flops_per_token"])]
        row += [number(int(facts["tokens"])), number(facts["tokens_per_parameter"], 2), scientific(facts["flops"])]
        row.append(str(len(sound)))
        for table in compared.values():
            values = table.loc[name] if len(sound) else {}
            row.append(plus_minus(values.get("mean"), values.get("interval")))
            own = name == summary.grid.reference
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
        # A minimum inside the range is bracketed. One at the edge may only be where the search stopped.
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


def headline(summary: Summary) -> str:
    """Return the title of the grid, or a sentence on the best family at the largest budget."""
    size = summary.sound.loc[summary.sound["flops"].idxmax(), "size"]
    part = summary.sound[summary.sound["size"] == size]
    best, *others = part.groupby("label")["val_bpb"].mean().sort_values().items()
    lead = f", {others[0][1] - best[1]:.3f} below “{others[0][0]}”" if others else ""
    return summary.grid.title or f"{size}: “{best[0]}” has the lowest bits per byte{lead}"


def family_colors(families: Iterable[Family]) -> dict[str, str]:
    """Return {label: color}: the family's own color, or a color that no family names."""
    colors = {family.label: family.color for family in families}
    others = [label for label, color in colors.items() if not color]
    spare = [color for color in COLORS if color not in colors.values()]
    if len(others) > len(spare):
        spare = seaborn.color_palette("husl", len(others)).as_hex()
    return colors | dict(zip(others, spare))


@rc_context(STYLE)
def plot_sizes(summary: Summary, path: Path) -> Path:
    """Draw one panel per size, with the families sorted by their mean, a dot per seed and a line at the mean."""
    colors = family_colors(summary.grid.families.values())
    counts = [summary.sound.loc[summary.sound["size"] == size, "family"].nunique() for size in summary.sizes]
    height = 1 + sum(0.3 * families + 0.8 for families in counts)
    figure = new_figure(8, height, headline(summary), "One dot per seed, and a line at the mean of several seeds.")
    panels = figure.subplots(len(counts), 1, squeeze=False, height_ratios=[families + 1 for families in counts])
    for axes, (size, heading) in zip(panels.flat, summary.sizes.items()):
        part = summary.sound[summary.sound["size"] == size]
        order = part.groupby("label")["val_bpb"].mean().sort_values().index
        shared = {"x": "val_bpb", "y": "label", "order": order, "ax": axes}
        dots = {"hue": "label", "palette": colors, "legend": False, "jitter": False, "size": 7, "alpha": 0.7}
        seaborn.stripplot(data=part, **shared, **dots)
        repeated = part[part.groupby("label")["seed"].transform("nunique") > 1]
        if len(repeated):
            mark = {"linestyle": "none", "marker": "|", "markersize": 16, "color": "#222222"}
            seaborn.pointplot(data=repeated, **shared, errorbar=None, **mark)
        axes.set(title=heading, ylabel="", xlabel="")
    panels[-1, 0].set_xlabel(f"bits per byte, {summary.grid.val_name}")
    return save(figure, path)


def plot_lines(summary: Summary, x: str, path: Path, style: dict = STYLE) -> Path | None:
    """Draw bits per byte against the column `x`, one line per family and depth. None without a line of two budgets."""
    budgets = summary.sound.groupby(["label", "depth"])["size"].transform("nunique")
    data, alone = summary.sound[budgets > 1], summary.sound[budgets == 1]
    if data.empty:
        return None
    note = "Lines join the means over seeds. One dot per seed."
    if only := labels(alone[~alone["label"].isin(data["label"])]):
        note += f" Not drawn, because they have one budget only: {only}."
    # The seeds of a family and size differ in x by less than a step, so they get the same x.
    data = data.assign(x=data.groupby(["label", "size"])[x].transform("mean"))
    colors, one_depth = family_colors(summary.grid.families.values()), data["depth"].nunique() == 1
    if style is DARK_STYLE:
        colors = {label: on_dark(color) for label, color in colors.items()}
    with rc_context(style):
        # The message is about equal training FLOPs; at equal tokens the order may be another one.
        title = headline(summary) if x == "flops" else f"Bits per byte against {AXES[x]}"
        figure = new_figure(9, 5.5, title, note)
        axes, ends = figure.subplots(), []
        shared = {"data": data, "x": "x", "y": "val_bpb", "hue": "label", "palette": colors, "legend": False}
        seaborn.lineplot(**shared, style="depth", errorbar=None, ax=axes)
        seaborn.scatterplot(**shared, s=30, alpha=0.7, linewidth=0, ax=axes)
        axes.set(xlabel=AXES[x], ylabel=f"bits per byte, {summary.grid.val_name}")
        cost_axis(axes)
        for (label, depth), line in data.groupby(["label", "depth"]):
            last = line[line["x"] == line["x"].max()]
            text = label if one_depth else f"{label}, depth {depth}"
            ends.append((last["x"].iloc[0], last["val_bpb"].mean(), text, colors[label]))
        label_ends(axes, ends)
    return save(figure, path, style=style)
