"""Evaluate a trained base model: bits per byte, tasks in context, samples.

    python -m scripts.base_eval                                     the run trained last, everything that can be had
    python -m scripts.base_eval --run d4-gaussian --eval bpb,sample
    python -m scripts.base_eval --run d20-gaussian --eval core --eval-bundle eval_bundle.zip
    python -m scripts.base_eval --tasks copa,winograd,true_continuation --max-per-task 200

`--eval tasks` is the paper's six tasks, tasks of the bundle that are not CORE's, and two tasks made from the validation
text, which need no bundle; `core` adds all 22 of CORE. The bundle is a folder or .zip in nanochat's layout. With
`--eval-bundle auto` it is NANOGKA_BASE_DIR/eval_bundle, downloaded from NANOGKA_EVAL_BUNDLE_URL if that is set.

Everything goes to evaluation.json in the run's folder, written anew after each part; the last line printed is the same.
"""

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from nanogka.data import Corpus, open_corpus, validation_batches
from nanogka.evaluate import TaskData, TaskResult, core_score, measure_bits_per_byte, six_task_mean
from nanogka.evaluate.in_context import PredictionsFile, default_batch_tokens, evaluate_task
from nanogka.evaluate.scores import format_table
from nanogka.flags import add_flags, flag, from_flags
from nanogka.generate import Engine
from nanogka.problems import Problems, run_script
from nanogka.runtime import base_dir, pick_device, pick_dtype
from nanogka.train.checkpoint import LoadedRun, find_run, load_run
from tasks import CORE
from tasks.selection import (
    SHA256_VARIABLE,
    URL_VARIABLE,
    BundleSource,
    attempt,
    default_names,
    find_bundle,
    load_tasks,
)

PARTS = ("bpb", "tasks", "core", "sample")
# The loss is taken of all positions at once: at most this many float32 logits (half a GiB) in a batch.
LOGITS_PER_BATCH = 2**27
SAMPLE_PROMPTS = (
    "The with statement",
    "A list is",
    "The capital of France is",
    "If yesterday was Friday, then tomorrow will be",
    "My favourite",
)
SAMPLE_TOKENS = 48


@dataclass(frozen=True)
class EvalSettings:
    """What `scripts.base_eval` takes."""

    run: str = flag("", "a run's folder or tag (default: the run trained last)")
    checkpoint: str = flag("", "the folder of one checkpoint of a run, in place of --run")
    step: int | None = flag(None, "which checkpoint of the run (default: the newest sound one)")
    eval: str = flag("bpb,tasks,sample", f"what to do, of {', '.join(PARTS)}, with commas between")
    data: str = flag("", "corpus of the text (default: the one the run was trained on)")
    eval_bundle: str = flag("auto", "a folder or .zip in nanochat's layout; auto, download, or none")
    eval_bundle_url: str = flag("", f"where download finds the .zip (default: {URL_VARIABLE}, else nanochat's)")
    eval_bundle_sha256: str = flag("", f"what the .zip must hash to (default: {SHA256_VARIABLE}, else unchecked)")
    tasks: str = flag("", "these tasks only, with commas between")
    max_per_task: int | None = flag(None, "items of each task at most")
    split_tokens: int = flag(262_144, "tokens of each split for bits per byte, about; at most those there are")
    batch_tokens: int | None = flag(None, "tokens of a batch at most, with padding (default: what suits the device)")
    predictions: str = flag("", "write a line of JSON for each item of each task to this file")
    output: str = flag("", "where to write (default: evaluation.json in the run's folder)")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "compute dtype: auto, float32, bfloat16 or float16")

    @property
    def parts(self) -> list[str]:
        return [part.strip() for part in self.eval.split(",") if part.strip()]

    def check(self, problems: Problems) -> None:
        """Record every setting that is out of range by itself."""
        known = bool(self.parts) and set(self.parts) <= set(PARTS)
        problems.check(known, "--eval", self.eval, f"one or more of {', '.join(PARTS)}, with commas between")
        for name in ("max_per_task", "split_tokens", "batch_tokens"):
            value = getattr(self, name)
            flag_name = "--" + name.replace("_", "-")
            problems.check(value is None or value >= 1, flag_name, value, "an integer of at least 1")
        for name in ("predictions", "output"):
            value = getattr(self, name)
            parent = Path(value).expanduser().parent
            problems.check(not value or parent.is_dir(), f"--{name}", value, "a file in a folder that exists")
        alone = not (self.run and self.checkpoint)
        problems.check(alone, "--run and --checkpoint", (self.run, self.checkpoint), "one of the two")


