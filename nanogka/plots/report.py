"""Report on a run: report.md, report.html and their figures, built from the files in the run's folder.

If a part is missing, such as an evaluation, the report shows the command that creates it. The paper's numbers are from
arXiv 2605.02144: depth 20 on 8 GPUs, FineWeb-Edu, each mixer at its own horizon.
"""

import math
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import numpy as np

from nanogka.common.digest import digest, digest_of_file
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
from nanogka.evaluate.intervals import Interval, paired_difference, share_interval
from nanogka.evaluate.results import PAPER_MEAN, PAPER_SCORES
from nanogka.plots.compression import compress
from nanogka.plots.figures import plot_bandwidths, plot_curves, plot_skills, skill_text
from nanogka.plots.html import write_document
from nanogka.plots.trained_run import TrainedRun, check_comparable, differing_settings, find_chat_run, same_machine
from nanogka.runs import CONFIG, EVALUATIONS, METRICS
from nanogka.web.page import is_made_from

ATTENTION_PAGE = "visualization/index.html"  # that scripts.visualize writes
MODEL_PAGE = "model.html"  # that scripts.page writes
NO_OTHER = "with no run (--compare RUN)"
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


def write_report(
    run: TrainedRun, runs: Path, others: Sequence[TrainedRun] = (), overwrite: bool = True
) -> tuple[Path, list[str]]:
    """Write report.md, report.html and plots/*.png to a run's folder.

    Returns the path of report.html and a five-line summary, which is empty if the report exists already and is not to
    be overwritten. `others`: runs to compare with. `runs`: the folder of runs; commands refer to its runs by name.
    Raises ValueError for a run that cannot be compared.
    """
    for other in others:
        check_comparable(run, other)
    chat = find_chat_run(run)
    made_from = _digest([run, *others, *([chat] if chat else [])])
    page = run.folder / "report.html"
    if not overwrite and is_made_from(page, made_from):
        return page, []
    report = Report(run, list(others), chat, runs)
    write_document(page.with_suffix(".md"), report.sections(), run.tag, made_from)
    return page, report.summary()


def _digest(runs: Sequence[TrainedRun]) -> str:
    """A hash of the files that a report on these runs shows, and of the code that draws it."""
    shown = []
    for run in runs:
        files = [run.folder / CONFIG, run.folder / METRICS, *(run.folder / name for name in EVALUATIONS.values())]
        pages = [(run.folder / page).is_file() for page in (ATTENTION_PAGE, MODEL_PAGE)]
        shown.append([run.tag, [digest_of_file(path) for path in files], pages])
    return digest(shown, ("nanogka.plots", "nanogka.web"))


