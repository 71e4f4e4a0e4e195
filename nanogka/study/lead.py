"""The lead of one family over others, paired by seed, where both have spent equally much.

A grid names the family (`subject`) and the families that it is compared with (`controls`). The runs of a seed read the
same text in the same order, so their difference varies less than either loss. The axes answer different questions:

    flops    the two runs of a size: the same training FLOPs
    tokens   the subject after as many training tokens as a run of the control
    time     the subject after as much time, if the grid gives the `time` per token of both families
    horizon  the subject after as many tokens per parameter of matrices and lm_head as a run of the control

A study trains at a few budgets, so the subject rarely has a run of just these tokens. Its loss is then interpolated
linearly in log tokens between its own runs of this seed and depth, each at the best rate of its size. A subject with
one length is compared with the control's loss, interpolated in the same way. There is no extrapolation. Negative
differences are in favor of the subject.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.lines import Line2D

from nanogka.common.formatting import markdown_table
from nanogka.plots.style import DARK_STYLE, DASHED, GREY, STYLE, cost_axis, new_figure, on_dark, save, wrap_title
from nanogka.study.summary import (
    LOSSES,
    OVER_DOCUMENTS,
    Summary,
    combine_documents,
    half_interval,
    half_interval_over_documents,
    half_width,
    plus_minus,
)

COMPARISONS = {
    "flops": "equal training FLOPs",
    "time": "equal computed time",
    "tokens": "equal training tokens",
    "horizon": "equal tokens per parameter",
}
Point = pd.Series | dict[str, Any]  # a row of results, or losses between two rows
SAME = 0.01  # tokens that differ by less than this share count as equal: budgets end in whole steps


def find_leads(summary: Summary) -> pd.DataFrame:
    """Return one row per control, axis, size and seed with the differences of both losses, or an empty frame.

    Columns: control (label), color, axis, size (of the run that is not interpolated), seed, parameters and
    tokens_per_parameter (the subject's), control_tokens_per_parameter, and the columns of `LOSSES` (subject minus
    control).
    """
    grid, sound, rows = summary.grid, summary.sound, []
    for name in grid.controls if grid.subject else ():
        family, both = grid.families[name], sound[sound["family"].isin([name, grid.subject])]
        time = {one: grid.families[one].time for one in (name, grid.subject)}
        for (_, seed), runs in both.groupby(["depth", "seed"]):
            mine = dict(list(runs.groupby("family")))
            if len(mine) < 2:
                continue
            for axis, size, subject, control in _pairs(mine[grid.subject], mine[name], time[grid.subject], time[name]):
                row = {"control": family.label, "color": family.color or GREY, "axis": axis, "size": size, "seed": seed}
                row["parameters"] = mine[grid.subject]["parameters"].iloc[0]
                row["tokens_per_parameter"] = subject["tokens_per_parameter"]
                row["control_tokens_per_parameter"] = control["tokens_per_parameter"]
                row |= {sums: combine_documents((subject[sums], control[sums]), (1, -1)) for sums in LOSSES.values()}
                rows.append(row | {loss: subject[loss] - control[loss] for loss in LOSSES})
    return pd.DataFrame(rows)


def _pairs(
    subjects: pd.DataFrame, controls: pd.DataFrame, subject_time: float | None, control_time: float | None
) -> Iterator[tuple[str, str, Point, Point]]:
    """Yield (axis, size, subject, control) of one seed and depth: runs, or points between runs."""
    for size in controls["size"][controls["size"].isin(subjects["size"])]:
        yield "flops", size, *(runs[runs["size"] == size].iloc[0] for runs in (subjects, controls))
    # Tokens of the subject per token of the control.
    parameters = [(runs["tokens"] / runs["tokens_per_parameter"]).iloc[0] for runs in (subjects, controls)]
    ratios = {"tokens": 1.0, "horizon": parameters[0] / parameters[1]}
    if subject_time and control_time:
        ratios["time"] = control_time / subject_time
    # The family with several lengths is the one to interpolate.
    backwards = len(subjects) == 1
    fixed, moving = (subjects, controls) if backwards else (controls, subjects)
    for axis, ratio in ratios.items():
        for _, run in fixed.iterrows():
            other = _at_tokens(moving, run["tokens"] / ratio if backwards else run["tokens"] * ratio)
            if other is not None:
                yield (axis, run["size"], run, other) if backwards else (axis, run["size"], other, run)


def _at_tokens(runs: pd.DataFrame, tokens: float) -> Point | None:
    """Return losses and tokens per parameter after `tokens` tokens: those of a run, or between two runs; else None."""
    if runs.empty:
        return None
    nearest = runs.loc[(runs["tokens"] - tokens).abs().idxmin()]
    if abs(nearest["tokens"] - tokens) < SAME * tokens:
        return nearest
    fewer, more = runs[runs["tokens"] < tokens], runs[runs["tokens"] > tokens]
    if fewer.empty or more.empty:
        return None
    a, b = fewer.loc[fewer["tokens"].idxmax()], more.loc[more["tokens"].idxmin()]
    share = math.log(tokens / a["tokens"]) / math.log(b["tokens"] / a["tokens"])
    values = {loss: a[loss] + share * (b[loss] - a[loss]) for loss in LOSSES}
    values |= {sums: combine_documents((a[sums], b[sums]), (1 - share, share)) for sums in LOSSES.values()}
    return values | {"tokens_per_parameter": a["tokens_per_parameter"] * tokens / a["tokens"]}


def summarize(leads: pd.DataFrame) -> pd.DataFrame:
    """Return one row per control, axis and size: number of seeds, mean and half 95 % intervals of both losses."""
    rows = []
    for (control, axis, size), part in leads.groupby(["control", "axis", "size"], sort=False):
        row = {"control": control, "color": part["color"].iloc[0], "axis": axis, "size": size, "seeds": len(part)}
        row |= {name: part[name].mean() for name in ("tokens_per_parameter", "control_tokens_per_parameter")}
        for loss, sums in LOSSES.items():
            row |= {loss: part[loss].mean(), f"{loss}_interval": half_interval(part[[loss]]).iloc[0]}
            row[f"{loss}_over_documents"] = half_interval_over_documents(list(part[sums]))
        rows.append(row)
    return pd.DataFrame(rows)


def lead_section(summary: Summary) -> list[str]:
    """Write the section of the report on the subject's lead. Empty if the grid names no subject."""
    if not summary.grid.subject:
        return []
    leads = find_leads(summary)
    if leads.empty:
        return []
    label, means = summary.grid.families[summary.grid.subject].label, summarize(leads)
    names = {"val_bpb": summary.grid.val_name, "confirm_bpb": summary.grid.confirm_name}
    with_documents = [loss for loss in LOSSES if means[f"{loss}_over_documents"].notna().any()]
    rows = []
    for axis, title in COMPARISONS.items():
        for _, row in means[means["axis"] == axis].iterrows():
            values = []
            for loss in LOSSES:
                values.append(plus_minus(row[loss], row[f"{loss}_interval"], sign="+"))
                values += [half_width(row[f"{loss}_over_documents"])] if loss in with_documents else []
            ratios = [f"{row[name]:.2f}" for name in ("tokens_per_parameter", "control_tokens_per_parameter")]
            cells = [title, row["control"], row["size"], *ratios, str(row["seeds"])]
            rows.append([*cells, *values])
    headings = ["at", "compared with", "size", "tokens / parameter", "of the other", "seeds"]
    for loss, name in names.items():
        headings += [name, OVER_DOCUMENTS] if loss in with_documents else [name]
    text = (
        f"Bits per byte of {label} minus those of another family, paired by seed, with the 95 % interval of the mean "
        "(t distribution). Negative numbers are in favor of "
        f"{label}. A number without ± comes from one seed. Tokens per parameter are those of {label}, then those of "
        f"the other family. Except at equal FLOPs, the loss of {label} is interpolated in log tokens between its own "
        "runs where it has no run of this length, or the other family's loss where it has several lengths and "
        f"{label} one."
    )
    return [f"## Lead of {label}", text, markdown_table(headings, rows, left=3)]


