"""Fetching FineWeb-Edu from a hub that misbehaves: a shard that ends under its name is whole, or is named as wrong."""

import io
import json
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_hub import COMMIT, FakeHub

from nanogka.data import fineweb, open_corpus
from nanogka.data.fineweb import REPO, VALIDATION, fetch_fineweb, open_fineweb
from scripts import fetch as fetch_command

FIRST, SECOND, THIRD, FOURTH, _ = NAMES = (*(f"shard_{i:05d}.parquet" for i in range(4)), VALIDATION)


def parquet(texts: list[str]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), out, row_group_size=16)
    return out.getvalue()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(fineweb, "PAUSES", (0, 0))
    running = FakeHub(REPO, {name: parquet([f"{name} {i * 7919 % 1000}" for i in range(40)]) for name in NAMES})
    yield running
    running.close()


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "fw"


def fetch(server, folder, n=3, verify=False) -> list[str]:
    lines = []
    fetch_fineweb(n, folder, workers=2, endpoint=server.endpoint, verify=verify, log=lines.append)
    return lines


def on_disk(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.parquet")}


def expected(server, *names) -> dict[str, bytes]:
    return {name: server.files[name] for name in (*names, VALIDATION)}


def test_a_fetch_is_a_corpus_with_the_pinned_validation_and_a_second_takes_new_shards_only(server, folder):
    fetch(server, folder, n=2)
    assert on_disk(folder) == expected(server, FIRST, SECOND)
    before = len(server.requests)
    assert fetch(server, folder, n=2) == []
    assert len(server.requests) == before, "what is there needs no network"
    fetch(server, folder, n=4)
    assert [server.downloads(name) for name in server.files] == [1] * 5
    visible = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    assert visible == ["corpus.json", FIRST, SECOND, THIRD, FOURTH, VALIDATION]
    corpus = open_corpus(folder)
    assert next(corpus.documents("val")).startswith(VALIDATION)
    assert sum(1 for _ in corpus.documents("train")) == 160
    assert json.loads((folder / "corpus.json").read_text())["revision"] == COMMIT
    assert len(list(open_fineweb(2, folder).documents("train"))) == 80


def test_a_shard_that_comes_damaged_is_removed_named_and_fetched_again(server, folder):
    server.wrong[FIRST] = 1
    with pytest.raises(OSError, match=f"{FIRST}: came with other content than the hub states.*\n3 of 4 ok in "):
        fetch(server, folder)
    assert on_disk(folder) == expected(server, SECOND, THIRD)
    fetch(server, folder)
    assert on_disk(folder) == expected(server, FIRST, SECOND, THIRD)
    assert server.downloads(SECOND) == 1


def test_a_busy_hub_is_waited_out_and_one_that_stays_so_is_one_line(server, folder):
    server.busy[SECOND] = 2
    fetch(server, folder, n=2)
    server.busy[THIRD] = 1000
    with pytest.raises(OSError, match=f"^{REPO}: could not be fetched from {server.endpoint}: .*503"):
        fetch(server, folder, n=3)
    assert on_disk(folder) == expected(server, FIRST, SECOND)


def test_verify_finds_a_flipped_byte_and_fetches_the_shard_again(server, folder):
    fetch(server, folder)
    content = server.files[SECOND]
    (folder / SECOND).write_bytes(content[:100] + bytes([content[100] ^ 4]) + content[101:])
    assert fetch(server, folder) == []  # not seen without reading them all
    assert f"{SECOND}: missing or damaged, fetching it again" in fetch(server, folder, verify=True)
    assert on_disk(folder)[SECOND] == content
    assert fetch(server, folder, verify=True) == []


def test_of_shards_that_were_there_before_a_good_one_is_kept_and_a_truncated_one_fetched(server, folder):
    folder.mkdir()
    (folder / FIRST).write_bytes(server.files[FIRST])
    (folder / SECOND).write_bytes(server.files[SECOND][:-9])
    with pytest.raises(ValueError, match=f"{SECOND}: not a parquet file, or a truncated one"):
        open_corpus(folder)
    fetch(server, folder)
    assert on_disk(folder) == expected(server, FIRST, SECOND, THIRD)
    assert server.downloads(FIRST) == 0
    (folder / SECOND).write_bytes(server.files[SECOND][:-9])
    fetch(server, folder)
    assert on_disk(folder)[SECOND] == server.files[SECOND]


def test_a_missing_validation_shard_is_never_replaced_by_another(server, folder):
    server.busy[VALIDATION] = 1000
    with pytest.raises(OSError):
        fetch(server, folder)
    for name in (FIRST, SECOND):
        (folder / name).write_bytes(server.files[name])
    with pytest.raises(ValueError, match=f"whose validation shard {VALIDATION} .* is missing; finish fetching"):
        open_corpus(folder)


def test_of_two_that_fetch_at_once_one_downloads(server, folder):
    threads = [threading.Thread(target=fetch, args=(server, folder)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert on_disk(folder) == expected(server, FIRST, SECOND, THIRD)
    assert server.downloads(FIRST) == server.downloads(VALIDATION) == 1


def test_the_command_says_n_of_m_and_what_is_missing(server, folder, capsys):
    def command(endpoint: str, *arguments: str) -> int:
        return fetch_command.main(["--out", str(folder), "--endpoint", endpoint, *arguments])

    assert command(server.endpoint, "-n", "2") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"3 of 3 ok in {folder}"
    del server.files[FOURTH]
    assert command(server.endpoint, "-n", "4") == 1
    lines = capsys.readouterr().err.splitlines()[-2:]
    assert lines[0].endswith(f"{FOURTH}: {REPO} has no such file")
    assert lines[1].endswith(f"4 of 5 ok in {folder}")
    assert THIRD in on_disk(folder)
    assert command("http://127.0.0.1:1", "-n", "5") == 1  # where nothing listens
    assert "could not be fetched from http://127.0.0.1:1: " in capsys.readouterr().err.splitlines()[-1]
