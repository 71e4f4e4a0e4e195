"""One evaluation of a base model, from settings to results: open and check everything, then measure part by part.

Ranks share the text and the items of tasks. Rank 0 draws samples, prints and writes.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.files import expand_path
from nanogka.common.formatting import printable
from nanogka.common.runtime import pick_device_and_dtype
from nanogka.data import open_corpus
from nanogka.data.corpus import Corpus
from nanogka.data.hub_corpora import HUB_CORPORA
from nanogka.data.loader import validation_batches
from nanogka.evaluate.bpb import BitsPerByte, draw_samples, most_rows
from nanogka.evaluate.bundle import find_bundle
from nanogka.evaluate.core import default_batch_tokens, evaluate_task
from nanogka.evaluate.document import Document, key_of
from nanogka.evaluate.intervals import Interval
from nanogka.evaluate.models import damaged_checkpoints, open_hugging_face, open_run
from nanogka.evaluate.results import PAPER_TASKS, TaskResult, format_table, mean_centered, write_predictions
from nanogka.evaluate.settings import EvalSettings, split_names
from nanogka.evaluate.task import LoadedTask
from nanogka.evaluate.text import TrainedOn, measure_text, trained_on
from nanogka.runs import LoadedRun

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
        model, learned, notes = open_hugging_face(settings.hf_path, device, dtype), TrainedOn(), []
    else:
        model = open_run(settings.run, settings.step, device, dtype)
        learned = trained_on(model.own, model.own.step)
        notes = damaged_checkpoints(model.own) if settings.step is None else []
    batch_tokens = settings.batch_tokens or default_batch_tokens(device)
    corpus = _open_corpus(settings.data, learned, notes)
    tasks = _open_tasks(settings, corpus, notes, made, core)

    precision = [str(model.scorer.compute_dtype), device.type]
    computed = [model.fingerprint, precision, settings.max_per_task, batch_tokens]
    keys = [key_of([computed, dataclasses.asdict(task.task), *task.items]) for task in tasks]
    text = [corpus.fingerprint, corpus.footers, dataclasses.asdict(learned)] if corpus else []
    made_from = key_of([model.to_json(), computed, settings.parts, settings.split_tokens, text, keys])
    head = {"data": str(corpus.path) if corpus else "", "batch_tokens": batch_tokens}
    document = Document.open(model, settings, "evaluation.json", made_from, notes, ranks, **head)
    with ranks.process_group(device):
        earlier = {} if settings.predictions else document.earlier()
        if document.is_finished_by(earlier):
            return
        if "bpb" in settings.parts:
            assert corpus is not None, "a run has been trained on text"
            document.save(**_measure_splits(model.own, corpus, learned, settings.split_tokens, batch_tokens, ranks))
        finished = _finished_tasks(earlier)
        results, reused, predictions = {}, [], []
        for key, task in zip(keys, tasks):
            if key in finished:
                results[key] = finished[key]
                reused.append(task.task.name)
            else:
                options = {"max_items": settings.max_per_task, "batch_tokens": batch_tokens, "ranks": ranks}
                results[key], found = evaluate_task(model.scorer, model.tokenizer, task, **options)
                predictions += found
            document.save(tasks=[result.to_json() | {"key": key} for key, result in results.items()])
        scores = [*results.values()]
        if tasks:
            document.save(six_task_mean=mean_centered(scores, PAPER_TASKS), core=mean_centered(scores, core))
        if tasks and ranks.is_main:
            if reused:
                print(f"scored by an earlier evaluation: {', '.join(reused)} (--no-cache scores them again)")
            if settings.predictions:
                write_predictions(expand_path(settings.predictions), predictions)
            print(format_table(scores, core), flush=True)
        if "sample" in settings.parts and ranks.is_main:
            document.save(samples=_draw_samples(model.own))
        document.finish()


def _open_corpus(data: str, learned: TrainedOn, notes: list[str]) -> Corpus | None:
    """The text to measure: by default the run's training data. None for a model of another library."""
    data = data or learned.data
    if not data:
        return None
    corpus = open_corpus(data)
    # A corpus of the hub may have gained shards since, which leaves its validation shard the same.
    same = data == learned.data and data not in HUB_CORPORA
    if same and learned.footers not in ("", corpus.footers):
        notes.append(f"{data} holds other text than when the run was trained on it")
    return corpus