@dataclass
class Prepared:
    """All that is needed, opened and checked, before anything is computed."""

    settings: EvalSettings
    run: LoadedRun
    corpus: Corpus
    tasks: list[TaskData]
    notes: list[str]

    @property
    def output(self) -> Path:
        return Path(self.settings.output or self.run.folder / "evaluation.json").expanduser()


def prepare(settings: EvalSettings, problems: Problems) -> Prepared:
    """Open the run, the text and the tasks; raises ValueError with every problem found."""
    settings.check(problems)
    notes: list[str] = []
    run = open_run(settings, problems)
    data = settings.data or (run.config["settings"]["data"] if run else "")
    corpus = attempt(problems, lambda: open_corpus(data)) if data else None
    tasks = open_tasks(settings, corpus, problems, notes) if {"tasks", "core"} & set(settings.parts) else []
    problems.raise_any()
    return Prepared(settings, run, corpus, tasks, notes)


def open_run(settings: EvalSettings, problems: Problems) -> LoadedRun | None:
    """The model to evaluate, on its device and in its compute dtype; None with the reason in `problems`."""
    device = attempt(problems, lambda: pick_device(settings.device))
    dtype = attempt(problems, lambda: pick_dtype(settings.dtype, device or torch.device("cpu")))
    run, step = settings.run or None, settings.step
    if settings.checkpoint:
        folder = Path(settings.checkpoint).expanduser().resolve()
        number = folder.name.removeprefix("step_")
        valid = folder.is_dir() and number.isdigit()
        takes = "the folder of a checkpoint, .../checkpoints/step_000100"
        if not problems.check(valid, "--checkpoint", settings.checkpoint, takes):
            return None
        run, step = folder.parent.parent, int(number)
    folder = attempt(problems, lambda: find_run(run))
    if folder is None or device is None or dtype is None:
        return None
    return attempt(problems, lambda: load_run(folder, device, step, dtype))


def open_tasks(settings: EvalSettings, corpus: Corpus | None, problems: Problems, notes: list[str]) -> list[TaskData]:
    """The tasks to run, their items read and checked; a note where there is no bundle."""
    core = "core" in settings.parts
    source = BundleSource(
        settings.eval_bundle,
        base_dir() / "eval_bundle",
        settings.eval_bundle_url or os.environ.get(URL_VARIABLE),
        settings.eval_bundle_sha256 or os.environ.get(SHA256_VARIABLE),
    )
    if source.may_download and problems.lines:
        return []  # nothing is fetched for a call that will be refused
    found = len(problems.lines)
    bundle = attempt(problems, lambda: find_bundle(source, needed=core, notes=notes))
    if corpus is None or len(problems.lines) > found:
        return []
    names = [name.strip() for name in settings.tasks.split(",") if name.strip()] or default_names(bundle, core)
    return attempt(problems, lambda: load_tasks(names, bundle, corpus, settings.max_per_task)) or []


