"""One evaluation from settings to results: open and check everything, then bits per byte, tasks and samples.

Processes share the tasks. The rest, which takes seconds, is done by rank 0 alone, and so are printing and writing.
"""

import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.files import atomic_write, expand_path
from nanogka.common.formatting import one_line, printable
from nanogka.common.runtime import pick_device, pick_dtype
from nanogka.data import open_corpus
from nanogka.data.corpus import FINEWEB, Corpus
from nanogka.data.loader import validation_batches
from nanogka.evaluate.in_context import ITEMS_PER_CHUNK, ResultsCache, default_batch_tokens, evaluate_tasks
from nanogka.evaluate.measures import draw_samples, measure_bits_per_byte
from nanogka.evaluate.models import EvaluatedModel, open_hugging_face, open_run
from nanogka.evaluate.scores import PAPER_TASKS, format_table, mean_centered, write_predictions
from nanogka.evaluate.settings import EvalSettings, split_names
from nanogka.evaluate.sources import open_source
from nanogka.evaluate.task import Task, TaskData

# The losses of all positions are computed at once: at most this many float32 logits (half a GiB) per batch.
LOGITS_PER_BATCH = 2**27
CACHE_FOLDER = "evaluation"


def evaluate(settings: EvalSettings, errors: Errors, declared: Mapping[str, Task], core: Sequence[str]) -> int:
    """Evaluate as the settings say and return the exit code.

    The results are written after each part; `complete` is true in those written after the last one.
    `declared`: every known task by name; a bundle may have more. `core`: the tasks over which CORE is the mean.
    """
    ranks = Ranks.from_environment()
    settings.check(errors)
    evaluated = _open_model(settings, ranks, errors)
    data = settings.data or (evaluated.data if evaluated else "")
    corpus = errors.capture(lambda: open_corpus(data)) if data else None
    notes = evaluated.notes if evaluated else []
    if corpus and evaluated and data == evaluated.data != FINEWEB and evaluated.footers not in ("", corpus.footers):
        notes.append(f"{data} holds other text than when the run was trained on it")
    tasks = []
    if {"tasks", "core"} & set(settings.parts):
        tasks = _open_tasks(settings, corpus, errors, notes, declared, core)
    errors.raise_if_any()

    parts = {
        "bpb": lambda: _measure_bpb(settings, evaluated, corpus),
        "tasks": lambda: _run_tasks(settings, evaluated, tasks, core, ranks),
        "sample": lambda: _draw_samples(evaluated),
    }
    asked = {"tasks" if part == "core" else part for part in settings.parts}
    # quick parts first, but what all processes share before what one does alone
    order = ("bpb", "tasks", "sample") if ranks.world_size == 1 else ("tasks", "bpb", "sample")
    output = expand_path(settings.output or evaluated.folder / "evaluation.json")
    document = evaluated.to_json() | {"data": str(corpus.path) if corpus else ""}
    document |= {"settings": dataclasses.asdict(settings), "notes": notes}
    began = time.perf_counter()
    ranks.start(evaluated.model.device)
    try:
        if ranks.is_main:
            output.parent.mkdir(parents=True, exist_ok=True)
            print("\n".join([evaluated.title, *notes]), flush=True)
        wanted = [name for name in order if name in asked]
        for name in wanted:
            if name == "tasks" or ranks.is_main:
                document |= parts[name]() | {"complete": name == wanted[-1]}
                document["seconds"] = round(time.perf_counter() - began, 2)
                if ranks.is_main:
                    write_json(output, document)
    finally:
        ranks.stop()
    if ranks.is_main:
        print_end(output, document)
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
    settings: EvalSettings,
    corpus: Corpus | None,
    errors: Errors,
    notes: list[str],
    declared: Mapping[str, Task],
    core: Sequence[str],
) -> list[TaskData]:
    needed = "core" if "core" in settings.parts else ""
    if settings.hf_path and corpus is None:
        needed = needed or "--hf-path without --data"
    source = open_source(settings.eval_bundle, declared, errors, needed, notes)
    if source is None or (corpus is None and not needed):
        return []
    made = {name: task for name, task in declared.items() if task.make_items} if corpus else {}

    def load(name: str) -> TaskData:
        if name in source.tasks:
            return source.load(name)
        return TaskData(made[name], made[name].make_items(corpus.documents("val")), "validation text")

    known = list(dict.fromkeys([*made, *source.tasks]))
    default = [name for name in known if "core" in settings.parts or name in PAPER_TASKS or name not in core]
    tasks = []
    for name in dict.fromkeys(split_names(settings.tasks) or default):
        takes = ", ".join(known) + ("" if source.tasks else " (there is no bundle)")
        if errors.require(name in known, "--tasks", name, takes):
            tasks.append(errors.capture(lambda name=name: load(name).check_enough_items(settings.max_per_task)))
    return [data for data in tasks if data is not None]


def _measure_bpb(settings: EvalSettings, evaluated: EvaluatedModel, corpus: Corpus) -> dict:
    model, tokenizer = evaluated.model, evaluated.tokenizer
    length, vocab_size = model.config.sequence_len, model.config.vocab_size
    batch_tokens = settings.batch_tokens or default_batch_tokens(model.device)
    wanted = max(1, settings.split_tokens // length)  # rows
    rows = max(1, min(wanted, min(batch_tokens, LOGITS_PER_BATCH // vocab_size) // length))
    options = {"batch_size": rows, "sequence_len": length, "max_batches": -(-wanted // rows)}
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
    settings: EvalSettings, evaluated: EvaluatedModel, tasks: list[TaskData], core: Sequence[str], ranks: Ranks
) -> dict:
    model = evaluated.model
    batch_tokens = settings.batch_tokens or default_batch_tokens(model.device)
    shared = {  # everything of the model and its computation that may change a number, even by rounding
        **evaluated.fingerprint,
        "dtype": str(model.compute_dtype),
        "device": model.device.type,
        "batch_tokens": batch_tokens,
        "items_per_chunk": ITEMS_PER_CHUNK,
        "torch": str(torch.__version__),
    }
    cache = ResultsCache(evaluated.folder / CACHE_FOLDER, shared, ranks.rank, settings.cache)
    options = {"max_items": settings.max_per_task, "batch_tokens": batch_tokens, "ranks": ranks, "cache": cache}
    done = evaluate_tasks(model, evaluated.tokenizer, tasks, **options)
    results = [result for result, _ in done]
    if ranks.is_main:
        if cache.reused:
            print(f"scored by an earlier evaluation: {', '.join(cache.reused)} (--no-cache scores them again)")
        if settings.predictions:
            write_predictions(expand_path(settings.predictions), [predictions for _, predictions in done])
        print(format_table(results, core), flush=True)
    return {
        "tasks": [result.to_json() for result in results],
        "six_task_mean": mean_centered(results, PAPER_TASKS),
        "core": mean_centered(results, core),
    }


def _draw_samples(evaluated: EvaluatedModel) -> dict:
    samples = []
    for sample in draw_samples(evaluated.model, evaluated.tokenizer):
        samples.append(sample)
        print(printable("> {prompt}{text}".format(**sample)))
    return {"samples": samples}


def write_json(file: Path, document: dict) -> None:
    atomic_write(file, json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def print_end(file: Path, document: dict) -> None:
    """Print where the results are, and the results as one line of JSON."""
    print(f"written to {one_line(file)}")
    print(json.dumps(document, allow_nan=False))
