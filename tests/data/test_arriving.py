"""Shards that arrive while they are used: what is planned decides every batch, not what is there."""

import importlib.util
import io
import re
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from nanogka.data import PackingLoader, arriving, fineweb, merge_states
from nanogka.data.arriving import ArrivingCorpus, BackgroundFetch, ForeignFetch, open_arriving
from nanogka.data.fineweb import REPO, VALIDATION, FetchSettings, shard_names, shards_needed
from nanogka.data.hub import HubDataset
from nanogka.data.order import permutation

_spec = importlib.util.spec_from_file_location("fake_hub", Path(__file__).with_name("fake_hub.py"))
_fake_hub = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fake_hub)

SHARDS, SEED, LENGTH = 6, 3, 16
ORDER = permutation(SHARDS, SEED, 0).tolist()
NAMES = shard_names(SHARDS)
LAST = f"shard_{ORDER[-1]:05d}.parquet"  # the one that the first epoch asks for last


def shard(number: int) -> bytes:
    """Shards of different sizes, so that a wrong count of rows or groups in another one would show."""
    out = io.BytesIO()
    lengths = [5 + (number * 17 + i * 7) % 30 for i in range(20 + 5 * number)]
    texts = [f"{1000 * number + i}:{length}" for i, length in enumerate(lengths)]
    pq.write_table(pa.table({"text": texts}), out, row_group_size=4 + number)
    return out.getvalue()


@pytest.fixture
def server(monkeypatch):
    files = {name: shard(i) for i, name in enumerate(NAMES[1:])} | {VALIDATION: shard(9)}
    running = _fake_hub.FakeHub(REPO, files)
    monkeypatch.setattr(arriving, "GRACE", 0.3)
    monkeypatch.setattr(arriving, "POLL", 0.01)
    monkeypatch.setattr("nanogka.data.loader.POLL", 0.01)
    yield running
    for event in running.held.values():
        event.set()
    running.close()


@pytest.fixture
def fetching(server, tmp_path):
    """Begins to fetch into a folder, in a thread; returns it when the shards are described and validation is there."""
    threads = []

    def begin(name="fw", shards=SHARDS, order=ORDER, retries=0) -> ArrivingCorpus:
        settings = FetchSettings(shards=shards, out=str(tmp_path / name), order=",".join(map(str, order)), workers=1)
        hub = HubDataset(REPO, endpoint=server.endpoint, retries=retries, wait=0.001)
        thread = threading.Thread(target=fineweb.fetch, args=(settings, hub, lambda line: None))
        thread.start()
        threads.append(thread)
        return open_arriving(tmp_path / name, shards, order, fetches=False)

    yield begin
    for event in server.held.values():
        event.set()
    for thread in threads:
        thread.join()


def loader(corpus, tokenizer, **changes) -> PackingLoader:
    options = {"batch_size": 2, "sequence_len": LENGTH, "seed": SEED, "streams": 2, "buffer_documents": 4, **changes}
    return PackingLoader(corpus, "train", tokenizer, **options)


def rows(batches) -> torch.Tensor:
    return torch.cat([batch.inputs for batch in batches])


def complete(fetching, name="complete") -> ArrivingCorpus:
    corpus = fetching(name)
    for number in range(SHARDS):
        while not corpus.is_there(number):
            pass
    return corpus


def test_batches_come_before_the_last_shard_and_are_those_with_everything_there(server, fetching, tracing, tmp_path):
    with loader(complete(fetching), tracing, epochs=2) as whole:
        expected = list(whole)
    server.held[LAST] = threading.Event()
    corpus = fetching("arriving")
    said = []
    with loader(corpus, tracing, epochs=2) as some:
        some.on_wait = lambda line: (said.append(line), server.held[LAST].set())
        early = [next(some) for _ in range(5)]
        assert not (tmp_path / "arriving" / LAST).exists()
        assert f"{SHARDS} training shards, " in corpus.describe()  # and how many of them are there
        late = list(some)
    assert torch.equal(rows(early + late), rows(expected))
    assert [batch.state for batch in early + late] == [batch.state for batch in expected]
    assert said == [f"waiting for {LAST} to arrive in {tmp_path / 'arriving'}"]
    assert some.data_wait > 0.5


def test_what_is_fetched_already_changes_neither_fingerprint_nor_order_but_the_plan_does(server, fetching, tmp_path):
    everything = complete(fetching)
    server.held = {name: threading.Event() for name in NAMES[1:]}
    nothing = fetching("nothing")
    assert not any((tmp_path / "nothing" / name).exists() for name in NAMES[1:])
    assert nothing.fingerprint == everything.fingerprint
    assert ArrivingCorpus(tmp_path / "complete", SHARDS - 1, everything.fetch).fingerprint != everything.fingerprint
    assert "0 of them there" in nothing.describe()


