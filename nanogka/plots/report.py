"""Report on a run: report.md, report.html and their figures, built from the files in the run's folder.

If a part is missing, such as an evaluation, the report shows the command that creates it. The paper's numbers are from
arXiv 2605.02144: depth 20 on 8 GPUs, FineWeb-Edu, each mixer at its own horizon.
"""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from nanogka.common.formatting import (
    MISSING,
    code_block,
    code_span,
    duration,
    markdown_table,
    number,
    one_line,
    plain,
    scientific,
    si,
)
from nanogka.data import open_corpus
from nanogka.evaluate.results import PAPER_MEAN, PAPER_SCORES
from nanogka.model import mixer_options
from nanogka.plots.compression import Compression, compress
from nanogka.plots.counterparts import check_comparable, differing_settings, find_chat_run, same_machine
from nanogka.plots.figures import plot_bandwidth_depth, plot_bandwidth_training, plot_curves
from nanogka.plots.html import write_document
from nanogka.plots.trained_run import TrainedRun

ATTENTION_PAGE = "visualization/index.html"  # that scripts.visualize writes
NO_OTHER = "with no run (--compare RUN)"
REPLIES = 2  # replies to show per task that is answered in words
PAPER_DEPTH = 20
PAPER = {  # (GKA, dot-product attention)
    "val_bpb": (0.819080, 0.7884),
    "train_bpb": (0.818256, 0.7800),
    "parameters": (378_798_320, 896_535_720),
    "flops_per_token": (2.4143e9, 3.0042e9),
    "tokens": (2.7787e9, 4.5686e9),
    "flops": (6.7088e18, 1.3725e19),
}
PAPER_MEANS = {"six_task_mean": ("mean of the paper's six", PAPER_MEAN), "core": ("CORE", (None, None))}
PAPER_COLUMNS = [f"paper, depth {PAPER_DEPTH}, FineWeb-Edu: GKA", "paper: dot product"]


def write_report(run: TrainedRun, runs: Path, others: Sequence[TrainedRun] = ()) -> tuple[Path, list[str]]:
    """Write report.md, report.html and plots/*.png to a run's folder.

    Returns the path of report.html and a five-line summary. `others`: runs to compare with. `runs`: the folder of runs;
    commands refer to its runs by name. Raises ValueError for a run that cannot be compared.
    """
    for other in others:
        check_comparable(run, other)
    scale, missing = _scale(run)
    name = run.folder.name if run.folder.resolve().parent == runs.resolve() else str(run.folder)
    compared = [run, *others]
    summary = _summary(run, others, scale)
    chat = find_chat_run(run)
    talks = name if chat is None else chat.folder.name if name == run.folder.name else str(chat.folder)
    sections = [
        f"# {code_span(run.tag)}: {plain(run.label)}, depth {run.fact('n_layer') or MISSING}",
        code_block("\n".join(summary)),
        *_samples(run),
        *_chat(chat, name),
        *_learning_curves(run, compared, scale, missing),
        *_numbers(run, others, compared),
        *_scores(run, compared, name),
        *_bandwidths(run),
        *_heads(run, name),
        *_components(run),
        "## Setup",
        _setup(run),
        code_block(f"python -m scripts.chat_cli --run {shlex.quote(talks)}", "bash"),
    ]
    return write_document(run.folder / "report.md", sections, run.tag).with_suffix(".html"), summary


def _scale(run: TrainedRun) -> tuple[Compression | None, str]:
    """Return the compressors' results on the run's validation text, or the reason why there are none."""
    data = run.part("settings").get("data")
    if data is None:
        return None, "config.yaml does not say which data the run was validated on"
    try:
        return compress(open_corpus(str(data)).documents("val")), ""
    except (ValueError, OSError) as error:
        return None, plain(error)


def _summary(run: TrainedRun, others: Sequence[TrainedRun], scale: Compression | None) -> list[str]:
    depth, parameters = run.fact("n_layer") or MISSING, number(_parameters(run))
    tokens, seconds = number(run.last("tokens")), duration(run.training_seconds)
    planned = run.fact("num_iterations")
    early = "" if run.finished or planned is None else f", stopped after {run.train[-1]['step']:,} of {planned:,} steps"
    compressed = "" if scale is None else f"; gzip -9 {scale.gzip_bpb:.4f}, xz {scale.xz_bpb:.4f} on the same text"
    scores = [f"{one_line(t['name'])} {_percent(t)} (chance {100 * (t.get('chance') or 0):.0f} %)" for t in run.tasks]
    more = f", and {len(scores) - 4} more" if len(scores) > 4 else ""
    return [
        f"model: {run.tag}, {run.label}, depth {depth}, {parameters} parameters",
        f"trained: {tokens} tokens in {seconds}, median {number(run.median('tokens_per_second'), 0)} tokens/s{early}",
        f"validation: {number(run.validation_bpb)} bits per byte{compressed}",
        f"scores: {', '.join(scores[:4]) or 'not evaluated yet'}{more}",
        f"compared: {'; '.join(_ratios(run, other) for other in others) or NO_OTHER}",
    ]


