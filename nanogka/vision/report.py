"""The report of a run on images: report.md, report.html and the curves, from what the run's folder holds."""

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from nanogka.formatting import MISSING, code_block, code_span, duration, markdown_table, number
from nanogka.plots.html import write_document
from nanogka.plots.style import FEW, MAP_STYLE, new_figure, save
from nanogka.runs import METRICS, read_config, read_metrics


def write_image_report(folder: Path) -> Path:
    """Write report.md, report.html and plots/curves.png in the run's folder; returns the path of report.html.

    Raises:
        ValueError: if the folder has no run, or no step of it is logged.
    """
    config, lines = read_config(folder), read_metrics(folder / METRICS)
    steps = [line for line in lines if line["kind"] == "train"]
    measured = [line for line in lines if line["kind"] == "eval"]
    if not steps:
        raise ValueError(f"--run: {folder} has no step in {METRICS}")
    save(plot_image_curves(folder.name, steps, measured), folder / "plots" / "curves.png")
    last = measured[-1] if measured else {}
    shown = {"top-1": "top1", "top-5": "top5", "top-1, averaged weights": "ema_top1"}
    rows = [(label, _percent(last.get(name))) for label, name in shown.items()]
    rows += [("loss on held-out images", number(last.get("val_loss"))), ("images measured", number(last.get("images")))]
    rows += [
        ("parameters", number(config["run"]["parameters"])),
        ("FLOPs / image", f"{config['run']['flops_per_image']:,}"),
        ("images learned from, with repeats", number(steps[-1]["images"])),
        ("images / s (median)", number(float(np.median([line["images_per_second"] for line in steps])), 0)),
        ("time in training steps", duration(steps[-1]["total_seconds"])),
        ("damaged images replaced", number(sum(len(line.get("replaced", ())) for line in steps))),
    ]
    maps = f"Not drawn yet: {code_span(f'python -m scripts.vision_maps --run {folder.name}')}."
    if (folder / "maps").is_dir():
        maps = "\n\n".join(f"![{path.stem}](maps/{path.name})" for path in sorted((folder / "maps").glob("*.png")))
    settings = "\n".join(f"{name}: {value}" for name, value in config["settings"].items())
    sections = [
        f"# {code_span(folder.name)}: {code_span(config['model']['name'])}",
        markdown_table(["", "last"], rows),
        "## Curves",
        "![Curves](plots/curves.png)",
        "## Attention",
        maps,
        "## Settings",
        code_block(settings, "yaml"),
    ]
    write_document(folder / "report.md", sections, folder.name)
    return folder / "report.html"


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.2f} %"


@rc_context(MAP_STYLE)
def plot_image_curves(name: str, steps: list[dict], measured: list[dict]) -> Figure:
    """Draw loss, accuracy and σ over the epochs, from the lines of metrics.jsonl."""
    epochs = [line["epoch"] for line in steps]
    sigma = np.array([[s for layer in line["bandwidth"] for s in layer] for line in steps])
    figure = new_figure(13 if sigma.size else 9, 3.6, name)
    axes = figure.subplots(1, 3 if sigma.size else 2)
    axes[0].plot(epochs, [line["loss"] for line in steps], color=FEW[0], linewidth=0.6, label="training")
    at = [line["epoch"] for line in measured]
    axes[0].plot(at, [line["val_loss"] for line in measured], color=FEW[1], label="held-out")
    axes[0].set(title="loss (nats), of smoothed labels in training", yscale="log")
    for color, key, label in zip(FEW, ("top1", "ema_top1"), ("the weights", "their average")):
        if measured and key in measured[-1]:
            axes[1].plot(at, [100 * (1 - line[key]) for line in measured], color=color, label=label)
    axes[1].set(title="top-1 errors on held-out images (%)", yscale="log")
    for panel in axes[:2]:
        panel.legend()
    if sigma.size:
        layers = len(steps[-1]["bandwidth"])
        for line, layer in zip(sigma.T, np.repeat(np.arange(layers), sigma.shape[1] // layers)):
            axes[2].plot(epochs, line, color=(0.1, 0.2 + 0.6 * layer / layers, 0.7), linewidth=0.9)
        axes[2].set(title="σ of each head; later layers lighter")
    for panel in axes[:2]:
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_locator(NullLocator())
    for panel in axes:
        panel.set_xlabel("epochs")
        panel.grid(color="#E6E6E6", linewidth=0.7)
    return figure