@dataclass(frozen=True)
class Report:
    """A report on `run`, compared with `others`."""

    run: TrainedRun
    others: list[TrainedRun]
    chat: TrainedRun | None  # the newest chat run that was fine-tuned from the run
    folder: Path  # of the runs that commands refer to by name

    @property
    def runs(self) -> list[TrainedRun]:
        return [self.run, *self.others]

    @property
    def name(self) -> str:
        """Name of the run in commands."""
        return self._name_of(self.run)

    def _name_of(self, run: TrainedRun) -> str:
        """The tag of a run in the folder of runs, and the path of one elsewhere."""
        return run.folder.name if run.folder.resolve().parent == self.folder.resolve() else str(run.folder)

    @cached_property
    def compressors(self) -> tuple[int, dict[str, float]]:
        """The size and the compressors' bits per byte of the run's validation text. Empty if the text is gone."""
        try:
            return compress(open_corpus(str(self.run.part("settings")["data"])).documents("val"))
        except (KeyError, ValueError, OSError):
            return 0, {}

    def sections(self) -> list[str]:
        """The sections as Markdown, the figures written: first the pictures, then the tables, last the samples."""
        talks = self._name_of(self.chat or self.run)
        return [
            f"# {code_span(self.run.tag)}: {plain(self.run.label)}, depth {self.run.gpt_config.n_layer}",
            code_block("\n".join(self.summary())),
            *self._learning_curves(),
            *self._chat(),
            *_bandwidths(self.run),
            *self._attention(),
            *self._replies(),
            *self._numbers(),
            *self._scores(),
            *_components(self.run),
            "## Setup",
            _setup(self.run),
            *_samples(self.run),
            "Talk to the model:",
            code_block(f"python -m scripts.chat_cli --run {shlex.quote(talks)}", "bash"),
        ]

    def summary(self) -> list[str]:
        """Five lines of plain text."""
        run, (_, scale) = self.run, self.compressors
        parameters, seconds = run.accounting.total_parameters, duration(run.training_seconds)
        speed = number(run.median("tokens_per_second"), 0)
        planned, step = run.fact("num_iterations"), run.train[-1]["step"]
        early = "" if run.finished or planned is None else f", stopped after {step:,} of {planned:,} steps"
        evaluated = run.evaluated_bpb("val")
        if evaluated is None:
            sample = _sample(run.validations[-1].get("val_tokens") if run.validations else None)
            bpb = f"{number(run.last_validation)} bits per byte during training{sample}"
        else:
            bpb = f"{number(evaluated)} bits per byte{_sample(run.measured('val', 'tokens'))}"
        values = ", ".join(f"{name} {value:.4f}" for name, value in scale.items())
        compressed = f"; compressors on all validation text: {values}"
        scores = [
            f"{one_line(t['name'])} {_percent(t['accuracy'])} (chance {_percent(t.get('chance') or 0)})"
            for t in run.tasks
        ]
        more = f", and {len(scores) - 4} more" if len(scores) > 4 else ""
        return [
            f"model: {run.tag}, {run.label}, depth {run.gpt_config.n_layer}, {parameters:,} parameters",
            f"trained: {number(run.last('tokens'))} tokens in {seconds}, median {speed} tokens/s{early}",
            f"validation: {bpb}{compressed if scale else ''}",
            f"scores: {', '.join(scores[:4]) or 'not evaluated yet'}{more}",
            f"compared: {'; '.join(_ratios(run, other) for other in self.others) or NO_OTHER}",
        ]

    def _chat(self) -> list[str]:
        """Scores of the chat run."""
        chat = self.chat
        if chat is None:
            command = f"python -m scripts.chat_sft --base {shlex.quote(self.name)}"
            return ["## Chat", f"Not fine-tuned yet: {code_span(command)}."]
        losses = chat.validation("val_loss")
        losses = losses[np.isfinite(losses)]
        fell = f"; validation loss {losses[0]:.3f} → {losses[-1]:.3f} nats per token" if len(losses) else ""
        data, steps = code_span(chat.part("settings").get("data") or MISSING), chat.train[-1]["step"]
        seconds = duration(chat.training_seconds)
        lines = [
            "## Chat",
            f"{code_span(chat.tag)}: {steps:,} steps on conversations ({data}) in {seconds}{fell}.",
            *_is_evaluated(chat, f"python -m scripts.chat_eval --run {shlex.quote(chat.folder.name)}"),
        ]
        if chat.tasks:
            skills = {str(task["name"]): (_share(task), task.get("chance")) for task in chat.tasks}
            plot_skills(skills, self.run.folder / "plots" / "skills.png")
            values = [f"{plain(name)} {skill_text(share)}" for name, (share, _) in skills.items()]
            lines.append(f"![Right answers: {', '.join(values)}](plots/skills.png)")
            if refused := [plain(name) for name, (_, constant) in skills.items() if constant == 1]:
                lines.append(f"To refuse is right in all questions of {' and '.join(refused)}.")
        if (chat.folder / MODEL_PAGE).is_file():
            page = os.path.relpath(chat.folder / MODEL_PAGE, self.run.folder)
            lines.append(f"[Talk to it in the browser]({quote(page)})")
        return lines

    def _replies(self) -> list[str]:
        """One exchange of each skill of the chat run, not chosen by its outcome."""
        exchanges = []
        for task in self.chat.tasks if self.chat else ():
            for reply in (task.get("replies") or [])[:1] if task.get("type") == "generation" else ():
                verdict = "[right]" if reply.get("right") else f"[wrong: {reply.get('answer')}]"
                exchanges.append(f"user       {reply.get('prompt')}\nassistant  {reply.get('reply')}    {verdict}")
        heading = "The first question of each skill that is answered in words, right or wrong as it came:"
        return ["## Replies", heading, code_block("\n\n".join(exchanges))] if exchanges else []

    def _learning_curves(self) -> list[str]:
        """Draw the curves. Their last point is another sample of text than the final figure, so it says which."""
        size, scale = self.compressors
        plot_curves(self.runs, self.run.folder / "plots" / "curves.png", scale)
        lines = ["## Learning curves", "![Learning curves](plots/curves.png)"]
        if scale:
            values = " and ".join(f"{name} has {value:.4f}" for name, value in scale.items())
            lines.append(f"On {size:,} bytes of the validation text, {values} bits per byte.")
        return lines

    def _numbers(self) -> list[str]:
        """Build the table of quality, speed and costs, with the ratio of two runs and the paper's numbers."""
        run, runs = self.run, self.runs
        costs = [r.accounting for r in runs]
        times = ("tokens / s (median)", "time in training steps")
        learned = all(r.measured("train", "learned") for r in runs if r.evaluation)
        read = "text that the run has read," if learned else "training split,"
        rows = [
            _row("validation bits / byte, final", "val_bpb", [r.evaluated_bpb("val") for r in runs], number),
            _plain_row("its 95 % interval", [_bounds(r.interval("val")) for r in runs]),
            _plain_row("validation tokens, final", [number(r.measured("val", "tokens")) for r in runs]),
            _row("validation bits / byte, last in training", "", [r.last_validation for r in runs], number),
            _plain_row("validation tokens, last in training", [number(r.last_validation_tokens) for r in runs]),
            _row(f"{read} bits / byte", "train_bpb", [r.evaluated_bpb("train") for r in runs], number),
            _row("parameters", "parameters", [cost.total_parameters for cost in costs], number),
            _row("FLOPs / token", "flops_per_token", [cost.flops_per_token for cost in costs], scientific),
            _row("tokens", "tokens", [r.last("tokens") for r in runs], scientific),
            _row("training FLOPs", "flops", [r.last("flops") for r in runs], scientific),
            _row(times[0], "", [r.median("tokens_per_second") for r in runs], lambda value: number(value, 0)),
            _row(times[1], "", [r.training_seconds for r in runs], duration),
        ]
        rows = [row for row in rows if set(row[1 : 1 + len(runs)]) != {MISSING}]
        lines = []
        for other in self.others:
            parts = ["mixer"] if run.attention != other.attention else []
            for name, (one, two) in differing_settings(run, other).items():
                parts.append(f"{name} ({code_span(one)} / {code_span(two)})")
            lines.append(f"Differs from {code_span(other.tag)} in: {', '.join(parts) or 'no setting'}.")
            if not same_machine(run, other):
                lines[-1] += " The machines differ, so speeds and times are not comparable."
                for row in (row for row in rows if row[0] in times):
                    row[3 if len(runs) == 2 else 1 + runs.index(other)] = MISSING
            lines += _difference(run, other)
        tags = [code_span(r.tag) for r in runs]
        header = [
            "",
            *tags,
            *([" / ".join(tags)] if len(runs) == 2 else []),
            *PAPER_COLUMNS,
            "paper: GKA / dot product",
        ]
        if run.gpt_config.n_layer != PAPER_DEPTH:  # the paper's model is comparable only at its own size
            header, rows = header[:-3], [row[:-3] for row in rows]
        return ["## Numbers", markdown_table(header, rows), *lines]

    def _scores(self) -> list[str]:
        """Build the table of accuracy and centered score per task for each run and the paper."""
        run, runs = self.run, self.runs
        lines = ["## Scores", *_is_evaluated(run, f"python -m scripts.base_eval --run {shlex.quote(self.name)}")]
        tasks = [{task["name"]: task for task in r.tasks} for r in runs]
        rows = []
        for task in dict.fromkeys(name for by_name in tasks for name in by_name):
            found = [by_name.get(task, {}) for by_name in tasks]
            chance = next((t["chance"] for t in found if t.get("chance") is not None), None)
            centered = [t.get("centered") for t in found]
            paper = reversed(PAPER_SCORES.get(task, (None, None)))
            rows.append([plain(task), _percent(chance), *map(_accuracy, found), *map(number, (*centered, *paper))])
        for key, (label, paper) in PAPER_MEANS.items():
            means = [r.evaluation.get(key) for r in runs]
            if any(mean is not None for mean in means):
                rows.append([label, MISSING, *[MISSING] * len(runs), *map(number, (*means, *reversed(paper)))])
        own = [f"{code_span(r.tag)}: {score}" for score in ("accuracy", "centered") for r in runs]
        header = ["task", "chance", *own, *PAPER_COLUMNS]
        if run.gpt_config.n_layer != PAPER_DEPTH:
            header, rows = header[:-2], [row[:-2] for row in rows]
        if rows:
            lines.append(markdown_table(header, rows))
            lines.append(
                "Centered scores are 0 at chance and 1 if all is right, as in the paper. Ranges are 95 % intervals."
            )
        return lines

    def _attention(self) -> list[str]:
        if (self.run.folder / ATTENTION_PAGE).is_file():
            return ["## Attention", f"[Where each head looks, and why]({ATTENTION_PAGE})"]
        command = f"python -m scripts.visualize --run {shlex.quote(self.name)}"
        return ["## Attention", f"No attention page yet. To create it, run {code_span(command)}."]


