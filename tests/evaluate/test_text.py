"""Bits per byte by document, and of the rows that a run has read, against sums done by hand and the real loader."""

import json
import math

import numpy as np
import pytest
import torch
from generate_models import byte_tokenizer, save_run, small_model

from nanogka.checkpoint import Checkpoint, save_checkpoint
from nanogka.common.distributed import Ranks
from nanogka.data import open_corpus
from nanogka.data.loader import PackingLoader, StreamSettings, validation_batches
from nanogka.evaluate.bpb import measure_bits_per_byte
from nanogka.evaluate.text import Reading, measure_documents, measure_text
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
        return json.loads(capsys.readouterr().out.splitlines()[-1])

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
    assert sum(documents["nats"]) == pytest.approx(expected.nats, rel=1e-5)

    other = tmp_path / "other"
    other.mkdir()
    for number in range(60):
        (other / f"{number}.txt").write_text(f"Something else, {number}. " * 20)
    assert not evaluate("--data", str(other))["bpb_counts"]["train"]["learned"]
    assert not evaluate("--step", "7")["bpb_counts"]["train"]["learned"]  # its state names no reading