def _ratios(run: TrainedRun, other: TrainedRun) -> str:
    runs = (run, other)
    bpb = [r.evaluated_bpb("val") for r in runs]
    bpb = [r.last_validation for r in runs] if None in bpb else bpb  # the same measurement for both runs
    speeds = [r.median("tokens_per_second") if same_machine(*runs) else None for r in runs]
    return f"{run.tag} / {other.tag}: {_ratio(*speeds)} of the tokens/s, {_ratio(*bpb)} of the validation bits per byte"


def _learning_curves(
    run: TrainedRun, compared: Sequence[TrainedRun], scale: Compression | None, missing: str
) -> list[str]:
    plot_curves(compared, run.folder / "plots" / "curves.png", scale)
    if scale is None:
        text = f"gzip and xz could not be measured on the validation text: {missing}."
    else:
        part = "The validation text" if scale.whole else "The first part of the validation text"
        text = f"{part}, {scale.text_bytes:,} bytes as one stream: gzip -9 {scale.gzip_bpb:.4f}, xz {scale.xz_bpb:.4f} "
        text += "bits per byte."
        counts = run.evaluation.get("bpb_counts")
        if isinstance(counts, dict) and isinstance(counts.get("val"), dict):
            text += f" The evaluation scored {number(counts['val'].get('bytes'))} bytes of it."
    return ["## Learning curves", "![Learning curves](plots/curves.png)", text]


def _numbers(run: TrainedRun, others: Sequence[TrainedRun], compared: Sequence[TrainedRun]) -> list[str]:
    """Build the table of quality, speed and costs of the runs, with the ratio of two runs and the paper's numbers."""
    costs = [r.accounting for r in compared]
    rows = [
        _row("validation bits / byte", "val_bpb", [r.evaluated_bpb("val") for r in compared], number),
        _row("validation during training, last", "", [r.last_validation for r in compared], number),
        _row("training-text bits / byte", "train_bpb", [r.evaluated_bpb("train") for r in compared], number),
        _row("parameters", "parameters", [_parameters(r) for r in compared], number),
        _row("FLOPs / token", "flops_per_token", [cost and cost.flops_per_token for cost in costs], scientific),
        _row("tokens", "tokens", [r.last("tokens") for r in compared], scientific),
        _row("training FLOPs", "flops", [r.last("flops") for r in compared], scientific),
        _row("tokens / s (median)", "", [r.median("tokens_per_second") for r in compared], lambda v: number(v, 0)),
        _row("time in training steps", "", [r.training_seconds for r in compared], duration),
    ]
    tags = [code_span(r.tag) for r in compared]
    ratio = [" / ".join(tags)] if len(compared) == 2 else []
    header = ["", *tags, *ratio, *PAPER_COLUMNS, "paper: GKA / dot product"]
    if run.fact("n_layer") != PAPER_DEPTH:  # the paper's model is comparable only at its own size
        header, rows = header[:-3], [row[:-3] for row in rows]
    lines = []
    for other in others:
        parts = ["mixer"] if run.attention != other.attention else []
        parts += [
            f"{name} ({code_span(one)} / {code_span(two)})"
            for name, (one, two) in differing_settings(run, other).items()
        ]
        lines.append(f"Differs from {code_span(other.tag)} in: {', '.join(parts) or 'no setting'}.")
        if not same_machine(run, other):
            lines[-1] += " The machines differ, so speeds and times are not comparable."
            for row in rows[-2:]:
                row[3 if ratio else 1 + compared.index(other)] = MISSING
    return ["## Numbers", markdown_table(header, rows), *lines]


def _row(label: str, key: str, values: Sequence[float | None], show: Callable[[float | None], str]) -> list[str]:
    """Build a row of the table of numbers, with the paper's values of `key`."""
    ratio = [_ratio(*values)] if len(values) == 2 else []
    paper = PAPER.get(key, (None, None))
    return [label, *map(show, values), *ratio, *(map(show, paper)), _ratio(*paper)]


