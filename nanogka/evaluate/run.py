"""One evaluation of a base model, from settings to results: open and check everything, then measure part by part.

Ranks share the items of tasks. Rank 0 measures bits per byte, draws samples, prints and writes.
"""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from nanogka.common.cli import print_json
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.files import atomic_write, expand_path, read_json
from nanogka.common.formatting import one_line, printable
from nanogka.common.runtime import pick_device, pick_dtype
from nanogka.data import open_corpus
from nanogka.data.corpus import Corpus
from nanogka.data.hub_corpora import HUB_CORPORA
from nanogka.data.loader import validation_batches
from nanogka.evaluate.bpb import draw_samples, measure_bits_per_byte
from nanogka.evaluate.core import ITEMS_PER_CHUNK, default_batch_tokens, evaluate_task
from nanogka.evaluate.models import EvaluatedModel, open_hugging_face, open_run
from nanogka.evaluate.results import (
    PAPER_DEPTH,
    PAPER_TASKS,
    Prediction,
    TaskResult,
    format_table,
    mean_centered,
    write_predictions,
)
from nanogka.evaluate.settings import EvalSettings, split_names
from nanogka.evaluate.sources import open_source, require_bundle
from nanogka.evaluate.task import TaskData
from nanogka.model import GPT

# The losses of all positions are computed at once: at most this many float32 logits (half a GiB) per batch.
LOGITS_PER_BATCH = 2**27

Makers = Mapping[str, Callable[[Iterable[str]], TaskData]]


def evaluate(settings: EvalSettings, errors: Errors, made: Makers, core: Sequence[str]) -> int:
    """Evaluate as the settings say and return the exit code.

    `made` are tasks whose items are made from the validation text. `core` names the tasks over which CORE is the mean.
    The results are written after each part; `complete` is true in those written after the last one.
    """
    ranks = Ranks.from_environment()
    settings.check(errors)
    evaluated = _open_model(settings, ranks, errors)
    data = settings.data or (evaluated.data if evaluated else "")
    corpus = errors.capture(lambda: open_corpus(data)) if data else None
    notes = evaluated.notes if evaluated else []
    same = bool(corpus and evaluated) and data == evaluated.data and data not in HUB_CORPORA
    if same and evaluated.footers not in ("", corpus.footers):
        notes.append(f"{data} holds other text than when the run was trained on it")
    tasks = []
    if {"tasks", "core"} & set(settings.parts):
        tasks = _open_tasks(settings, corpus, errors, notes, made, core)
    errors.raise_if_any()

    output = expand_path(settings.output or evaluated.folder / "evaluation.json")
    document = evaluated.to_json() | {"data": str(corpus.path) if corpus else "", "complete": False}
    document |= {"settings": dataclasses.asdict(settings), "notes": notes}
    keyed = _keyed(settings, evaluated, tasks)
    if tasks:
        document["tasks"] = _finished(output, keyed) if settings.cache and not settings.predictions else []
    parts = {
        "bpb": lambda: _measure_bpb(settings, evaluated, corpus),
        "tasks": lambda: _run_tasks(settings, evaluated, keyed, core, ranks, document, output),
        "sample": lambda: _draw_samples(evaluated),
    }
    asked = {"tasks" if part == "core" else part for part in settings.parts}
    # Quick parts come first. With several ranks, the part that they share comes before those that rank 0 does alone.
    order = ("bpb", "tasks", "sample") if ranks.world_size == 1 else ("tasks", "bpb", "sample")
    wanted = [part for part in order if part in asked]
    began = time.perf_counter()
    ranks.start(evaluated.model.device)
    try:
        if ranks.is_main:
            output.parent.mkdir(parents=True, exist_ok=True)
            print("\n".join([evaluated.title, *notes]), flush=True)
        for part in wanted:
            if part == "tasks" or ranks.is_main:
                document |= parts[part]()
            if ranks.is_main:
                document["complete"] = part == wanted[-1]
                document["seconds"] = round(time.perf_counter() - began, 2)
                write_json(output, document)
    finally:
        ranks.stop()
    if ranks.is_main:
        print_end(output, document, settings.json)
    return 0


def _open_model(settings: EvalSettings, ranks: Ranks, errors: Errors) -> EvaluatedModel | None:
    """The model to evaluate, on its device and in its compute dtype; None with the reason in `errors`."""
    device = errors.capture(lambda: ranks.device(pick_device(settings.device)))
    place = device or torch.device("cpu")  # a wrong device must not hide what else is wrong
    dtype = errors.capture(lambda: pick_dtype(settings.dtype, place)) or torch.float32
    if settings.hf_path:
        return errors.capture(lambda: open_hugging_face(settings.hf_path, place, dtype))
    return errors.capture(lambda: open_run(settings.run, settings.step, place, dtype))


def _open_tasks(
    settings: EvalSettings, corpus: Corpus | None, errors: Errors, notes: list[str], made: Makers, core: Sequence[str]
) -> list[TaskData]:
    """The tasks to run; what is wrong is recorded in `errors`."""
    if errors.lines and settings.eval_bundle == "download":
        return []  # nothing is fetched for a command that fails anyway
    purpose = "CORE" if "core" in settings.parts else "" if corpus else "tasks, since there is no text to make any from"
    opener = (lambda choice: require_bundle(choice, purpose)) if purpose else open_source
    bundle = errors.capture(lambda: opener(settings.eval_bundle))
    if bundle is None and settings.eval_bundle == "auto":
        notes.append("no evaluation bundle: only tasks made from the validation text (--eval-bundle)")
    made = made if corpus else {}
    in_bundle = bundle.tasks if bundle else {}
    known = list(dict.fromkeys([*made, *in_bundle]))

    def load(name: str) -> TaskData:
        data = bundle.load(name) if name in in_bundle else made[name](corpus.documents("val"))
        return data.check_enough_items(settings.max_per_task)

    default = [name for name in known if "core" in settings.parts or name in PAPER_TASKS or name not in core]
    tasks = []
    for name in dict.fromkeys(split_names(settings.tasks) or default):
        if errors.require(
            name in known, "--tasks", name, ", ".join(known) or "no tasks: there is neither text nor bundle"
        ):
            tasks.append(errors.capture(lambda name=name: load(name)))
    return [data for data in tasks if data is not None]


