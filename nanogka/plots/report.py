"""The report of a run: report.md and its plots, from what the run's folder holds.

What is missing (an evaluation, a corpus that was moved) leaves a sentence saying so and how to get it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanogka.plots.bandwidths import plot_bandwidth_depth, plot_bandwidth_training
from nanogka.plots.chat import chat_section
from nanogka.plots.compare import differing_settings, find_counterpart
from nanogka.plots.curves import plot_curves
from nanogka.plots.runs import Run
from nanogka.plots.scale import Compression, compress_validation
from nanogka.plots.side_by_side import cost_table, in_order, score_table, speed_sentence
from nanogka.plots.style import mixer_name
from nanogka.plots.tables import MISSING, duration, markdown_table, number, scientific, size

MOVED = 1e-3  # a σ that changed by less than this share of its start has not moved


@dataclass(frozen=True)
class Report:
    """What was written: the path of report.md, and six lines that sum it up."""

    path: Path
    summary: list[str]


@dataclass(frozen=True)
class _Material:
    """What the sections are written from.

    Attributes:
        other: the run beside it, if any; `chosen` says whether a person named it.
        name: how other scripts are told which run: its tag or its folder.
        scale, scale_missing: the compressors' outcome, or why there is none.
        plots: paths of the plots by name.
    """

    run: Run
    other: Run | None
    chosen: bool
    name: str
    scale: Compression | None
    scale_missing: str
    plots: dict[str, Path]
    paper_scores: Mapping[str, tuple[float, float]]


def write_report(
    run: Run, runs: Path, paper_scores: Mapping[str, tuple[float, float]], compare: Run | None = None
) -> Report:
    """Write report.md and plots/*.png in the run's folder.

    Args:
        run: the run.
        runs: where runs are, for its counterpart of the other mixer and for its short name.
        paper_scores: see `side_by_side.score_table`.
        compare: the run to stand beside it; None for the counterpart, if there is one.
    """
    other = compare or find_counterpart(run, runs)
    scale, scale_missing = _scale(run)
    in_runs = run.folder.resolve().parent == runs.resolve()
    material = _Material(
        run=run,
        other=other,
        chosen=compare is not None,
        name=run.tag if in_runs else str(run.folder),
        scale=scale,
        scale_missing=scale_missing,
        plots=_draw(run, other, scale),
        paper_scores=paper_scores,
    )
    summary = _summary(material)
    sections = [_title(material), "\n".join(f"* {line}" for line in summary), _what_ran(material), _losses(material)]
    sections += [_beside(material), _bandwidths(material), _scores(material), _samples(material)]
    sections += [chat_section(run, material.name), _where(material)]
    path = run.folder / "report.md"
    path.write_text("\n\n".join(section.strip("\n") for section in sections) + "\n", encoding="utf-8")
    return Report(path, summary)


def _scale(run: Run) -> tuple[Compression | None, str]:
    data = run.part("settings").get("data")
    if data is None:
        return None, "config.yaml does not say which data the run was validated on"
    try:
        return compress_validation(str(data)), ""
    except (ValueError, OSError) as error:
        return None, " ".join(str(error).split())


def _draw(run: Run, other: Run | None, scale: Compression | None) -> dict[str, Path]:
    folder = run.folder / "plots"
    runs = [run] if other is None else [run, other]
    plots = {"curves": plot_curves(runs, folder / "curves.png", scale)}
    if run.bandwidths[2]:
        plots["training"] = plot_bandwidth_training(run, folder / "bandwidth_training.png")
        plots["depth"] = plot_bandwidth_depth(run, folder / "bandwidth_depth.png")
    return plots


def _summary(m: _Material) -> list[str]:
    """Six lines of plain text: model, training, bits per byte, scores, bandwidths, comparison."""
    run = m.run
    accuracies = [
        f"{task['name']} {100 * task['accuracy']:.1f} % (chance {100 * (task.get('chance') or 0):.0f} %)"
        for task in run.tasks
    ]
    tokens, seconds = number(run.last("tokens")), duration(run.training_seconds)
    early = "" if run.finished or run.planned_steps is None else f", stopped before its {run.planned_steps:,} steps"
    beside = "no finished run of the other mixer with the same settings to stand beside"
    if m.other is not None:
        beside = speed_sentence(run, m.other)
    return [
        f"model: {run.tag}, {mixer_name(run.attention)}, depth {run.depth or MISSING}, {number(run.parameters)} "
        "parameters",
        f"trained: {tokens} tokens in {seconds}, median {number(run.tokens_per_second, 0)} tokens/s{early}",
        f"validation: {number(run.validation_bpb)} bits per byte; {_scale_text(m)}",
        f"scores: {', '.join(accuracies[:4]) or 'not evaluated yet'}"
        + (f", and {len(accuracies) - 4} more in the report" if len(accuracies) > 4 else ""),
        f"bandwidths: {_bandwidth_text(run)}",
        f"compared: {beside}",
    ]


def _scale_text(m: _Material) -> str:
    if m.scale is None:
        return "gzip and xz could not be measured"
    return f"gzip -9 {m.scale.gzip_bpb:.4f}, xz {m.scale.xz_bpb:.4f} on that text"


def _bandwidth_text(run: Run) -> str:
    """Whether σ is finite and moved, in one sentence."""
    _, sigma, layers = run.bandwidths
    if not layers:
        return "none; this mixer has no σ"
    final = sigma[-1]
    if not np.isfinite(final).all():
        return f"{int((~np.isfinite(final)).sum())} of {final.size} σ are not finite"
    text = f"{final.size} σ, all finite, now {final.min():.3f} to {final.max():.3f}"
    if run.bandwidth_start is None:
        return text
    moved = int((np.abs(final / run.bandwidth_start - 1) > MOVED).sum())
    return f"{text}; {moved} of them moved from their start, {run.bandwidth_start:.3f}"


def _title(m: _Material) -> str:
    return f"# {m.run.tag}: {mixer_name(m.run.attention)}, depth {m.run.depth or MISSING}"


def _what_ran(m: _Material) -> str:
    run = m.run
    shape, parameters = _model_text(run)
    devices = run.fact("world_size")
    hardware = (f"{devices} × " if isinstance(devices, int) and devices > 1 else "") + (run.hardware or "not recorded")
    steps, batch = run.train[-1]["step"], run.fact("total_batch_size")
    planned = "" if run.finished or run.planned_steps is None else f" of {run.planned_steps:,} (stopped early)"
    utilisation = run.model_flops_utilisation
    mfu = "peak of this hardware not known" if utilisation is None else f"{100 * utilisation:.1f} % of the peak (MFU)"
    compiled = {True: ", compiled", False: ", not compiled"}.get(run.fact("compiled"), "")
    rows = [
        ("hardware", hardware),
        ("software", f"torch {run.fact('torch') or MISSING}, {run.fact('dtype') or MISSING}{compiled}"),
        ("model", shape),
        ("parameters", parameters),
        ("FLOPs / token", scientific(run.flops_per_token)),
        ("data", str(run.part("settings").get("data") or "not recorded")),
        ("tokenizer", str(run.part("settings").get("tokenizer") or "not recorded")),
        ("training", f"{steps:,} steps{planned} of {number(batch)} tokens: {number(run.last('tokens'))} tokens"),
        ("training FLOPs", scientific(run.last("flops"))),
        ("wall time", f"{duration(run.training_seconds)} in training steps, validation and saving not counted"),
        ("speed", f"{number(run.tokens_per_second, 0)} tokens/s (median of the run's {len(run.train):,} steps)"),
        ("FLOP/s", f"{size(run.median_of('flops_per_second'), 'FLOP/s')}; {mfu}"),
        ("seed", str(run.fact("seed") if run.fact("seed") is not None else "not recorded")),
        ("started", str(run.fact("created") or "not recorded")),
    ]
    return "## What ran\n\n" + markdown_table(["", ""], rows, left=2)


def _model_text(run: Run) -> tuple[str, str]:
    """The model's shape and its parameters by group."""
    config = run.gpt_config
    if config is None:
        return "config.yaml does not hold a valid model configuration", number(run.parameters)
    shape = (
        f"{mixer_name(run.attention)}; {config.n_layer} layers, {config.n_head} heads of {config.head_dim}, width "
        f"{config.n_embd}, context {config.sequence_len:,} (windows {config.window_pattern}), vocabulary "
        f"{config.vocab_size:,}"
    )
    groups = ((name.replace("_", " "), n) for name, n in run.accounting.parameters.items() if n)
    return shape, f"{run.parameters:,} (" + ", ".join(f"{name} {n:,}" for name, n in groups) + ")"


def _losses(m: _Material) -> str:
    run = m.run
    rows = [("training loss (smoothed)", number(run.last("smooth_loss") or run.last("loss")) + " nats / token")]
    rows.append(("validation during training, last", _bpb(run.last_validation)))
    for split, label in (("train", "training text, evaluated"), ("val", "validation, evaluated")):
        if split in run.evaluated:
            rows.append((label, _bpb(run.evaluated[split])))
    if m.scale is not None:
        rows += [("gzip -9", _bpb(m.scale.gzip_bpb)), ("xz", _bpb(m.scale.xz_bpb))]
    lines = ["## Loss and bits per byte", _picture("curves", "Learning curves", m), markdown_table(["", ""], rows)]
    return "\n\n".join([*lines, _verdict(m)])


def _bpb(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4f} bits / byte"


def _verdict(m: _Material) -> str:
    """Whether the model predicts the validation text better than the compressors."""
    if m.scale is None:
        return f"gzip and xz could not be measured on the validation text: {m.scale_missing}."
    text = "the validation text" if m.scale.whole else "the beginning of the validation text"
    basis = f"gzip and xz compressed {text} as one stream of {m.scale.text_bytes:,} bytes"
    bpb = m.run.validation_bpb
    if bpb is None:
        return f"{basis}. The run has no validation to set beside them."
    beaten = [name for name, value in (("gzip", m.scale.gzip_bpb), ("xz", m.scale.xz_bpb)) if bpb < value]
    outcome = {
        0: "**The model beats neither** yet: both need fewer bits a byte",
        1: f"**The model beats {beaten[0] if beaten else ''}**, but not the other",
        2: "**The model beats both**",
    }[len(beaten)]
    config = m.run.gpt_config
    seen = f"; the model predicts it from at most {config.sequence_len:,} tokens before" if config else ""
    scored = m.run.scored_bytes
    part = f" The evaluation scored {scored:,} bytes of that text." if scored else ""
    sizes = "The sizes of model and tokenizer are not counted, nor those of the programs."
    return f"{outcome}. {basis}{seen}.{part} {sizes}"


def _picture(plot: str, text: str, m: _Material) -> str:
    return f"![{text}]({m.plots[plot].relative_to(m.run.folder).as_posix()})"


def _beside(m: _Material) -> str:
    runs = in_order(m.run, m.other)
    lines = ["## Beside the other mixer and the paper"]
    if m.other is None:
        wanted = "dot_product" if m.run.attention == "gaussian" else "gaussian"
        lines.append(
            f"There is no finished run of the other mixer with the same settings yet (`--attention {wanted}`; "
            "`scripts.report --compare` takes any run)."
        )
    else:
        lines += [f"**{speed_sentence(m.run, m.other)}**", _same_settings(m)]
        again = m.other.tag if m.other.folder.parent == m.run.folder.parent else m.other.folder
        lines.append(f"The other run's own report may be older: `python -m scripts.report --run {again}` renews it.")
    lines.append(cost_table(runs))
    lines.append(
        "The paper's runs (arXiv 2605.02144) are of depth 20 on 8 GPUs and FineWeb-Edu, each mixer at its own horizon: "
        "they are not compute-matched."
    )
    return "\n\n".join(lines)


def _same_settings(m: _Material) -> str:
    different = differing_settings(m.run, m.other)
    named = f"`{m.run.tag}` and `{m.other.tag}`"
    if not different:
        return f"{named} have the same settings but for the mixer: depth, context, data, tokens, batch, seed and rates."
    pairs = ", ".join(f"{name} ({one} / {other})" for name, (one, other) in different.items())
    return f"{named} do not have the same settings, which the numbers below reflect too: {pairs}."


def _bandwidths(m: _Material) -> str:
    lines = ["## Bandwidths", _bandwidth_text(m.run)[:1].upper() + _bandwidth_text(m.run)[1:] + "."]
    if "training" in m.plots:
        lines.append(
            "σ is how far apart two features may be for one token to attend to the other: a small σ looks only at its "
            "like, a large one averages."
        )
        lines.append(_picture("training", "Bandwidth of each head over training", m))
        lines.append(_picture("depth", "Final bandwidth over depth", m))
    return "\n\n".join(lines)


def _scores(m: _Material) -> str:
    runs = in_order(m.run, m.other)
    lines = ["## Scores"]
    if not m.run.evaluation:
        lines.append(
            f"There is no evaluation.json. Make it with `python -m scripts.base_eval --run {m.name}`, then run "
            f"`python -m scripts.report --run {m.name}` again."
        )
    step = m.run.evaluation.get("step")
    if isinstance(step, int) and step != m.run.train[-1]["step"]:
        lines.append(f"These are the scores of step {step:,}, not of the last step.")
    lines.append(score_table(runs, m.paper_scores))
    lines.append(
        "Centred: 0 at chance, 1 when all is right. ± is one standard error. CORE differed by up to 0.0165 between "
        "seven identical nanochat runs, so differences under 0.01 between single runs mean nothing."
    )
    return "\n\n".join(lines)


def _samples(m: _Material) -> str:
    samples = m.run.evaluation.get("samples") or []
    lines = ["## Samples", "What follows ▸ is the model's." if samples else "None were made."]
    for sample in samples:
        text = f"{sample.get('prompt', '')} ▸{sample.get('text', '')}"
        fence = "```"
        while fence in text:
            fence += "`"
        lines.append(f"{fence}text\n{text}\n{fence}")
    return "\n\n".join(lines)


def _where(m: _Material) -> str:
    rows = [
        ("this report", "report.md"),
        ("plots", ", ".join(f"plots/{path.name}" for path in m.plots.values())),
        ("settings", "config.yaml"),
        ("every step's numbers", "metrics.jsonl"),
        ("scores and samples", "evaluation.json" if m.run.evaluation else "not made yet"),
        ("weights", "checkpoints/" if (m.run.folder / "checkpoints").is_dir() else "none in this folder"),
    ]
    chat = f"Talk to it:\n\n```bash\npython -m scripts.chat_cli --run {m.name}\n```"
    return f"## Where everything is\n\nIn `{m.run.folder}`:\n\n{markdown_table(['', ''], rows, left=2)}\n\n{chat}"