def _ratio(one: float | None, other: float | None) -> str:
    return MISSING if one is None or not other else f"{one / other:.2f}"


def _parameters(run: TrainedRun) -> int | None:
    return run.accounting.total_parameters if run.accounting else run.fact("parameters")


def _bandwidths(run: TrainedRun) -> list[str]:
    _, sigma, layers = run.bandwidths
    if not layers:
        return []
    plot_bandwidth_training(run, run.folder / "plots" / "bandwidth_training.png")
    plot_bandwidth_depth(run, run.folder / "plots" / "bandwidth_depth.png")
    final = sigma[-1][np.isfinite(sigma[-1])]
    reach = f"{final.min():.3f} to {final.max():.3f}" if final.size else MISSING
    lost = f" Of these, {sigma[-1].size - final.size} are not finite." if final.size < sigma[-1].size else ""
    return [
        "## Bandwidths",
        f"σ of {sigma[-1].size} heads: {number(run.bandwidth_start, 3)} at the start, {reach} at the end.{lost} A head "
        "with a small σ attends to positions with nearly equal features. A head with a large σ averages over many.",
        "![Bandwidth of each head over training](plots/bandwidth_training.png)",
        "![Final bandwidth by layer](plots/bandwidth_depth.png)",
    ]


def _heads(run: TrainedRun, name: str) -> list[str]:
    if (run.folder / ATTENTION_PAGE).is_file():
        return ["## Attention", f"[Where each head looks, and why]({ATTENTION_PAGE})"]
    command = f"python -m scripts.visualize --run {shlex.quote(name)}"
    return ["## Attention", f"No attention page yet. To make it, run {code_span(command)}."]


def _components(run: TrainedRun) -> list[str]:
    """Report how Gaussian mixture attention uses its components at the last step. Empty without mixture layers."""
    last = run.train[-1]
    layers = last.get("component_entropy_layers")
    if not layers:
        return []
    declared = mixer_options().get("mixture_components", {}).values()
    K = run.fact("mixture_components") or next((option.default for option in declared), "K")
    rows = []
    for layer, entropies, dead in zip(layers, last["component_entropy"], last["dead_components"]):
        used = [number(float(np.exp(entropy)), 1) for entropy in entropies]
        rows.append([str(layer), ", ".join(used), ", ".join(str(int(count)) for count in dead)])
    return [
        "## Components",
        f"{K} Gaussian components per head, over the keys of the last micro-batch. In use: exp of the entropy of the "
        f"mean responsibilities, {K} if all components get equal shares. Dead: less than a hundredth of that share.",
        markdown_table(["layer", "in use, by head", "dead, by head"], rows),
    ]


def _scores(run: TrainedRun, compared: Sequence[TrainedRun], name: str) -> list[str]:
    """Build the table of accuracy and centered score per task for each run and the paper."""
    lines = ["## Scores"]
    if not run.evaluation:
        lines.append(f"Not evaluated yet: {code_span(f'python -m scripts.base_eval --run {shlex.quote(name)}')}.")
    elif run.evaluation.get("step") != run.train[-1]["step"]:
        lines.append(f"These are the scores of step {run.evaluation.get('step')}, not of the last step.")
    tasks = [{task["name"]: task for task in r.tasks} for r in compared]
    rows = []
    for task in dict.fromkeys(name for by_name in tasks for name in by_name):
        found = [by_name.get(task, {}) for by_name in tasks]
        chance = next((t["chance"] for t in found if t.get("chance") is not None), None)
        centered = [t.get("centered") for t in found]
        paper = reversed(PAPER_SCORES.get(task, (None, None)))
        rows.append([plain(task), number(chance, 2), *map(_percent, found), *map(number, (*centered, *paper))])
    for key, (label, paper) in PAPER_MEANS.items():
        means = [r.evaluation.get(key) for r in compared]
        if any(mean is not None for mean in means):
            rows.append([label, MISSING, *[MISSING] * len(compared), *map(number, (*means, *reversed(paper)))])
    own = [f"{code_span(r.tag)}: {score}" for score in ("accuracy", "centered") for r in compared]
    header = ["task", "chance", *own, *PAPER_COLUMNS]
    if run.fact("n_layer") != PAPER_DEPTH:
        header, rows = header[:-2], [row[:-2] for row in rows]
    if rows:
        lines.append(markdown_table(header, rows))
        lines.append("Centered scores are 0 at chance and 1 if all is right, as in the paper. ± is one standard error.")
    return lines


