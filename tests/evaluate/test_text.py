"""Bits per byte by document, and of the rows that a run has read, against sums done by hand and the real loader."""

import json
import math
import shutil
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from generate_models import byte_tokenizer, save_run, small_model

from nanogka.checkpoint import Checkpoint, save_checkpoint
from nanogka.common.distributed import Ranks
from nanogka.data import hub_corpora, open_corpus
from nanogka.data.corpus import write_manifest
from nanogka.data.loader import PackingLoader, StreamSettings, validation_batches
from nanogka.evaluate.bpb import measure_bits_per_byte
from nanogka.evaluate.text import Reading, TextMeasure, TrainedOn, measure_documents, measure_text, trained_on
from nanogka.runs import Run, read_config, write_config
from scripts import base_train
from scripts.base_eval import main

LENGTH = 32


class LossPerToken:
    """A model whose loss at a target is a hundredth of its id."""

    device, training = torch.device("cpu"), False

    def eval(self):
        return self

    def train(self, mode):
        return self

    def __call__(self, inputs, targets, reduction):
        return targets / 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    for number in range(400):
        words = rng.integers(97, 123, rng.integers(3, 120)).astype(np.uint8).tobytes().decode()
        (folder / f"{number:03d}.txt").write_text(f"ä{words}")
    return folder


@pytest.fixture
def corpus(folder, base):
    return open_corpus(folder)


def test_each_document_has_the_nats_and_bytes_of_its_own_text(corpus):
    tokenizer = byte_tokenizer()
    options = {"batch_size": 3, "sequence_len": LENGTH}
    found = measure_documents(LossPerToken(), validation_batches(corpus, tokenizer, **options), tokenizer.token_bytes())
    texts = list(corpus.documents("val"))
    complete = 0
    for number, measured in found.items():
        data = texts[number].encode()
        assert measured.bytes == measured.tokens <= len(data)
        if measured.bytes == len(data):  # all but what did not fill the last row
            complete += 1
            assert measured.nats == pytest.approx(sum(data) / 100, rel=1e-5)
    assert complete > 0.7 * len(texts)
    pairs = ((batch.inputs, batch.targets) for batch in validation_batches(corpus, tokenizer, **options))
    together, expected = (
        measure_text(
            LossPerToken(), validation_batches(corpus, tokenizer, **options), tokenizer.token_bytes(), Ranks()
        ),
        measure_bits_per_byte(LossPerToken(), pairs, tokenizer.token_bytes()),
    )
    assert (together.total.bytes, together.total.tokens) == (expected.bytes, expected.tokens)
    assert together.total.nats == pytest.approx(expected.nats, rel=1e-12)
    assert together.interval.value == pytest.approx(together.total.value)
    assert together.interval.count == len(found)
    document = together.to_json()
    assert document["number"] == sorted(found)
    assert document["bytes"] == [found[number].bytes for number in document["number"]]


def test_the_measurement_of_a_text_does_not_depend_on_batches_or_ranks(corpus):
    model, tokenizer = small_model("GD", sequence_len=LENGTH), byte_tokenizer()

    def measured(batch_size: int, ranks: int = 1) -> TextMeasure:
        options = {"batch_size": batch_size, "sequence_len": LENGTH, "max_tokens": 40 * LENGTH}
        shares = [validation_batches(corpus, tokenizer, ranks=Ranks(i, i, ranks), **options) for i in range(ranks)]
        parts = [measure_documents(model, share, tokenizer.token_bytes()) for share in shares]
        gathering = SimpleNamespace(all_gather=lambda _: parts)
        return measure_text(model, [], tokenizer.token_bytes(), gathering)

    one = measured(1)
    assert one.interval.count > 10
    assert 0.001 < one.interval.error < 0.2
    for other in (measured(8), measured(3, ranks=2), measured(1, ranks=5)):
        assert other.documents.keys() == one.documents.keys()
        assert other.interval.count == one.interval.count
        assert other.total.value == pytest.approx(one.total.value, rel=1e-6)
        assert other.interval.error == pytest.approx(one.interval.error, rel=1e-5)


def test_a_document_that_two_ranks_have_read_counts_twice(corpus):
    tokenizer, settings = byte_tokenizer(), StreamSettings("train", LENGTH, "bestfit", 5, epochs=2)

    def parts(world_size: int) -> list[dict]:
        found = []
        for rank in range(world_size):
            with PackingLoader(corpus, tokenizer, settings, 4, Ranks(rank, rank, world_size)) as share:
                found.append(measure_documents(LossPerToken(), share, tokenizer.token_bytes()))
        return found

    (one,), (first, second) = parts(1), parts(2)
    assert first.keys() & second.keys()
    gathering = SimpleNamespace(all_gather=lambda _: [first, second])
    both = measure_text(LossPerToken(), [], tokenizer.token_bytes(), gathering).documents
    assert both.keys() == one.keys()
    assert {number: part.bytes for number, part in both.items()} == {number: one[number].bytes for number in one}