def run_bpb(prepared: Prepared) -> dict:
    """Bits per byte of both splits."""
    run, settings = prepared.run, prepared.settings
    length, vocab_size = run.model.config.sequence_len, run.model.config.vocab_size
    batch_tokens = settings.batch_tokens or default_batch_tokens(run.model.device)
    wanted = max(1, settings.split_tokens // length)  # rows
    rows = max(1, min(wanted, min(batch_tokens, LOGITS_PER_BATCH // vocab_size) // length))
    options = {"batch_size": rows, "sequence_len": length, "max_batches": -(-wanted // rows)}
    values, counts = {}, {}
    for split in ("train", "val"):
        batches = validation_batches(prepared.corpus, run.tokenizer, split=split, **options)
        pairs = ((batch.inputs, batch.targets) for batch in batches)
        measured = measure_bits_per_byte(run.model, pairs, run.tokenizer.token_bytes())
        values[split] = measured.value if math.isfinite(measured.value) else None  # JSON has no NaN
        counts[split] = {"bytes": measured.bytes, "tokens": measured.tokens}
        print(f"{split} bits per byte  {measured.value:.4f}  ({measured.tokens:,} tokens, {measured.bytes:,} bytes)")
    return {"bpb": values, "bpb_counts": counts, "val_bytes": counts["val"]["bytes"]}


def run_tasks(prepared: Prepared) -> dict:
    """Every task, the table of scores."""
    settings, run = prepared.settings, prepared.run
    results: list[TaskResult] = []
    with PredictionsFile(settings.predictions) as file:
        for data in prepared.tasks:
            options = {"max_items": settings.max_per_task, "batch_tokens": settings.batch_tokens}
            result, predictions = evaluate_task(run.model, run.tokenizer, data, **options)
            file.write(predictions)
            results.append(result)
    print(format_table(results, CORE), flush=True)
    return {
        "tasks": [result.to_json() for result in results],
        "six_task_mean": six_task_mean(results),
        "core": core_score(results, CORE),
    }


def run_samples(prepared: Prepared) -> dict:
    """Continuations of a few prompts, the likeliest token each time."""
    engine = Engine(prepared.run.model, prepared.run.tokenizer)
    samples = []
    for prompt in SAMPLE_PROMPTS:
        room = engine.context - len(engine.encode(prompt))
        if room >= 1:  # a model of a few tokens' context has no place for every prompt
            text = engine.generate(prompt, max_tokens=min(SAMPLE_TOKENS, room), temperature=0.0, seed=0)
            samples.append({"prompt": prompt, "text": text})
            print(f"> {prompt}{text}")
    return {"samples": samples}


def evaluate(settings: EvalSettings, problems: Problems) -> int:
    """Do what the settings ask for."""
    prepared = prepare(settings, problems)
    run, began = prepared.run, time.perf_counter()
    print(f"{run.folder.name}, step {run.step}, on {run.model.device} in {run.model.compute_dtype}")
    for note in prepared.notes:
        print(note)
    document = {
        "run": run.folder.name,
        "step": run.step,
        "checkpoint": run.checkpoint_folder.name,
        "device": str(run.model.device),
        "dtype": str(run.model.compute_dtype).removeprefix("torch."),
        "data": str(prepared.corpus.path),
        "settings": dataclasses.asdict(settings),
        "notes": prepared.notes,
    }
    parts = {"bpb": run_bpb, "tasks": run_tasks, "sample": run_samples}
    asked = {"tasks" if part == "core" else part for part in settings.parts}
    for name, function in parts.items():
        if name in asked:
            document |= function(prepared)
            document["seconds"] = round(time.perf_counter() - began, 2)
            write_json(prepared.output, document)  # after each part: an interrupt later loses nothing
    print(f"written to {prepared.output}")
    print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    return 0


def write_json(file: Path, document: dict) -> None:
    """Write the whole file or nothing."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, file)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.base_eval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_flags(parser, EvalSettings)
    args = parser.parse_args(argv)

    def body() -> int:
        problems = Problems()
        return evaluate(from_flags(EvalSettings, args, problems), problems)

    return run_script(body, "base_eval")


if __name__ == "__main__":
    sys.exit(main())
