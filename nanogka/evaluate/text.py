"""Bits per byte of a corpus by document: of validation text, and of text that the run has read.

The difference of the two is what the model memorized, if the second is text that the run has learned from. A run reads
the training split in the order of its own seed and may not reach its end. So the loader of the training is built again,
from the settings in the checkpoint, and gives the rows with which the training began.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from nanogka.common.distributed import Ranks
from nanogka.data.corpus import Corpus
from nanogka.data.hub_corpora import HUB_CORPORA
from nanogka.data.loader import Batch, PackingLoader, StreamSettings
from nanogka.evaluate.bpb import BitsPerByte, eval_mode, losses_and_bytes
from nanogka.evaluate.intervals import Interval, bits_per_byte_interval
from nanogka.runs import Run
from nanogka.tokenizer import Tokenizer


@dataclass(frozen=True)
class Reading:
    """The rows that a run has read in pretraining: the loader's settings, and how many rows at the checkpoint."""

    corpus: str  # fingerprints
    tokenizer: str
    settings: StreamSettings
    rows: int
    epochs: int  # passes over the split that were begun

    @classmethod
    def from_state(cls, state: Any) -> "Reading | None":
        """The reading in a checkpoint's loader state; None if another version or another kind of run wrote it."""
        try:
            streams = state["streams"].values()
            rows = sum(stream["counts"]["rows"] for stream in streams)
            epochs = 1 + max(stream["epoch"] for stream in streams)
            return cls(state["corpus"], state["tokenizer"], StreamSettings(**state["settings"]), rows, epochs)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def batches(
        self, corpus: Corpus, tokenizer: Tokenizer, batch_size: int, max_rows: int, ranks: Ranks
    ) -> Iterator[Batch]:
        """This rank's share of the first `max_rows` of these rows."""
        # With a last epoch, more ranks than streams are no error: some have no share.
        settings = replace(self.settings, epochs=self.epochs)
        most = min(max_rows, self.rows)
        with PackingLoader(corpus, tokenizer, settings, batch_size, ranks, max_rows=most) as loader:
            yield from loader


@dataclass(frozen=True)
class TrainedOn:
    """The text that a run has learned from; for a chat model, that of the run which it was fine-tuned from."""

    data: str = ""  # the corpus, as `--data` names it; empty if unknown
    footers: str = ""  # fingerprint of its parquet files; empty if unknown
    packing: str = "bestfit"  # how documents fill the rows
    shards: int | None = None  # training shards that the run has read from, of a corpus of the hub
    reading: Reading | None = None  # the rows that it has read; None if that is unknown

    def open(self, corpus: Corpus, tokenizer: Tokenizer) -> Corpus | None:
        """`corpus` as the run has read it, or None if the text that it has read is unknown or another one."""
        reading = self.reading
        if reading is None or reading.tokenizer != tokenizer.fingerprint:
            return None
        hub = HUB_CORPORA.get(self.data)
        if hub and self.shards and corpus.folder == hub.folder:
            # More shards may have been fetched since, and the order of the documents depends on their number.
            with suppress(ValueError, OSError):
                corpus = hub.open(self.shards)
        return corpus if corpus.fingerprint == reading.corpus else None


def trained_on(run: Run, step: int) -> TrainedOn:
    """The text that a run had learned from at the checkpoint of `step`. What is not known any more is left out."""
    if run.kind == "chat":
        base, folder = run.part("run").get("base"), run.base_folder
        if folder is None or not isinstance(base, dict):
            return TrainedOn()
        with suppress(KeyError, TypeError, ValueError, OSError):  # the base run is gone or damaged
            return trained_on(Run.open(folder), int(base["step"]))
        return TrainedOn(str(base.get("data") or ""))
    reading, shards = None, run.fact("shards")
    with suppress(ValueError, OSError):
        reading = Reading.from_state(run.state(step).get("loader"))
    data, planned = str(run.fact("data") or ""), (run.fact("num_iterations"), run.fact("total_batch_size"))
    if shards is None and data in HUB_CORPORA and all(type(number) is int for number in planned):
        # Earlier versions did not record the number that follows from the length of the run.
        shards = HUB_CORPORA[data].shards_needed(planned[0] * planned[1])
    packing = reading.settings.packing if reading else str(run.fact("packing") or "bestfit")
    return TrainedOn(data, str(run.fact("footers") or ""), packing, shards, reading)


@dataclass(frozen=True)
class TextMeasure:
    """The measurements of documents: {number of the document in its split: sums}."""

    documents: dict[int, BitsPerByte]

    @property
    def total(self) -> BitsPerByte:
        """All documents together."""
        parts = self.documents.values()
        return BitsPerByte(sum(p.nats for p in parts), sum(p.bytes for p in parts), sum(p.tokens for p in parts))

    @property
    def interval(self) -> Interval:
        """Bits per byte with a 95 % interval over documents."""
        return bits_per_byte_interval([(part.nats, part.bytes) for part in self.documents.values()])

    def to_json(self) -> dict[str, list]:
        """Numbers, nats and bytes of the documents, for comparisons with other models on the same documents."""
        numbers = sorted(self.documents)
        parts = [self.documents[number] for number in numbers]
        return {"number": numbers, "nats": [round(p.nats, 4) for p in parts], "bytes": [p.bytes for p in parts]}


def measure_text(model, batches: Iterable[Batch], token_bytes: np.ndarray, ranks: Ranks) -> TextMeasure:
    """Measure the documents in the batches of all ranks; all ranks call this, and all get everything."""
    mine = measure_documents(model, batches, token_bytes)
    everything: dict[int, BitsPerByte] = {}
    for part in ranks.all_gather(mine):
        for number, measured in part.items():  # two ranks may read a document, each in another epoch
            everything[number] = everything[number] + measured if number in everything else measured
    return TextMeasure(everything)


@torch.no_grad()
def measure_documents(model, batches: Iterable[Batch], token_bytes: np.ndarray) -> dict[int, BitsPerByte]:
    """Sum losses and bytes of each document in the loader's `batches`: {number of the document: sums}."""
    nats, size, tokens = defaultdict(float), defaultdict(int), defaultdict(int)
    with eval_mode(model):
        for batch in batches:
            losses, counted = losses_and_bytes(model, batch.inputs, batch.targets, token_bytes)
            for row, pieces in enumerate(batch.pieces):
                for document, first, count in pieces:
                    part = slice(first, first + count)
                    nats[document] += losses[row, part].sum(dtype=torch.float64).item()
                    size[document] += int(counted[row, part].sum())
                    tokens[document] += int((counted[row, part] > 0).sum())
    return {number: BitsPerByte(nats[number], size[number], tokens[number]) for number in nats if size[number]}
