"""One evaluation from settings to results: open and check everything, then bits per byte, tasks and samples.

Shared over processes the tasks are: each scores its part of the items and all get the whole. The rest, which takes
seconds, is the first process's alone, and so is all that is printed and written.
"""

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from nanogka.data import Corpus, open_corpus, validation_batches
from nanogka.distributed import Ranks
from nanogka.evaluate import TaskData, core_score, evaluate_tasks, measure_bits_per_byte, six_task_mean
from nanogka.evaluate.in_context import default_batch_tokens, write_predictions
from nanogka.evaluate.journal import Journal
from nanogka.evaluate.scores import format_table
from nanogka.evaluate.suite import ITEMS_PER_CHUNK
from nanogka.generate import Engine
from nanogka.problems import Problems
from tasks import CORE
from tasks.selection import bundle_source, default_names, find_bundle, load_tasks
from tasks.settings import EvalSettings
from tasks.subject import Subject, open_subject

# The loss is taken of all positions at once: at most this many float32 logits (half a GiB) in a batch.
LOGITS_PER_BATCH = 2**27
JOURNAL_FOLDER = "evaluation"
SAMPLE_PROMPTS = (
    "The with statement",
    "A list is",
    "The capital of France is",
    "If yesterday was Friday, then tomorrow will be",
    "My favourite",
)
SAMPLE_TOKENS = 48
SAMPLE_TEMPERATURE = 0.7


@dataclass
class Prepared:
    """All that is needed, opened and checked, before anything is computed."""

    settings: EvalSettings
    subject: Subject
    corpus: Corpus | None
    tasks: list[TaskData]
    notes: list[str]
    ranks: Ranks

    @property
    def output(self) -> Path:
        """The file of the results."""
        return Path(self.settings.output or self.subject.folder / "evaluation.json").expanduser()


def prepare(settings: EvalSettings, ranks: Ranks, problems: Problems) -> Prepared:
    """Open the model, the text and the tasks; raises ValueError with every problem found."""
    settings.check(problems)
    notes: list[str] = []
    subject = open_subject(settings, ranks, problems)
    data = settings.data or (subject.data if subject else "")
    corpus = problems.attempt(lambda: open_corpus(data)) if data else None
    tasks = open_tasks(settings, corpus, problems, notes) if {"tasks", "core"} & set(settings.parts) else []
    problems.raise_any()
    return Prepared(settings, subject, corpus, tasks, notes, ranks)


def open_tasks(settings: EvalSettings, corpus: Corpus | None, problems: Problems, notes: list[str]) -> list[TaskData]:
    """The tasks to run, their items read and checked; a note where there is no bundle."""
    core = "core" in settings.parts
    source = bundle_source(settings.eval_bundle, settings.eval_bundle_url, settings.eval_bundle_sha256)
    if source.may_download and problems.lines:
        return []  # nothing is fetched for a call that will be refused
    found = len(problems.lines)
    only_bundle = bool(settings.hf_path) and corpus is None
    bundle = problems.attempt(lambda: find_bundle(source, needed=core or only_bundle, notes=notes))
    if len(problems.lines) > found or (corpus is None and not only_bundle):
        return []
    asked = [name.strip() for name in settings.tasks.split(",") if name.strip()]
    names = asked or default_names(bundle, core, corpus is not None)
    return problems.attempt(lambda: load_tasks(names, bundle, corpus, settings.max_per_task)) or []


