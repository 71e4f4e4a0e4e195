"""One evaluation of a base model, from settings to results: open and check everything, then measure part by part.

Ranks share the text and the items of tasks. Rank 0 draws samples, prints and writes.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from nanogka.common.cli import print_json
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.files import expand_path, read_json
from nanogka.common.formatting import one_line, printable
from nanogka.common.runtime import pick_device_and_dtype
from nanogka.data import open_corpus
from nanogka.data.corpus import Corpus
from nanogka.data.hub_corpora import HUB_CORPORA
from nanogka.data.loader import validation_batches
from nanogka.evaluate.bpb import BitsPerByte, draw_samples
from nanogka.evaluate.bundle import find_bundle
from nanogka.evaluate.core import ITEMS_PER_CHUNK, default_batch_tokens, evaluate_task
from nanogka.evaluate.intervals import Interval
from nanogka.evaluate.models import EvaluatedModel, open_hugging_face, open_run
from nanogka.evaluate.results import (
    PAPER_TASKS,
    TaskResult,
    digest,
    finished_results,
    format_table,
    mean_centered,
    write_json,
    write_predictions,
)
from nanogka.evaluate.settings import EvalSettings, split_names
from nanogka.evaluate.task import LoadedTask
from nanogka.evaluate.text import measure_text

# The losses of all positions are computed at once: at most this many float32 logits (half a GiB) per batch.
LOGITS_PER_BATCH = 2**27

Makers = Mapping[str, Callable[[Iterable[str]], LoadedTask]]


def evaluate(settings: EvalSettings, errors: Errors, made: Makers, core: Sequence[str]) -> None:
    """Evaluate as the settings say.

    `made` are tasks whose items are made from the validation text. `core` names the tasks over which CORE is the mean.
    The results are written after each part; `complete` is true in those written after the last one.
    """
    ranks = Ranks.from_environment()
    settings.check(errors)
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, errors)
    errors.raise_if_any()
    device = ranks.device(device)
    if settings.hf_path:
        evaluated = open_hugging_face(settings.hf_path, device, dtype)
    else:
        evaluated = open_run(settings.run, settings.step, device, dtype)
    batch_tokens = settings.batch_tokens or default_batch_tokens(device)
    corpus = _open_corpus(settings.data, evaluated)
    tasks = _open_tasks(settings, corpus, evaluated.notes, made, core)

    output = expand_path(settings.output or evaluated.folder / "evaluation.json")
    keys = [_key_of(data, evaluated, settings.max_per_task, batch_tokens) for data in tasks]
    document = evaluated.to_json() | {"data": str(corpus.path) if corpus else "", "complete": False}
    text = [corpus.fingerprint, corpus.footers] if corpus else []
    made_from = [document, evaluated.fingerprint, settings.parts, settings.split_tokens, batch_tokens, text, keys]
    document |= {"made_from": digest([*made_from, str(torch.__version__)])}
    document |= {"settings": dataclasses.asdict(settings), "notes": evaluated.notes}
    began = time.perf_counter()

    def save(**results: object) -> None:
        document.update(results, seconds=round(time.perf_counter() - began, 2))
        if ranks.is_main:
            write_json(output, document)

    if ranks.is_main:
        output.parent.mkdir(parents=True, exist_ok=True)
    with ranks.process_group(device):
        earlier = {}  # {key: result}, of rank 0, because ranks may not share a disk
        if settings.cache and not settings.predictions:
            if done := ranks.all_gather(finished_results(output, document["made_from"]))[0]:
                if ranks.is_main:
                    print(f"{evaluated.title}: evaluated already, see {one_line(output)} (--no-cache evaluates again)")
                    print_json(done, settings.json)
                return
            earlier = ranks.all_gather(_earlier_results(output))[0]
        if ranks.is_main:
            print("\n".join([evaluated.title, *evaluated.notes]), flush=True)
        if "bpb" in settings.parts:
            assert corpus is not None, "a run has been trained on text"
            save(**_measure_splits(evaluated, corpus, settings.split_tokens, batch_tokens, ranks))
        results, reused, predictions = {}, [], []
        for key, data in zip(keys, tasks):
            if key in earlier:
                results[key] = earlier[key]
                reused.append(data.task.name)
            else:
                options = {"max_items": settings.max_per_task, "batch_tokens": batch_tokens, "ranks": ranks}
                results[key], found = evaluate_task(evaluated.scorer, evaluated.tokenizer, data, **options)
                predictions += found
            save(tasks=[result.to_json() | {"key": key} for key, result in results.items()])
        scores = [*results.values()]
        if tasks:
            save(six_task_mean=mean_centered(scores, PAPER_TASKS), core=mean_centered(scores, core))
        if tasks and ranks.is_main:
            if reused:
                print(f"scored by an earlier evaluation: {', '.join(reused)} (--no-cache scores them again)")
            if settings.predictions:
                write_predictions(expand_path(settings.predictions), predictions)
            print(format_table(scores, core), flush=True)
        if "sample" in settings.parts and ranks.is_main:
            save(samples=_draw_samples(evaluated))
        save(complete=True)
    if ranks.is_main:
        print(f"written to {one_line(output)}")
        print_json(document, settings.json)


def _open_corpus(data: str, evaluated: EvaluatedModel) -> Corpus | None:
    """The text to measure: by default the run's training data. None for a model of another library."""
    data = data or evaluated.data
    if not data:
        return None
    corpus = open_corpus(data)
    # A corpus of the hub may have gained shards since, which leaves its validation shard the same.
    same = data == evaluated.data and data not in HUB_CORPORA
    if same and evaluated.footers not in ("", corpus.footers):
        evaluated.notes.append(f"{data} holds other text than when the run was trained on it")
    return corpus