def _difference(run: TrainedRun, other: TrainedRun) -> list[str]:
    """Compare the final bits per byte of two runs, document by document. Empty if no documents are common."""
    found = paired(run, other)
    if found is None or not math.isfinite(found.half):
        return []
    verdict = "" if found.excludes_zero else " This text does not tell them apart."
    return [
        f"On the {found.count:,} validation documents that both evaluations have, {code_span(run.tag)} minus "
        f"{code_span(other.tag)} is {found.value:+.4f} bits per byte (95 % interval {found.low:+.4f} to "
        f"{found.high:+.4f}, paired by document; another seed would move both runs).{verdict}"
    ]


def paired(run: TrainedRun, other: TrainedRun) -> Interval | None:
    """The difference in bits per byte on equal documents, with its interval; None if there are none."""
    (corpus, own), (same, theirs) = run.validation_documents, other.validation_documents
    # A longer context or another packing may cut a document elsewhere. Only equal text is compared.
    common = [number for number in own if number in theirs and own[number][1] == theirs[number][1]]
    if not common or corpus != same:
        return None
    return paired_difference([own[number] for number in common], [theirs[number] for number in common])


def _sample(tokens: int | None) -> str:
    return f" ({tokens:,} tokens)" if tokens else ""


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.1f} %"