def run_bpb(prepared: Prepared) -> dict:
    """Bits per byte of both splits."""
    model, tokenizer, settings = prepared.subject.model, prepared.subject.tokenizer, prepared.settings
    length, vocab_size = model.config.sequence_len, model.config.vocab_size
    batch_tokens = settings.batch_tokens or default_batch_tokens(model.device)
    wanted = max(1, settings.split_tokens // length)  # rows
    rows = max(1, min(wanted, min(batch_tokens, LOGITS_PER_BATCH // vocab_size) // length))
    options = {"batch_size": rows, "sequence_len": length, "max_batches": -(-wanted // rows)}
    values, counts = {}, {}
    for split in ("train", "val"):
        batches = validation_batches(prepared.corpus, tokenizer, split=split, **options)
        pairs = ((batch.inputs, batch.targets) for batch in batches)
        measured = measure_bits_per_byte(model, pairs, tokenizer.token_bytes())
        values[split] = measured.value if math.isfinite(measured.value) else None  # JSON has no NaN
        counts[split] = {"bytes": measured.bytes, "tokens": measured.tokens}
        print(f"{split} bits per byte  {measured.value:.4f}  ({measured.tokens:,} tokens, {measured.bytes:,} bytes)")
    return {"bpb": values, "bpb_counts": counts, "val_bytes": counts["val"]["bytes"]}


def run_tasks(prepared: Prepared) -> dict:
    """Every task, the table of scores; all processes take part."""
    settings, subject, ranks = prepared.settings, prepared.subject, prepared.ranks
    batch_tokens = settings.batch_tokens or default_batch_tokens(subject.model.device)
    journal = open_journal(prepared, batch_tokens)
    options = {"max_items": settings.max_per_task, "batch_tokens": batch_tokens, "new_cache": subject.new_cache}
    try:
        done = evaluate_tasks(subject.model, subject.tokenizer, prepared.tasks, **options, ranks=ranks, journal=journal)
    finally:
        journal.close()
    results = [result for result, _ in done]
    if ranks.is_main:
        if journal.reused:
            print(f"{journal.reused} chunks of items had been scored before (--anew scores them again)")
        if settings.predictions:
            write_predictions(Path(settings.predictions).expanduser(), [found for _, found in done])
        print(format_table(results, CORE), flush=True)
    return {
        "tasks": [result.to_json() for result in results],
        "six_task_mean": six_task_mean(results),
        "core": core_score(results, CORE),
    }


def open_journal(prepared: Prepared, batch_tokens: int) -> Journal:
    """The journal of this model under these settings: whatever may change a number, if only by rounding, is a key."""
    subject = prepared.subject
    keys = {
        **subject.fingerprint,
        "dtype": str(subject.model.compute_dtype),
        "device": subject.model.device.type,
        "batch_tokens": batch_tokens,
        "items_per_chunk": ITEMS_PER_CHUNK,
        "torch": str(torch.__version__),
    }
    return Journal(subject.folder / JOURNAL_FOLDER, keys, prepared.ranks.rank, anew=prepared.settings.anew)


def run_samples(prepared: Prepared) -> dict:
    """Continuations of a few prompts, drawn at a low temperature: a small model's likeliest tokens go in circles."""
    engine = Engine(prepared.subject.model, prepared.subject.tokenizer)
    samples = []
    for prompt in SAMPLE_PROMPTS:
        room = engine.context - len(engine.encode(prompt))
        if room >= 1:  # a model of a few tokens' context has no place for every prompt
            text = engine.generate(prompt, max_tokens=min(SAMPLE_TOKENS, room), temperature=SAMPLE_TEMPERATURE, seed=0)
            samples.append({"prompt": prompt, "text": text})
            print(f"> {prompt}{text}")
    return {"samples": samples}


def evaluate(settings: EvalSettings, ranks: Ranks, problems: Problems) -> int:
    """Do what the settings ask for; the results are written after each part, so that an interrupt loses nothing."""
    prepared = prepare(settings, ranks, problems)
    subject, began = prepared.subject, time.perf_counter()
    ranks.start(subject.model.device)
    try:
        document = _describe(prepared)
        for name, function in _parts(settings, ranks).items():
            if name == "tasks" or ranks.is_main:
                document |= function(prepared)
            if ranks.is_main:
                document["seconds"] = round(time.perf_counter() - began, 2)
                write_json(prepared.output, document)
    finally:
        ranks.stop()
    if ranks.is_main:
        print(f"written to {prepared.output}")
        print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    return 0


def _parts(settings: EvalSettings, ranks: Ranks) -> dict[str, Callable[[Prepared], dict]]:
    """What is asked for, in order: quick parts first, but what all processes share before what one does alone."""
    parts = {"bpb": run_bpb, "tasks": run_tasks, "sample": run_samples}
    order = ("bpb", "tasks", "sample") if ranks.world_size == 1 else ("tasks", "bpb", "sample")
    asked = {"tasks" if part == "core" else part for part in settings.parts}
    return {name: parts[name] for name in order if name in asked}


def _describe(prepared: Prepared) -> dict:
    """The head of the results; printed for people too."""
    subject, model = prepared.subject, prepared.subject.model
    dtype = str(model.compute_dtype).removeprefix("torch.")
    if prepared.ranks.is_main:
        prepared.output.parent.mkdir(parents=True, exist_ok=True)
        step = "" if subject.step is None else f", step {subject.step}"
        print("\n".join([f"{subject.name}{step}, on {model.device} in {dtype}", *prepared.notes]), flush=True)
    return {
        "run": subject.name,
        "step": subject.step,
        "checkpoint": subject.checkpoint,
        "device": str(model.device),
        "dtype": dtype,
        "data": str(prepared.corpus.path) if prepared.corpus else "",
        "settings": dataclasses.asdict(prepared.settings),
        "notes": prepared.notes,
    }


def write_json(file: Path, document: dict) -> None:
    """Write the whole file or nothing."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, file)