def _measure_bpb(settings: EvalSettings, evaluated: EvaluatedModel, corpus: Corpus) -> dict:
    model, tokenizer = evaluated.model, evaluated.tokenizer
    length, vocab_size = model.config.sequence_len, model.config.vocab_size
    batch_tokens = _batch_tokens(settings, model)
    wanted = max(1, settings.split_tokens // length)  # rows
    rows = max(1, min(wanted, min(batch_tokens, LOGITS_PER_BATCH // vocab_size) // length))
    options = {"batch_size": rows, "sequence_len": length, "max_tokens": wanted * length}
    options["packing"] = evaluated.packing
    values, counts = {}, {}
    for split in ("train", "val"):
        batches = validation_batches(corpus, tokenizer, split=split, **options)
        pairs = ((batch.inputs, batch.targets) for batch in batches)
        measured = measure_bits_per_byte(model, pairs, tokenizer.token_bytes())
        values[split] = measured.value if math.isfinite(measured.value) else None  # JSON has no NaN
        counts[split] = {"bytes": measured.bytes, "tokens": measured.tokens}
        print(f"{split} bits per byte  {measured.value:.4f}  ({measured.tokens:,} tokens, {measured.bytes:,} bytes)")
    return {"bpb": values, "bpb_counts": counts, "val_bytes": counts["val"]["bytes"]}


def _run_tasks(
    settings: EvalSettings,
    evaluated: EvaluatedModel,
    keyed: Mapping[str, TaskData],
    core: Sequence[str],
    ranks: Ranks,
    document: dict,
    output: Path,
) -> dict:
    """Score the tasks that `document` has no result of; the document is written after each."""
    model, done, reused = evaluated.model, {}, []
    predictions: list[list[Prediction]] = []
    earlier = ranks.gather({entry["key"]: entry for entry in document.get("tasks", [])})[
        0
    ]  # ranks may not share a disk
    for key, data in keyed.items():
        if key in earlier:
            result = TaskResult.from_json(earlier[key])
            reused.append(result.name)
        else:
            options = {"max_items": settings.max_per_task, "batch_tokens": _batch_tokens(settings, model)}
            result, made = evaluate_task(model, evaluated.tokenizer, data, ranks=ranks, **options)
            predictions.append(made)
        done[key] = result
        entries = {key: result.to_json() | {"key": key} for key, result in done.items()}
        document["tasks"] = [*(earlier | entries).values()]
        if ranks.is_main:
            write_json(output, document)
    results = [*done.values()]
    if ranks.is_main:
        if reused:
            print(f"scored by an earlier evaluation: {', '.join(reused)} (--no-cache scores them again)")
        if settings.predictions:
            write_predictions(expand_path(settings.predictions), predictions)
        paper = isinstance(model, GPT) and model.config.n_layer == PAPER_DEPTH
        print(format_table(results, core, paper), flush=True)
    return {
        "tasks": [*entries.values()] if results else [],
        "six_task_mean": mean_centered(results, PAPER_TASKS),
        "core": mean_centered(results, core),
    }


def _batch_tokens(settings: EvalSettings, model) -> int:
    return settings.batch_tokens or default_batch_tokens(model.device)


def _keyed(settings: EvalSettings, evaluated: EvaluatedModel, tasks: Sequence[TaskData]) -> dict[str, TaskData]:
    """The tasks, each by a hash of everything that can change its result, even by rounding."""
    model = evaluated.model
    shared = {
        **evaluated.fingerprint,
        "dtype": str(model.compute_dtype),
        "device": model.device.type,
        "max_items": settings.max_per_task,
        "batch_tokens": _batch_tokens(settings, model),
        "items_per_chunk": ITEMS_PER_CHUNK,
        "torch": str(torch.__version__),
    }

    def key(data: TaskData) -> str:
        lines = [data.line(index) for index in range(len(data.items))]
        deciding = [shared, dataclasses.asdict(data.task), lines, [*data.items]]
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()

    return {key(data): data for data in tasks}


def _finished(output: Path, keyed: Mapping[str, TaskData]) -> list[dict]:
    """The results of these tasks in an earlier results file."""
    try:
        entries = [entry for entry in read_json(output)["tasks"] if entry["key"] in keyed]
        return [TaskResult.from_json(entry).to_json() | {"key": entry["key"]} for entry in entries]
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or an earlier version wrote it
        return []


def _draw_samples(evaluated: EvaluatedModel) -> dict:
    samples = []
    for sample in draw_samples(evaluated.model, evaluated.tokenizer):
        samples.append(sample)
        print(printable("> {prompt}{text}".format(**sample)))
    return {"samples": samples}


def write_json(file: Path, document: dict) -> None:
    """Write a results file."""
    atomic_write(file, json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def print_end(file: Path, document: dict, always_json: bool) -> None:
    """Print where the results are, and the results themselves as `print_json` does."""
    print(f"written to {one_line(file)}")
    print_json(document, always_json)
