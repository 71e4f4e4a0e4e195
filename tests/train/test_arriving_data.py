"""Training that starts before its data is there."""

import importlib.util
import io
import json
import random
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanogka.data import fineweb
from nanogka.data.arriving import BackgroundFetch
from nanogka.data.fineweb import REPO, VALIDATION, FetchSettings
from nanogka.data.hub import HubDataset
from nanogka.data.order import permutation
from nanogka.train.arriving_data import wanted_first
from nanogka.train.checkpoint import STATE
from nanogka.train.loop import Trainer
from nanogka.train.metrics import Progress, read_metrics
from scripts import base_train

_spec = importlib.util.spec_from_file_location("fake_hub", Path(__file__).parents[1] / "data" / "fake_hub.py")
_fake_hub = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fake_hub)

SHARDS = 3
LAST = f"shard_{permutation(SHARDS, 1, 0)[-1]:05d}.parquet"


def shard(number: int) -> bytes:
    """More documents than the loader buffers, but short ones."""
    rng, out = random.Random(number), io.BytesIO()
    texts = [" ".join(rng.choices(("cat", "dog", "sees", "finds", "old", "red", "river"), k=3)) for _ in range(1300)]
    pq.write_table(pa.table({"text": texts}), out, row_group_size=100)
    return out.getvalue()


@pytest.fixture
def server(monkeypatch):
    names = [f"shard_{i:05d}.parquet" for i in range(SHARDS)]
    running = _fake_hub.FakeHub(REPO, {name: shard(i) for i, name in enumerate((*names, VALIDATION))})
    monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
    monkeypatch.setattr("nanogka.data.arriving.POLL", 0.02)
    yield running
    for event in running.held.values():
        event.set()
    running.close()


def losses(folder):
    return [(line["step"], line["loss"]) for line in read_metrics(folder / "metrics.jsonl") if line["kind"] == "train"]


def test_training_starts_before_the_last_shard_and_goes_as_if_all_had_been_there_also_when_resumed(
    base, world, server, monkeypatch, capsys
):
    words = "--data fineweb-edu --shards 3 --tokenizer tiny --depth 2 --sequence-len 64 --total-batch-size 2048"
    words += " --num-iterations 8 --eval-every 0 --eval-tokens 256 --save-every 1 --device cpu --compile off --run a"
    fineweb.fetch(FetchSettings(shards=SHARDS), HubDataset(REPO, endpoint=server.endpoint), lambda line: None)
    assert base_train.main(words.split()) == 0
    expected = losses(base / "runs" / "a")
    assert len(expected) == 8

    later = base / "later"
    later.mkdir()
    (later / "tokenizers").symlink_to(world / "tokenizers")
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(later))
    last, metrics = later / "corpora" / "fineweb-edu" / LAST, later / "runs" / "a" / "metrics.jsonl"
    server.held[LAST] = threading.Event()
    original, dies = Trainer._step, [2]

    def step_that_dies(self, loader):
        assert not last.exists() or self.step > dies[0]
        if self.step == dies[0]:
            dies[0] = 4
            raise KeyboardInterrupt
        return original(self, loader)

    told, say = threading.Event(), Progress.say

    def say_and_tell(self, line):
        say(self, line)
        if LAST in line:
            told.set()

    def release():  # only once the training has run into the gap and said so
        while len(losses(later / "runs" / "a")) < 4:
            time.sleep(0.02)
        told.wait(60)
        server.held[LAST].set()

    monkeypatch.setattr(Trainer, "_step", step_that_dies)
    assert base_train.main(words.split()) == 130
    monkeypatch.setattr(Trainer, "_step", original)
    monkeypatch.setattr(Progress, "say", say_and_tell)
    thread = threading.Thread(target=release)
    thread.start()
    assert not last.exists()
    assert base_train.main([*words.split(), "--resume", "auto"]) == 0
    thread.join()
    assert losses(later / "runs" / "a") == expected
    assert metrics.exists()
    assert capsys.readouterr().err.count(f"waiting for {LAST} to arrive") == 1


def test_another_number_of_shards_is_another_run(base, world, server, monkeypatch, capsys):
    words = "--data fineweb-edu --tokenizer tiny --depth 2 --sequence-len 64 --total-batch-size 2048 --num-iterations 2"
    words += " --eval-tokens 256 --device cpu --compile off --run a --resume auto"
    fineweb.fetch(FetchSettings(shards=SHARDS), HubDataset(REPO, endpoint=server.endpoint), lambda line: None)
    assert base_train.main([*words.split(), "--shards", "3"]) == 0
    assert base_train.main([*words.split(), "--shards", "2"]) == 2
    assert "--data: got 'fineweb-edu' with 2 shards" in capsys.readouterr().err


def test_nothing_is_fetched_for_a_run_that_cannot_start(base, server, monkeypatch, capsys):
    monkeypatch.setattr(BackgroundFetch, "__init__", lambda *a, **k: pytest.fail("a fetch was started"))
    words = "--data fineweb-edu --shards 2000 --tokenizer tiny --depth 2 --total-batch-size 100 --num-iterations 2"
    assert base_train.main(words.split()) == 2
    err = capsys.readouterr().err
    assert "--shards: got 2000, takes at most 1822" in err
    assert base_train.main(words.replace("2000", "3").split()) == 2
    assert "--total-batch-size: got 100" in capsys.readouterr().err
    assert not (base / "corpora").exists()


def test_a_resumed_run_wants_the_shards_from_where_it_stands_first(tmp_path):
    order = permutation(9, 1, 2).tolist()
    streams = {"0": {"epoch": 2, "shard": 4}, "1": {"epoch": 2, "shard": 5}}
    (tmp_path / STATE).write_text(json.dumps({"loader": {"streams": streams}}))
    assert wanted_first(9, 1, tmp_path) == order[3:] + order[:3]
    assert wanted_first(9, 1, None) == permutation(9, 1, 0).tolist()