def _bounds(interval: tuple[float, float] | None) -> str:
    return MISSING if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}"


def _share(task: dict) -> Interval:
    """The share of right answers, with its 95 % interval over different items if their number is known."""
    share, items = task.get("accuracy") or 0.0, task.get("distinct") or task.get("items")
    return share_interval(share, items) if items else Interval(share, math.nan, math.nan, 0)


def _accuracy(task: dict) -> str:
    return MISSING if task.get("accuracy") is None else skill_text(_share(task))


def _ratios(run: TrainedRun, other: TrainedRun) -> str:
    runs = (run, other)
    bpb = [r.evaluated_bpb("val") for r in runs]
    bpb = [r.last_validation for r in runs] if None in bpb else bpb  # the same measurement for both runs
    speeds = [r.median("tokens_per_second") if same_machine(*runs) else None for r in runs]
    found = paired(*runs)
    less = ""
    if found and math.isfinite(found.half):
        less = f" ({found.value:+.4f}, 95 % from {found.low:+.4f} to {found.high:+.4f})"
    speed = f"{run.tag} / {other.tag}: {_ratio(*speeds)} of the tokens/s"
    return f"{speed}, {_ratio(*bpb)} of the validation bits per byte{less}"


def _samples(run: TrainedRun) -> list[str]:
    samples = run.evaluation.get("samples") or []
    lines = ["## Samples", "Each box shows a prompt, ▸, and the model's continuation:"] if samples else []
    return lines + [code_block(f"{sample.get('prompt', '')} ▸{sample.get('text', '')}") for sample in samples]


def _is_evaluated(run: TrainedRun, command: str) -> list[str]:
    """Say if a run has not been evaluated, and how to do it, or if its scores are of an earlier step."""
    if not run.evaluation:
        return [f"Not evaluated yet: {code_span(command)}."]
    step = run.evaluation.get("step")
    return [] if step == run.train[-1]["step"] else [f"These are the scores of step {step}, not of the last step."]