def plot_leads(summaries: list[Summary], path: Path, style: dict = STYLE) -> Path | None:
    """Draw the paired differences of several studies against tokens per parameter, one panel per axis.

    A dot is a seed, a bar the 95 % interval of the mean of at least three seeds. Two seeds have an interval of nine
    standard deviations, which would only hide the dots. None without a difference.
    """
    drawn = [(summary.grid, leads) for summary in summaries if len(leads := find_leads(summary))]
    if not drawn:
        return None
    grid = drawn[0][0]
    subject = grid.families[grid.subject].label
    axes_shown = [axis for axis in COMPARISONS if any(axis in set(leads["axis"]) for _, leads in drawn)]
    with rc_context(style):
        title = f"How far {subject} is ahead of attention, by length of training"
        note = (
            f"Bits per byte of {subject} minus those of attention, paired by seed. Below zero, {subject} is better. "
            "One dot per seed; a bar is the 95 % interval of the mean of three or more seeds. Lines join means. "
            "A thin line leads to the tokens per parameter of attention."
        )
        width = max(2.8 * len(axes_shown), 5.6)  # one panel would be narrower than the families' names
        figure = new_figure(width, 5.0, "", note)
        panels = figure.subplots(1, len(axes_shown), sharex=True, sharey=True, squeeze=False)[0]
        handles: dict[str, Line2D] = {}
        for _, leads in drawn:
            means = summarize(leads)
            for panel, axis in zip(panels, axes_shown):
                for control, part in leads[leads["axis"] == axis].groupby("control", sort=False):
                    color = on_dark(part["color"].iloc[0]) if style is DARK_STYLE else part["color"].iloc[0]
                    line = means[(means["axis"] == axis) & (means["control"] == control)]
                    line = line.sort_values("tokens_per_parameter")
                    panel.plot(part["tokens_per_parameter"], part["val_bpb"], "o", color=color, alpha=0.45, ms=4.5)
                    panel.plot(line["tokens_per_parameter"], line["val_bpb"], color=color, linewidth=1.2)
                    ends = line["control_tokens_per_parameter"], line["tokens_per_parameter"]
                    panel.hlines(line["val_bpb"], *ends, color=color, linewidth=0.7)
                    sure = line[line["seeds"] > 2]
                    bars = {"fmt": "_", "color": color, "capsize": 4, "linewidth": 2, "markersize": 11}
                    panel.errorbar(sure["tokens_per_parameter"], sure["val_bpb"], sure["val_bpb_interval"], **bars)
                    size = f"{part['parameters'].iloc[0] / 1e6:.1f} M parameters"
                    label = f"{control} ({size})" if len(drawn) > 1 else control
                    handles[label] = Line2D([], [], color=color, marker="o", label=label)
        for panel, axis in zip(panels, axes_shown):
            panel.axhline(0, **DASHED)
            panel.set(title=f"at {COMPARISONS[axis]}", xlabel="training tokens per parameter")
            cost_axis(panel)
        panels[0].set_ylabel(f"difference in bits per byte, {grid.val_name}")
        # The title is the legend's, because the layout makes room for one thing above the panels.
        bold = {"weight": STYLE["figure.titleweight"], "size": STYLE["figure.titlesize"]}
        legend = {"title": wrap_title(title, width), "title_fontproperties": bold, "alignment": "left"}
        legend |= {"ncols": 2 if width > 8 else 1, "fontsize": "small"}
        figure.legend(handles=list(handles.values()), loc="outside upper left", **legend)
    return save(figure, path, style=style)