def _percent(task: dict) -> str:
    if task.get("accuracy") is None:
        return MISSING
    error = "" if task.get("stderr") is None else f" ± {100 * task['stderr']:.1f}"
    return f"{100 * task['accuracy']:.1f}{error} %"


def _samples(run: TrainedRun) -> list[str]:
    samples = run.evaluation.get("samples") or []
    lines = ["## Samples", "Each line shows a prompt, ▸, and the model's continuation:"] if samples else []
    return lines + [code_block(f"{sample.get('prompt', '')} ▸{sample.get('text', '')}") for sample in samples]


def _chat(chat: TrainedRun | None, name: str) -> list[str]:
    """Report scores and replies of the newest chat run fine-tuned from the run `name`."""
    if chat is None:
        command = f"python -m scripts.chat_sft --base {shlex.quote(name)}"
        return ["## Chat", f"Not fine-tuned yet: {code_span(command)}."]
    losses = chat.validation("val_loss")
    losses = losses[np.isfinite(losses)]
    fell = f"; validation loss {losses[0]:.3f} → {losses[-1]:.3f} nats per token" if len(losses) else ""
    data, steps = code_span(chat.part("settings").get("data") or MISSING), chat.train[-1]["step"]
    lines = [
        "## Chat",
        f"{code_span(chat.tag)}: {steps:,} steps on conversations ({data}) in {duration(chat.training_seconds)}{fell}.",
    ]
    if not chat.evaluation:
        command = f"python -m scripts.chat_eval --run {shlex.quote(chat.folder.name)}"
        return [*lines, f"Not evaluated yet: {code_span(command)}."]
    if chat.evaluation.get("step") != steps:
        lines.append(f"These are the scores of step {chat.evaluation.get('step')}, not of the last step.")
    rows = []
    for task in chat.tasks:
        about = plain(task["name"]), plain(task.get("measures") or MISSING)
        rows.append([*about, _percent(task), number(task.get("chance"), 3), number(task.get("items"))])
    lines.append(markdown_table(["task", "asks for", "accuracy", "chance", "questions"], rows, left=2))
    exchanges = [
        f"user       {reply.get('prompt')}\nassistant  {reply.get('reply')}    "
        + ("[right]" if reply.get("right") else f"[wrong: {reply.get('answer')}]")
        for task in chat.tasks
        if task.get("type") == "generation"
        for reply in (task.get("replies") or [])[:REPLIES]
    ]
    if exchanges:
        lines += ["The first questions of each task that is answered in words:", code_block("\n\n".join(exchanges))]
    return lines


def _setup(run: TrainedRun) -> str:
    devices = run.fact("world_size")
    times = f"{devices} × " if isinstance(devices, int) and devices > 1 else ""
    compiled = {True: ", compiled", False: ", not compiled"}.get(run.fact("compiled"), "")
    mfu = run.model_flops_utilization
    share = "MFU unknown for this hardware" if mfu is None else f"{100 * mfu:.1f} % of the peak (MFU)"
    step, planned, batch = run.train[-1]["step"], run.fact("num_iterations"), run.fact("total_batch_size")
    of = f" of {number(planned)}" if not run.finished and planned else ""
    config, shape, groups = run.gpt_config, "not recorded", MISSING
    if config is not None:
        shape = f"{config.n_layer} layers, {config.n_head} heads of {config.head_dim}, width {config.n_embd}, context "
        shape += f"{config.sequence_len:,} (windows {config.window_pattern}), vocabulary {config.vocab_size:,}"
        shape += config.variant
        groups = ", ".join(f"{group} {size:,}" for group, size in run.accounting.parameters.items() if size)
    rows = [
        ("model", shape),
        ("parameters", groups),
        ("training", f"{step:,} steps{of} of {number(batch)} tokens, seed {plain(run.fact('seed'))}"),
        ("data", code_span(run.part("settings").get("data") or "not recorded")),
        ("tokenizer", code_span(run.part("settings").get("tokenizer") or "not recorded")),
        ("hardware", times + plain(run.fact("hardware") or "not recorded")),
        ("speed (median)", f"{si(run.median('flops_per_second'))} FLOP/s, {share}"),
        ("software", f"torch {plain(run.fact('torch') or MISSING)}, {plain(run.fact('dtype') or MISSING)}{compiled}"),
        ("started", plain(run.fact("created") or "not recorded")),
    ]
    return markdown_table(["", ""], rows, left=2)
