"""Report on a study, computed from the grid and the results file: Markdown tables and figures."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from colorsys import hsv_to_rgb
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import to_hex

from nanogka.common.files import atomic_write
from nanogka.common.formatting import MISSING, code_span, markdown_table, number, scientific
from nanogka.plots.style import COLORS, DARK_STYLE, INK, STYLE, cost_axis, label_ends, new_figure, on_dark, save
from nanogka.study.grid import Family, Grid
from nanogka.study.plan import Results, best_trial

try:
    import pandas as pd

    from nanogka.study.lead import lead_section, plot_leads
    from nanogka.study.summary import OVER_DOCUMENTS, Summary, half_width, plus_minus
except ImportError as error:
    raise ValueError("the report of a study needs pandas: pip install -e '.[study]'") from error

COLUMNS = ["family", "parameters", "FLOPs / token", "tokens", "tokens / parameter", "training FLOPs", "seeds"]
AXES = {"flops": "training FLOPs", "tokens_per_parameter": "tokens per parameter"}


def labels(rows: pd.DataFrame) -> str:
    """List the families of some rows for a sentence. Labels may contain commas."""
    return "; ".join(dict.fromkeys(rows["label"]))


# ---- text ----


def write_report(grid: Grid, results: Results, path: Path, others: Sequence[tuple[Grid, Results]] = ()) -> list[Path]:
    """Write the report to `path` and its figures to the folder of that name. Returns all paths.

    `others` are further studies whose paired differences are drawn in the figure of the lead.
    """
    summary, folder = Summary(grid, results), path.with_suffix("")
    path.parent.mkdir(parents=True, exist_ok=True)
    sections = [f"# Study {code_span(grid.name)}", *describe_setup(summary, results.others), *lead_section(summary)]
    for size, heading in summary.sizes.items():
        sections += [f"## {heading}", size_table(summary, size)]
    sections += rates_section(summary)
    compared = [summary, *(Summary(*other) for other in others)]
    figures = {"Lead at equal FLOPs, time and tokens": plot_leads(compared, folder / "lead.png")}
    figures |= {"Bits per byte by size": plot_sizes(summary, folder / "sizes.png")}
    figures |= {f"Bits per byte against {AXES[x]}": plot_lines(summary, x, folder / f"{x}.png") for x in AXES}
    plot_leads(compared, folder / "lead-dark.png", DARK_STYLE)  # for README in dark mode
    plot_lines(summary, "flops", folder / "flops-dark.png", DARK_STYLE)
    made = {title: figure for title, figure in figures.items() if figure}
    sections += ["## Figures", *(f"![{title}]({os.path.relpath(at, path.parent)})" for title, at in made.items())]
    atomic_write(path, "\n\n".join(sections) + "\n")
    return [path, *made.values()]


def describe_setup(summary: Summary, others: int) -> list[str]:
    """Explain the protocol and how to read the tables. `others`: number of results of another protocol."""
    grid, used, most = summary.grid, summary.frame, summary.protocol.get("measure_tokens")
    machines = Counter(f"{row.hardware}, {row.dtype}, torch {row.torch}" for row in used.itertuples())
    where = "; ".join(f"{machine} ({runs} runs)" for machine, runs in machines.most_common())
    part = f"the first {most:,} tokens of the" if most else "the whole"
    sums_of_documents = []
    if used["val_documents"].map(np.ndim).any():
        sums_of_documents.append(
            f'The column "{OVER_DOCUMENTS}" is half the width of the 95 % interval of the same mean difference over '
            "the documents of the validation split. It says how far other text of the same kind would move the "
            "difference. The interval over seeds says how far other seeds would."
        )
    lines = [
        f"{len(used)} runs. The tables show the FLOPs spent in whole steps, and tokens per parameter of matrices and "
        f"lm_head. Bits per byte are of {part} validation split ({grid.val_name}), and of that of a second corpus "
        f"({grid.confirm_name}). Lower is better. Differences are to {code_span(grid.families[grid.reference].label)}, "
        "paired by seed, because runs of one seed read the same text in the same order. Negative differences are "
        "better. ± is half the width of the 95 % interval of the mean over the seeds (t distribution), so it is wide "
        "for two seeds. A number without ± comes from one seed.",
        *sums_of_documents,
        f"Machines: {where}. Tokens per second are medians over steps. Jobs that ran in parallel shared the machine.",
    ]
    for what, rows in used[used["edited"] != ""].groupby("edited"):
        verb = "row was" if len(rows) == 1 else "rows were"
        lines.append(f"{len(rows)} {verb} edited by hand ({what}): {labels(rows)}.")
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
            if table["over_documents"].notna().any():
                row.append(MISSING if own else half_width(values.get("over_documents")))
        # A mean over different machines would be the speed of none of them.
        speed = sound["tokens_per_second"].mean() if sound["hardware"].nunique() == 1 else None
        row.append(MISSING if pd.isna(speed) else f"{speed:,.0f}")
        rows.append(row)
    losses = []
    for name, table in compared.items():
        losses += [titles[name], "difference"]
        losses += [OVER_DOCUMENTS] if table["over_documents"].notna().any() else []
    return markdown_table([*COLUMNS, *losses, "tokens / s"], rows)


def rates_section(summary: Summary) -> list[str]:
    """List the learning rates tried, with the best in bold, and whether it is bracketed. Empty without trials."""
    rows = []
    for (size, name), trials in summary.trials.items():
        tried = {job.rate: row["val_bpb"] for job, row in trials if row}
        chosen = best_trial(trials)
        if chosen is None or not summary.grid.sizes[size].lr_scale:
            continue
        # A minimum inside the range is bracketed. One at the edge may only be where the search stopped.
        best = trials[chosen][0].rate
        texts = {rate: f"{rate}: " + ("diverged" if loss is None else f"{loss:.4f}") for rate, loss in tried.items()}
        texts[best] = f"**{texts[best]}**"
        ordered = sorted(tried, key=float) if len(tried) > 1 else []
        edges = {ordered[0]: "no: lowest", ordered[-1]: "no: highest"} if ordered else {best: "no: the only one"}
        rows.append([size, summary.grid.families[name].label, " · ".join(texts.values()), edges.get(best, "yes")])
    val, confirm = summary.grid.val_name, summary.grid.confirm_name
    text = (
        f"Rates were tried with the first seed. The one with the lowest bits per byte on {val} (bold) is used for the "
        f"other seeds. The choice did not use {confirm}. A best rate at the edge of the "
        "range is not bracketed: a better one may exist outside the range."
    )
    table = markdown_table(["size", "family", f"lr_scale and bits per byte on {val}", "bracketed"], rows, left=4)
    return ["## Learning rates", text, table] if rows else []


# ---- figures ----


def headline(summary: Summary) -> str:
    """Return the title of the grid, or a sentence on the best family at the largest budget that several have."""
    families = summary.sound.groupby("size")["family"].transform("nunique")
    compared = summary.sound[families > 1]
    if compared.empty:
        compared = summary.sound
    size = compared.loc[compared["flops"].idxmax(), "size"]
    part = compared[compared["size"] == size]
    best, *others = part.groupby("label")["val_bpb"].mean().sort_values().items()
    if not others:
        return summary.grid.title or f"{size}: “{best[0]}” has {best[1]:.3f} bits per byte"
    lead = f"{others[0][1] - best[1]:.3f} below “{others[0][0]}”"
    return summary.grid.title or f"{size}: “{best[0]}” has the lowest bits per byte, {lead}"


def family_colors(families: Iterable[Family]) -> dict[str, str]:
    """Return {label: color}: the family's own color, or a color that no family names."""
    colors = {family.label: family.color or "" for family in families}
    others = [label for label, color in colors.items() if not color]
    spare = [color for color in COLORS if color not in colors.values()]
    if len(others) > len(spare):
        spare = [to_hex(hsv_to_rgb(i / len(others), 0.65, 0.8)) for i in range(len(others))]
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
        for row, label in enumerate(order):
            losses = part.loc[part["label"] == label, "val_bpb"]
            axes.plot(losses, [row] * len(losses), "o", color=colors[label], markersize=7, alpha=0.7)
            if len(losses) > 1:
                axes.plot(losses.mean(), row, "|", color=INK, markersize=16)
        axes.set(title=heading, yticks=range(len(order)), yticklabels=order, ylim=(len(order) - 0.5, -0.5))
        axes.grid(axis="y", visible=False)
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
        axes.set(xlabel=AXES[x], ylabel=f"bits per byte, {summary.grid.val_name}")
        cost_axis(axes)
        dashes = dict(zip(sorted(data["depth"].unique()), cycle(("-", "--", ":", "-."))))
        for (label, depth), line in data.groupby(["label", "depth"]):
            means, color = line.groupby("x")["val_bpb"].mean(), colors[label]
            axes.plot(means.index, means, dashes[depth], color=color)
            axes.plot(line["x"], line["val_bpb"], "o", color=color, markersize=5.5, alpha=0.7, markeredgewidth=0)
            text = label if one_depth else f"{label}, depth {depth}"
            ends.append((means.index[-1], means.iloc[-1], text, color))
        label_ends(axes, ends)
    return save(figure, path, style=style)
