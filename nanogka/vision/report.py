"""The report of a run on images: report.md, report.html and the curves, from what the run's folder holds."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from nanogka.common.formatting import MISSING, code_block, code_span, duration, markdown_table, number
from nanogka.plots.html import write_document
from nanogka.plots.style import FEW, STYLE, line_colors, new_figure, plain_ticks, save
from nanogka.runs import METRICS, Run


def write_image_report(folder: Path) -> Path:
    """Write report.md, report.html and plots/curves.png in the run's folder; returns the path of report.html."""
    run = Run.open(folder)
    if not run.train:
        raise ValueError(f"--run: {folder} has no step in {METRICS}")
    save(plot_image_curves(run), folder / "plots" / "curves.png")
    last = run.validations[-1] if run.validations else {}
    shown = {"top-1": "top1", "top-5": "top5", "top-1, averaged weights": "ema_top1"}
    shares = [(label, f"{100 * last[name]:.2f} %" if name in last else MISSING) for label, name in shown.items()]
    rows = [
        *shares,
        ("loss on held-out images", number(last.get("val_loss"))),
        ("images measured", number(last.get("images"))),
        ("parameters", number(run.fact("parameters"))),
        ("FLOPs / image", number(run.fact("flops_per_image"))),
        ("images learned from, with repeats", number(run.last("images"))),
        ("images / s (median)", number(run.median("images_per_second"), 0)),
        ("time in training steps", duration(run.last("total_seconds"))),
        ("damaged images replaced", number(sum(len(line.get("replaced", ())) for line in run.train))),
    ]
    maps = "\n\n".join(f"![{path.stem}](maps/{path.name})" for path in sorted((folder / "maps").glob("*.png")))
    draw = code_span(f"python -m scripts.vision_eval --maps --run {folder.name}")
    sections = [
        f"# {code_span(folder.name)}: {code_span(run.part('model')['name'])}",
        markdown_table(["", "last"], rows),
        "## Curves",
        "![Curves](plots/curves.png)",
        "## Attention",
        maps or f"Not drawn yet: {draw}.",
        "## Settings",
        code_block("\n".join(f"{name}: {value}" for name, value in run.part("settings").items()), "yaml"),
    ]
    return write_document(folder / "report.md", sections, folder.name).with_suffix(".html")


@rc_context(STYLE)
def plot_image_curves(run: Run) -> Figure:
    """Draw loss, accuracy and σ over the epochs."""
    epochs, at = run.column("epoch"), run.validation("epoch")
    _, sigma, layers = run.bandwidths
    figure = new_figure(13 if layers else 9, 4, run.tag)
    axes = figure.subplots(1, 3 if layers else 2)
    axes[0].plot(epochs, run.column("loss"), color=FEW[0], linewidth=0.6, label="training")
    axes[0].plot(at, run.validation("val_loss"), color=FEW[1], label="held-out")
    axes[0].set(title="loss (nats), of smoothed labels in training", yscale="log")
    for color, key, label in zip(FEW, ("top1", "ema_top1"), ("the weights", "their average")):
        if run.validations and key in run.validations[-1]:
            axes[1].plot(at, 100 * (1 - run.validation(key)), color=color, label=label)
    axes[1].set(title="top-1 errors on held-out images (%)", yscale="log")
    for panel in axes[:2]:
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        plain_ticks(panel.yaxis)
    if layers:
        for index, color in enumerate(line_colors(max(5, len(layers)))[: len(layers)]):
            axes[2].plot(epochs, sigma[:, index], color=color, linewidth=0.9)
        axes[2].set(title="σ of each head; later layers lighter")
    for panel in axes:
        panel.set_xlabel("epochs")
    return figure