def _open_tasks(
    settings: EvalSettings, corpus: Corpus | None, notes: list[str], made: Makers, core: Sequence[str]
) -> list[LoadedTask]:
    if not {"tasks", "core"} & set(settings.parts):
        return []
    bundle = find_bundle(settings.eval_bundle, required="core" in settings.parts or corpus is None)
    if bundle is None and settings.eval_bundle == "auto":
        notes.append("no evaluation bundle: only tasks made from the validation text (--eval-bundle)")
    made, in_bundle = made if corpus else {}, bundle.tasks if bundle else {}
    known = list(dict.fromkeys([*made, *in_bundle]))
    default = [name for name in known if "core" in settings.parts or name in PAPER_TASKS or name not in core]
    tasks = []
    for name in dict.fromkeys(split_names(settings.tasks) or default):
        if name not in known:
            raise ValueError(f"tasks: got {name!r}, expected {', '.join(known)}")
        if bundle is not None and name in in_bundle:
            data = bundle.load(name)
        else:
            assert corpus is not None, "without text there are no tasks made from it"
            data = made[name](corpus.documents("val"))
        tasks.append(data.check_enough_items(settings.max_per_task))
    return tasks


def _measure_splits(
    evaluated: EvaluatedModel, corpus: Corpus, split_tokens: int, batch_tokens: int, ranks: Ranks
) -> dict[str, object]:
    """Bits per byte of validation text and of training text, with their samples and intervals, and by document."""
    model, tokenizer = evaluated.gpt, evaluated.own_tokenizer
    length, vocab_size = model.config.sequence_len, model.config.vocab_size
    wanted = max(1, split_tokens // length)  # rows
    rows = max(1, min(wanted, min(batch_tokens, LOGITS_PER_BATCH // vocab_size) // length))
    options = {"batch_size": rows, "sequence_len": length, "max_tokens": wanted * length, "ranks": ranks}
    batches = {
        split: validation_batches(corpus, tokenizer, split=split, packing=evaluated.packing, **options)
        for split in ("train", "val")
    }
    read = _as_read(corpus, evaluated)
    if read and evaluated.reading:
        batches["train"] = evaluated.reading.batches(read, tokenizer, rows, wanted, ranks)
    values, counts, intervals, documents = {}, {}, {}, {}
    for split in batches:
        measured = measure_text(model, batches[split], tokenizer.token_bytes(), ranks)
        total, interval = measured.total, measured.interval
        finite = math.isfinite(total.value)
        values[split] = total.value if finite else None  # JSON has no NaN
        documents[split] = measured.to_json() if finite else {}
        counts[split] = {"bytes": total.bytes, "tokens": total.tokens, "documents": interval.count}
        intervals[split] = [interval.low, interval.high] if math.isfinite(interval.half) else None
        if ranks.is_main:
            print(_describe(split, total, interval, read is not None))
    counts["train"]["learned"] = read is not None
    return {
        "bpb": values,
        "bpb_intervals": intervals,
        "bpb_counts": counts,
        "val_bytes": counts["val"]["bytes"],
        "val_documents": {"corpus": corpus.fingerprint} | documents["val"],
    }


def _as_read(corpus: Corpus, evaluated: EvaluatedModel) -> Corpus | None:
    """The corpus as the run has read it, or None if its training text is unknown or another one."""
    reading = evaluated.reading
    if reading is None or reading.tokenizer != evaluated.own_tokenizer.fingerprint:
        return None
    hub = HUB_CORPORA.get(evaluated.data)
    if hub and corpus.folder == hub.folder:
        # More shards may have been fetched since, and the order of the documents depends on their number.
        shards = evaluated.shards or hub.shards_needed(reading.rows * reading.settings.sequence_len)
        with suppress(ValueError, OSError):
            corpus = hub.open(shards)
    return corpus if corpus.fingerprint == reading.corpus else None


def _describe(split: str, total: BitsPerByte, interval: Interval, learned: bool) -> str:
    text = {"val": "", "train": " that the run has read" if learned else ", perhaps not read by the run"}[split]
    ends = f" (95 %: {interval.low:.4f} to {interval.high:.4f})" if math.isfinite(interval.half) else ""
    sample = f"{total.tokens:,} tokens of {interval.count:,} documents{text}, {total.bytes:,} bytes"
    return f"{split} bits per byte  {total.value:.4f}{ends}, {sample}"


def _key_of(data: LoadedTask, evaluated: EvaluatedModel, max_items: int | None, batch_tokens: int) -> str:
    """A hash of everything that can change the result of a task, even by rounding."""
    deciding = {
        **evaluated.fingerprint,
        "dtype": str(evaluated.model.compute_dtype),
        "device": evaluated.model.device.type,
        "max_items": max_items,
        "batch_tokens": batch_tokens,
        "items_per_chunk": ITEMS_PER_CHUNK,
        "torch": str(torch.__version__),
        "task": [dataclasses.asdict(data.task), *data.items],
    }
    return digest(deciding)


def _earlier_results(output: Path) -> dict[str, TaskResult]:
    """{key: result} of the tasks in an earlier results file."""
    try:
        found = {entry["key"]: TaskResult.from_json(entry) for entry in read_json(output)["tasks"]}
        _ = [result.to_json() for result in found.values()]
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or an earlier version wrote it
        return {}
    return found


def _draw_samples(evaluated: EvaluatedModel) -> list[dict[str, str]]:
    samples = []
    for sample in draw_samples(evaluated.gpt, evaluated.own_tokenizer):
        samples.append(sample)
        print(printable("> {prompt}{text}".format(**sample)))
    return samples
