"""Fetching a corpus from a hub that misbehaves: a shard under its name is whole, and any other is reported."""

import io
import json
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_hub import COMMIT, FakeHub

from nanogka.data import hub_corpora, open_corpus
from nanogka.data.hub_corpora import HUB_CORPORA, fetch_corpus
from scripts import fetch as fetch_command

FINEWEB = HUB_CORPORA["fineweb-edu"]
REPO, VALIDATION = "karpathy/fineweb-edu-100b-shuffle", "shard_01822.parquet"
FIRST, SECOND, THIRD, FOURTH, _ = NAMES = (*(f"shard_{i:05d}.parquet" for i in range(4)), VALIDATION)


def parquet(texts: list[str]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), out, row_group_size=16)
    return out.getvalue()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(hub_corpora, "PAUSES", (0, 0))
    running = FakeHub(REPO, {name: parquet([f"{name} {i * 7919 % 1000}" for i in range(40)]) for name in NAMES})
    monkeypatch.setattr("huggingface_hub.HfApi", partial(huggingface_hub.HfApi, running.endpoint))
    yield running
    running.close()


@pytest.fixture
def folder(base) -> Path:
    return FINEWEB.folder


def fetch(n=3, verify=False) -> list[str]:
    lines = []
    fetch_corpus(FINEWEB, n, workers=2, verify=verify, log=lines.append)
    return lines


def on_disk(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.parquet")}


def expected(server, *names) -> dict[str, bytes]:
    return {name: server.files[name] for name in (*names, VALIDATION)}


def test_a_fetch_is_a_corpus_with_the_pinned_validation_and_a_second_takes_new_shards_only(server, folder):
    fetch(n=2)
    assert on_disk(folder) == expected(server, FIRST, SECOND)
    before = len(server.requests)
    assert fetch(n=2) == []
    assert len(server.requests) == before, "what is there needs no network"
    fetch(n=4)
    assert [server.downloads(name) for name in server.files] == [1] * 5
    visible = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    assert visible == ["corpus.json", FIRST, SECOND, THIRD, FOURTH, VALIDATION]
    corpus = open_corpus(folder)
    assert next(corpus.documents("val")).startswith(VALIDATION)
    assert sum(1 for _ in corpus.documents("train")) == 160
    assert json.loads((folder / "corpus.json").read_text())["revision"] == COMMIT
    assert len(list(FINEWEB.open(2).documents("train"))) == 80


def test_a_shard_that_comes_damaged_is_removed_named_and_fetched_again(server, folder):
    server.wrong[FIRST] = 1
    with pytest.raises(OSError, match=f"(?s){FIRST}: .*3 of 4 ok in "):
        fetch()
    assert on_disk(folder) == expected(server, SECOND, THIRD)
    fetch()
    assert on_disk(folder) == expected(server, FIRST, SECOND, THIRD)
    assert server.downloads(SECOND) == 1


def test_a_busy_hub_is_waited_out_and_one_that_stays_so_is_one_line(server, folder):
    server.busy[SECOND] = 2
    fetch(n=2)
    server.busy[THIRD] = 1000
    with pytest.raises(OSError, match=f"^{REPO}: could not be fetched from {server.endpoint}: .*503"):
        fetch(n=3)
    assert on_disk(folder) == expected(server, FIRST, SECOND)


def test_verify_finds_a_flipped_byte_and_fetches_the_shard_again(server, folder):
    fetch()
    content = server.files[SECOND]
    (folder / SECOND).write_bytes(content[:100] + bytes([content[100] ^ 4]) + content[101:])
    assert fetch() == []  # not seen without reading them all
    assert f"{SECOND}: missing or damaged, fetching it again" in fetch(verify=True)
    assert on_disk(folder)[SECOND] == content
    assert fetch(verify=True) == []


def test_of_shards_that_were_there_before_a_good_one_is_kept_and_a_truncated_one_fetched(server, folder):
    folder.mkdir(parents=True)
    (folder / FIRST).write_bytes(server.files[FIRST])
    (folder / SECOND).write_bytes(server.files[SECOND][:-9])
    with pytest.raises(ValueError, match=f"{SECOND}: not a parquet file, or a truncated one"):
        open_corpus(folder)
    fetch()
    assert on_disk(folder) == expected(server, FIRST, SECOND, THIRD)
    assert server.downloads(FIRST) == 0
    (folder / SECOND).write_bytes(server.files[SECOND][:-9])
    fetch()
    assert on_disk(folder)[SECOND] == server.files[SECOND]


def test_a_missing_validation_shard_is_never_replaced_by_another(server, folder):
    server.busy[VALIDATION] = 1000
    with pytest.raises(OSError):
        fetch()
    for name in (FIRST, SECOND):
        (folder / name).write_bytes(server.files[name])
    with pytest.raises(ValueError, match=f"whose validation shard {VALIDATION} .* is missing; finish fetching"):
        open_corpus(folder)


def test_of_two_that_fetch_at_once_one_downloads(server, folder):
    threads = [threading.Thread(target=fetch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert on_disk(folder) == expected(server, FIRST, SECOND, THIRD)
    assert server.downloads(FIRST) == server.downloads(VALIDATION) == 1


def test_the_command_says_n_of_m_and_what_is_missing(server, folder, capsys):
    assert fetch_command.main(["-n", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"3 of 3 ok in {folder}"
    del server.files[FOURTH]
    assert fetch_command.main(["-n", "4"]) == 1
    lines = capsys.readouterr().err.splitlines()[-2:]
    assert lines[0].endswith(f"{FOURTH}: {REPO} has no such file")
    assert lines[1].endswith(f"4 of 5 ok in {folder}")
    assert THIRD in on_disk(folder)


def test_without_space_for_the_missing_shards_nothing_is_downloaded(server, folder, monkeypatch):
    fetch(n=1)
    needed = len(server.files[SECOND]) + len(server.files[THIRD])
    for free, fits in ((needed - 1, False), (needed, True)):
        monkeypatch.setattr(hub_corpora.shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        if fits:
            fetch(n=3)
        else:
            with pytest.raises(OSError, match=str(folder)):
                fetch(n=3)
        assert server.downloads(SECOND) == fits


@pytest.mark.parametrize(
    "tokens, shards",
    [(0, 8), (363_000_000, 8), (364_000_000, 9), (10**12, 1822)],
)
def test_a_horizon_needs_its_tokens_with_a_tenth_to_spare_and_eight_shards_for_the_tokenizer(tokens, shards):
    assert FINEWEB.shards_needed(tokens) == shards  # of 50 million tokens each


def test_climbmix_is_nanochats(base, server):
    # The constants of nanochat/dataset.py at commit 92d63d4.
    climbmix = HUB_CORPORA["climbmix"]
    assert (climbmix.repo, climbmix.validation) == ("karpathy/climbmix-400b-shuffle", "shard_06542.parquet")
    server.repo, server.files = climbmix.repo, dict.fromkeys((FIRST, climbmix.validation), server.files[FIRST])
    assert fetch_command.main(["--data", "climbmix", "-n", "1"]) == 0
    assert open_corpus("climbmix").shards[-1].name == climbmix.validation
    assert fetch_command.main(["--data", "climbmix", "-n", "6543"]) == 2