def _open_tasks(
    settings: EvalSettings, corpus: Corpus | None, notes: list[str], made: Makers, core: Sequence[str]
) -> list[LoadedTask]:
    if not {"tasks", "core"} & set(settings.parts):
        return []
    required, auto = "core" in settings.parts, settings.eval_bundle == "auto"
    bundle = find_bundle(settings.eval_bundle, notes, required=required or corpus is None)
    if bundle is None and auto:
        notes.append("no evaluation bundle: only tasks made from the validation text (--eval-bundle)")
    made, in_bundle = made if corpus else {}, bundle.tasks if bundle else {}
    known, asked = list(dict.fromkeys([*made, *in_bundle])), split_names(settings.tasks)
    default = [name for name in known if required or name in PAPER_TASKS or name not in core]
    tasks = []
    for name in dict.fromkeys(asked or default):
        if name not in known:
            raise ValueError(f"tasks: got {name!r}, expected {', '.join(known)}")
        try:
            if bundle is not None and name in in_bundle:
                data = bundle.load(name)
            else:
                assert corpus is not None, "without text there are no tasks made from it"
                data = made[name](corpus.documents("val"))
            tasks.append(data.check_enough_items(settings.max_per_task))
        except ValueError as error:
            # Nobody asked for this task: short text or a damaged download must not end the other parts.
            if asked or (name in in_bundle and (required or not auto)):
                raise
            notes.append(f"left out: {error}")
    return tasks


def _measure_splits(
    run: LoadedRun, corpus: Corpus, learned: TrainedOn, split_tokens: int, batch_tokens: int, ranks: Ranks
) -> dict[str, object]:
    """Bits per byte of validation text and of training text, with their samples and intervals, and by document."""
    model, tokenizer = run.model, run.tokenizer
    length, vocab_size = model.config.sequence_len, model.config.vocab_size
    wanted = max(1, split_tokens // length)  # rows
    rows = max(1, min(wanted, batch_tokens // length, most_rows(vocab_size, length)))
    options = {"batch_size": rows, "sequence_len": length, "max_tokens": wanted * length, "ranks": ranks}
    batches = {
        split: validation_batches(corpus, tokenizer, split=split, packing=learned.packing, **options)
        for split in ("train", "val")
    }
    read = learned.open(corpus, tokenizer)
    if read and learned.reading:
        batches["train"] = learned.reading.batches(read, tokenizer, rows, wanted, ranks)
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


def _describe(split: str, total: BitsPerByte, interval: Interval, learned: bool) -> str:
    text = {"val": "", "train": " that the run has read" if learned else ", perhaps not read by the run"}[split]
    ends = f" (95 %: {interval.low:.4f} to {interval.high:.4f})" if math.isfinite(interval.half) else ""
    sample = f"{total.tokens:,} tokens of {interval.count:,} documents{text}, {total.bytes:,} bytes"
    return f"{split} bits per byte  {total.value:.4f}{ends}, {sample}"


def _finished_tasks(earlier: dict) -> dict[str, TaskResult]:
    """{key: result} of the tasks in an earlier document."""
    try:
        found = {entry["key"]: TaskResult.from_json(entry) for entry in earlier.get("tasks") or []}
        _ = [result.to_json() for result in found.values()]
    except (ValueError, KeyError, TypeError):  # an earlier version wrote them
        return {}
    return found


def _draw_samples(run: LoadedRun) -> list[dict[str, str]]:
    samples = []
    for sample in draw_samples(run.model, run.tokenizer):
        samples.append(sample)
        print(printable("> {prompt}{text}".format(**sample)))
    return samples