def _row(label: str, key: str, values: Sequence[float | None], show: Callable[[float | None], str]) -> list[str]:
    """Build a row of the table of numbers, with the paper's values of `key`."""
    ratio = [_ratio(*values)] if len(values) == 2 else []
    paper = PAPER.get(key, (None, None))
    return [label, *map(show, values), *ratio, *(map(show, paper)), _ratio(*paper)]


def _plain_row(label: str, values: Sequence[str]) -> list[str]:
    """Build a row of texts, without a ratio."""
    return [label, *values, *([MISSING] if len(values) == 2 else []), MISSING, MISSING, MISSING]


def _ratio(one: float | None, other: float | None) -> str:
    return MISSING if one is None or not other else f"{one / other:.2f}"


def _bandwidths(run: TrainedRun) -> list[str]:
    _, sigma, layers = run.bandwidths
    if not layers:
        return []
    plot_bandwidths(run, run.folder / "plots" / "bandwidth.png")
    low, high = np.nanmin(sigma[-1]), np.nanmax(sigma[-1])
    return [
        "## Bandwidths",
        f"σ of {sigma[-1].size} heads: {number(run.bandwidth_start, 3)} at the start, {low:.3f} to {high:.3f} at the "
        "end. A head with a small σ attends to positions with nearly equal features. A head with a large σ averages "
        "over many positions.",
        "![Bandwidth of each head over training](plots/bandwidth.png)",
    ]


def _components(run: TrainedRun) -> list[str]:
    """Report how Gaussian mixture attention uses its components at the last step. Empty without mixture layers."""
    last, rows = run.train[-1], []
    for layer, entropies, dead in zip(
        last.get("component_entropy_layers", ()), last.get("component_entropy", ()), last.get("dead_components", ())
    ):
        used = [number(float(np.exp(entropy)), 1) for entropy in entropies]
        rows.append([str(layer), ", ".join(used), ", ".join(str(int(count)) for count in dead)])
    if not rows:
        return []
    return [
        "## Components",
        "How many Gaussian components each head uses for the keys of the last micro-batch. In use: exp of the entropy "
        "of the mean responsibilities, which is the number of components if all get equal shares. Dead: components "
        "with less than a hundredth of an equal share.",
        markdown_table(["layer", "in use, by head", "dead, by head"], rows),
    ]


def _setup(run: TrainedRun) -> str:
    """Build the table of the model's shape, the training, the machine and the software."""

    def fact(name: str) -> str:
        return plain(run.fact(name) or MISSING)

    # MFU is model FLOPs utilization: FLOP/s of the model's own products divided by what the hardware can do.
    rate, peak, devices = run.median("flops_per_second"), run.fact("peak_flops"), run.fact("world_size") or 1
    share = f"{100 * rate / (peak * devices):.1f} % of the peak (MFU)" if rate and peak else "peak unknown"
    step, planned = run.train[-1]["step"], run.fact("num_iterations")
    of = f" of {number(planned)}" if not run.finished and planned else ""
    config = run.gpt_config
    shape = f"{config.n_layer} layers, {config.n_head} heads of {config.head_dim}, width {config.n_embd}, context "
    shape += f"{config.sequence_len:,} (windows {config.window_pattern}), vocabulary {config.vocab_size:,}"
    groups = ", ".join(f"{group} {size:,}" for group, size in run.accounting.parameters.items() if size)
    compiled = {True: ", compiled", False: ", not compiled"}.get(run.fact("compiled"), "")
    rows = [
        ("model", shape + config.variant),
        ("parameters", groups),
        ("training", f"{step:,} steps{of} of {number(run.fact('total_batch_size'))} tokens, seed {fact('seed')}"),
        ("data", code_span(run.part("settings").get("data") or MISSING)),
        ("tokenizer", code_span(run.part("settings").get("tokenizer") or MISSING)),
        ("hardware", f"{devices} × {fact('hardware')}" if devices != 1 else fact("hardware")),
        ("median speed", f"{si(rate)}FLOP/s, {share}"),
        ("software", f"torch {fact('torch')}, {fact('dtype')}{compiled}"),
        ("started", fact("created")),
    ]
    return markdown_table(["", ""], rows, left=2)