@pytest.mark.parametrize("after", [0, 3, 17])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_loader_from_a_state_gives_exactly_the_batches_after_it(fetching, tracing, after, world_size):
    corpus = complete(fetching)
    one = [loader(corpus, tracing, rank=rank, world_size=2) for rank in range(2)]
    for _ in range(after):
        states = [next(part).state for part in one]
    rest = [rows([next(part) for _ in range(9)]) for part in one]
    state = merge_states(states) if after else None
    again = [loader(corpus, tracing, rank=rank, world_size=world_size, state=state) for rank in range(world_size)]
    if world_size == 2:
        assert all(torch.equal(rows([next(part) for _ in range(9)]), old) for part, old in zip(again, rest))
    else:
        both = torch.stack([part.reshape(9, 2, LENGTH) for part in rest], 2).reshape(-1, LENGTH)
        found = rows([next(again[0]) for _ in range(18)])
        assert sorted(found.tolist()) == sorted(both.tolist())
    for part in (*one, *again):
        part.close()


def test_each_token_once_in_an_epoch_and_a_shard_that_is_not_planned_is_not_read(fetching, server, tracing):
    corpus = complete(fetching)
    with loader(corpus, tracing, epochs=1) as part:
        batches = list(part)
        left = [pair for stream in batches[-1].state["streams"].values() for pair in stream["buffer"]]
    used = torch.cat([torch.cat([b.inputs, b.targets[:, -1:]], 1).flatten() for b in batches]).numpy()
    used = used[used != 0]
    texts = [text for number in range(SHARDS) for text in pq.read_table(corpus.shards[number])["text"].to_pylist()]
    lengths = {int(text.split(":")[0]): int(text.split(":")[1]) for text in texts}
    for row, offset in left:
        block, _ = corpus.layout("train").block_of(row)
        text = corpus.read("train", block, [row - corpus.layout("train").first_row(block)])[0]
        lengths[int(text.split(":")[0])] = offset
    expected = [(1 + document) * 100_000 + np.arange(length) for document, length in lengths.items()]
    assert np.array_equal(np.sort(used), np.sort(np.concatenate(expected)))


def test_the_places_of_documents_are_those_in_the_shards(fetching, tracing):
    corpus = complete(fetching)
    with loader(corpus, tracing) as part:
        documents = {number for _ in range(9) for row in next(part).documents for number in row}
    found = set()
    for document in documents:
        name, group, row = re.fullmatch(r"(.*), row group (\d+), row (\d+)", corpus.locate("train", document)).groups()
        found.add(pq.ParquetFile(corpus.path / name).read_row_group(int(group))["text"][int(row)].as_py())
    assert len(found) == len(documents) > 10


def test_a_download_that_failed_is_an_error_that_names_shard_and_reason_once_it_is_needed(
    server, fetching, tracing, tmp_path
):
    server.busy[LAST] = 99
    corpus = fetching("fw")
    (tmp_path / "fw" / "fetch.log").write_text(f"shard_00000.parquet: 1 MB\nfineweb: {LAST}: no success with the hub\n")
    with loader(corpus, tracing, epochs=1) as part:
        assert rows([next(part) for _ in range(5)]).shape == (10, LENGTH)  # what is there is used
        with pytest.raises(ValueError, match=rf"{LAST} is missing .*\(nobody for .*{LAST}: no success.*--resume"):
            list(part)


def test_waiting_can_be_interrupted(server, fetching, tracing):
    server.held[NAMES[1 + ORDER[0]]] = threading.Event()
    with loader(fetching(), tracing) as part:
        part.interrupted = lambda: True
        with pytest.raises(InterruptedError, match="waiting for shard_"):
            next(part)


def test_closing_while_it_waits_ends_the_thread(server, fetching, tracing):
    server.held[NAMES[1 + ORDER[0]]] = threading.Event()
    part = loader(fetching(), tracing)
    part.close()
    assert not part._thread.is_alive()


def test_the_most_wanted_are_fetched_first_after_the_validation_shard(server, fetching):
    complete(fetching)
    gets = [path for method, path, _ in server.requests if method == "GET" and "/cdn/" in path]
    numbers = [int(path.split("shard_")[1][:5]) for path in gets]
    assert numbers == [1822, *ORDER]
    assert shard_names(4, [2, 9, 0]) == [VALIDATION, *(f"shard_{i:05d}.parquet" for i in (2, 0, 1, 3))]


def test_a_process_of_its_own_says_why_it_failed(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    monkeypatch.setattr(BackgroundFetch, "RETRIES", 0)
    del server.files[LAST]
    with pytest.raises(ValueError, match=rf"ended with exit code 1: {LAST}: {REPO} has no such file"):
        open_arriving(tmp_path / "fw", SHARDS, ORDER)


def test_a_complete_folder_starts_no_process_and_needs_no_network(server, fetching, tmp_path, monkeypatch):
    complete(fetching)
    monkeypatch.setattr(arriving.subprocess, "Popen", lambda *a, **k: pytest.fail("a process was started"))
    assert isinstance(open_arriving(tmp_path / "complete", SHARDS, ORDER).fetch, ForeignFetch)


def test_an_order_that_is_none_is_refused(tmp_path, capsys):
    assert fineweb.main(["-n", "3", "--order", "1,x", "--out", str(tmp_path / "no")]) == 2
    assert "--order: got '1,x', takes numbers of shards with commas" in capsys.readouterr().err


def test_the_plan_has_a_tenth_to_spare_and_enough_for_the_tokenizer():
    assert shards_needed(2_778_726_400) == 62
    assert shards_needed(1) == 8
    assert shards_needed(10**15) == fineweb.TRAINING_SHARDS