def whole(batch) -> list:
    """The rows of a batch, with their last target."""
    return torch.cat([batch.inputs, batch.targets[:, -1:]], 1).tolist()


def learned(corpus, batches: int, packing: str, world_size: int = 1, seed: int = 5) -> tuple[list, dict]:
    """The rows of the first `batches` micro-batches of a run, and its loader state after them."""
    rows, states = [], []
    for rank in range(world_size):
        settings = StreamSettings("train", LENGTH, packing, seed)
        with PackingLoader(corpus, byte_tokenizer(), settings, 4, Ranks(rank, rank, world_size)) as loader:
            for _ in range(batches):
                batch = next(loader)
                rows += whole(batch)
        states.append(batch.state)
    return rows, PackingLoader.merge(states)


@pytest.mark.parametrize("packing", ["bestfit", "bos-bestfit-crop"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_reading_gives_the_rows_that_the_run_has_read(corpus, packing, world_size):
    rows, state = learned(corpus, 12, packing, world_size)
    reading = Reading.from_state(json.loads(json.dumps(state)))
    assert reading.rows == len(rows) == 48 * world_size

    def read(most: int, ranks: int) -> list:
        parts = [reading.batches(corpus, byte_tokenizer(), 5, most, Ranks(i, i, ranks)) for i in range(ranks)]
        return [row for part in parts for batch in part for row in whole(batch)]

    assert sorted(read(10**6, 1)) == sorted(rows)  # never more than the run has read
    assert sorted(read(10**6, 3)) == sorted(rows)
    assert len(read(16, 1)) == 16
    assert all(row in rows for row in read(16, 1))


def test_a_state_of_another_kind_is_no_reading():
    for state in (None, {}, {"streams": {}}, {"streams": [1]}, "x", {"next": 3}):
        assert Reading.from_state(state) is None


def bits_per_byte(model, rows: list) -> float:
    """Of rows: BOS is no text, and a token is a byte."""
    ids = torch.tensor(rows)
    with torch.no_grad():
        losses = model(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    text = ids[:, 1:] < 256
    return float(-losses[text].double().sum() / text.sum() / math.log(2))


@pytest.mark.parametrize("packing", ["bestfit", "bos-bestfit-crop"])
def test_train_bits_per_byte_are_of_text_that_the_run_has_read_and_packing_is_the_runs(
    corpus, folder, base, tmp_path, capsys, packing
):
    model = small_model("GD", sequence_len=LENGTH)
    rows, state = learned(corpus, 12, packing)
    run = save_run(base / "runs" / "mine", model, data=str(folder), packing=packing)
    save_checkpoint(run / "checkpoints", Checkpoint(9, dict(model.state_dict()), {}, {"loader": state}))
    flags = ["--run", "mine", "--eval", "bpb", "--device", "cpu", "--dtype", "float32", "--json"]

    def evaluate(*more: str) -> dict:
        assert main([*flags, *more]) == 0
        *lines, document = capsys.readouterr().out.splitlines()
        counts = (document := json.loads(document))["bpb_counts"]["train"]
        read = " that the run has read" if counts["learned"] else ", perhaps not read by the run"
        sample = f"{counts['tokens']:,} tokens of {counts['documents']:,} documents{read}, {counts['bytes']:,} bytes"
        assert any(line.startswith("train bits per byte") and line.endswith(sample) for line in lines)
        return document

    found = evaluate()
    counts = found["bpb_counts"]
    assert counts["train"]["learned"]
    assert counts["train"]["tokens"] == sum(token < 256 for row in rows for token in row[1:])
    assert found["bpb"]["train"] == pytest.approx(bits_per_byte(model, rows), rel=1e-6)
    options = {"batch_size": 4, "sequence_len": LENGTH, "packing": packing}
    in_order = [
        row for batch in validation_batches(corpus, byte_tokenizer(), split="train", **options) for row in whole(batch)
    ]
    assert bits_per_byte(model, in_order[:48]) != pytest.approx(found["bpb"]["train"], rel=1e-4)

    validation = list(validation_batches(corpus, byte_tokenizer(), **options))
    pairs = [(batch.inputs, batch.targets) for batch in validation]
    expected = measure_bits_per_byte(model, pairs, byte_tokenizer().token_bytes())
    assert found["bpb"]["val"] == pytest.approx(expected.value, rel=1e-6)
    assert (counts["val"]["tokens"], counts["val"]["bytes"]) == (expected.tokens, expected.bytes)
    low, high = found["bpb_intervals"]["val"]
    assert low < found["bpb"]["val"] < high
    documents = found["val_documents"]
    assert documents["corpus"] == corpus.fingerprint
    assert sum(documents["bytes"]) == expected.bytes
    assert counts["val"]["documents"] == len(set(documents["number"])) > 9
    assert sum(documents["nats"]) == pytest.approx(expected.nats, rel=1e-5)

    other = tmp_path / "other"
    other.mkdir()
    for number in range(60):
        (other / f"{number}.txt").write_text(f"Something else, {number}. " * 20)
    assert not evaluate("--data", str(other))["bpb_counts"]["train"]["learned"]
    assert not evaluate("--step", "7")["bpb_counts"]["train"]["learned"]  # its state names no reading


# ---- the text of a run on a corpus of the hub, and of its chat models ----


@pytest.fixture
def fetched(base, monkeypatch):
    """A run of four steps on `fineweb-edu`, of which five shards lie there: two of them hold enough for the run."""
    folder = base / "corpora" / "fineweb-edu"
    folder.mkdir(parents=True)
    corpus = hub_corpora.HUB_CORPORA["fineweb-edu"]
    for name in corpus.shard_names(5):
        texts = [f"{name} {row * 7919 % 1000} ".rjust(60, "x") for row in range(40)]
        pq.write_table(pa.table({"text": texts}), folder / name, row_group_size=8)
    write_manifest(folder, validation=corpus.validation, source="test")
    monkeypatch.setattr(hub_corpora, "TOKENS_PER_SHARD", 300)
    monkeypatch.setattr(hub_corpora, "TOKENIZER_SHARDS", 1)
    monkeypatch.setattr("nanogka.train.pretraining.fetch_corpus", lambda corpus, shards, log: None)
    byte_tokenizer().save(base / "tokenizers" / "bytes")
    words = "--data fineweb-edu --tokenizer bytes --depth 1 --sequence-len 32 --total-batch-size 128 --eval-every 0"
    words += " --num-iterations 4 --save-every 2 --keep 9 --eval-tokens 64 --device cpu --dtype float32 --run mine"
    assert base_train.main([*words.split(), "--compile", "off"]) == 0
    return base / "runs" / "mine"


def without_shards(folder) -> None:
    """Make config.yaml of a run that of an earlier version, which did not say how many shards it read."""
    config = read_config(folder)
    del config["run"]["shards"]
    write_config(folder, config)


@pytest.mark.parametrize("recorded", [True, False])
def test_the_text_of_a_run_is_found_at_every_checkpoint(fetched, recorded, monkeypatch):
    if recorded:
        monkeypatch.setattr(hub_corpora, "TOKENS_PER_SHARD", 100)  # as if a later version estimated it differently
    else:
        without_shards(fetched)
    everything = open_corpus("fineweb-edu")  # all shards
    assert len(everything.shards) == 6
    for step in (2, 4):  # the rows of step 2 alone would need one shard, not two
        found = trained_on(Run.open(fetched), step)
        assert (found.data, found.shards, found.reading.rows) == ("fineweb-edu", 2, 4 * step)
        read = found.open(everything, byte_tokenizer())
        assert [shard.name for shard in read.shards] == [
            "shard_00000.parquet",
            "shard_00001.parquet",
            "shard_01822.parquet",
        ]


def test_a_chat_model_has_the_text_of_its_base_run_also_behind_a_link(fetched, base, tmp_path):
    def fine_tune(start: str, name: str, step: int) -> Run:
        folder = save_run(base / "runs" / name, small_model(sequence_len=32), kind="chat", data="talk.jsonl")
        config = read_config(folder)
        config["run"]["base"] = {"run": start, "step": step, "data": "fineweb-edu"}
        write_config(folder, config)
        return Run.open(folder)

    for run in (fine_tune("mine", "talk", 2), fine_tune("talk", "rewarded", 7)):
        assert trained_on(run, 7) == trained_on(Run.open(fetched), 2)
    # A run that was moved to another disk and linked has its base run next to the link.
    elsewhere = shutil.move(base / "runs" / "talk", tmp_path / "moved")
    (base / "runs" / "talk").symlink_to(elsewhere)
    assert trained_on(Run.open(base / "runs" / "talk"), 7).reading.rows == 8
    # A link to the run from elsewhere has it where the link leads.
    shutil.move(elsewhere, base / "runs" / "back")
    (tmp_path / "link").symlink_to(base / "runs" / "back")
    assert trained_on(Run.open(tmp_path / "link"), 7).reading.rows == 8
    # A run that has left the runs' folder without a link has it there.
    shutil.copytree(base / "runs" / "back", tmp_path / "far" / "copy")
    assert trained_on(Run.open(tmp_path / "far" / "copy"), 7).reading.rows == 8
    for nameless in ({"data": "fineweb-edu"}, "mine"):
        config = read_config(base / "runs" / "rewarded")
        config["run"]["base"] = nameless
        write_config(base / "runs" / "rewarded", config)
        assert trained_on(Run.open(base / "runs" / "rewarded"), 7) == TrainedOn()
    shutil.rmtree(fetched)
    assert asdict(trained_on(Run.open(base / "runs" / "back"), 7)) == {
        "data": "fineweb-edu", "footers": "", "packing": "bestfit", "shards": None, "reading": None
    }  # fmt: skip
