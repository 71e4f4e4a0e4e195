"""Fetching FineWeb-Edu from a hub that misbehaves: what ends under a shard's name is the shard, or nothing does."""

import errno
import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_hub import COMMIT, FakeHub
from filelock import FileLock

from nanogka.data import fineweb, open_corpus
from nanogka.data.fineweb import REPO, VALIDATION, FetchError, fetch_fineweb, open_fineweb

FIRST, SECOND = "shard_00000.parquet", "shard_00001.parquet"


def shard(word: str, n: int = 40) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": [f"{word} {i * 7919 % 1000}" for i in range(n)]}), out, row_group_size=16)
    return out.getvalue()


@pytest.fixture
def server():
    names = [f"shard_{i:05d}.parquet" for i in range(6)]
    running = FakeHub(REPO, {**{name: shard(name) for name in names}, VALIDATION: shard("validation")})
    yield running
    running.close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """No long pauses between attempts."""
    monkeypatch.setattr(fineweb, "PAUSE", 0.001)
    monkeypatch.setattr(fineweb, "RETRIES", 2)


def fetch(server, folder, n=3, verify=False) -> tuple[int, list[str]]:
    said = []
    return fetch_fineweb(n, folder, workers=2, endpoint=server.endpoint, verify=verify, say=said.append), said


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "fw"


def on_disk(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.parquet")}


def expected(server, *names) -> dict[str, bytes]:
    return {name: server.files[name] for name in (*names, VALIDATION)}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


def test_a_full_fetch_has_every_shard_and_is_a_corpus_with_the_pinned_validation(server, folder):
    fetched, said = fetch(server, folder)
    assert (fetched, len(said)) == (4, 4)
    assert on_disk(folder) == expected(server, FIRST, SECOND, "shard_00002.parquet")
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith(".fetch.")) == [
        "corpus.json", FIRST, SECOND, "shard_00002.parquet", VALIDATION
    ]  # fmt: skip
    corpus = open_corpus(folder)
    assert next(corpus.documents("val")).startswith("validation")
    assert sum(1 for _ in corpus.documents("train")) == 120
    manifest = json.loads((folder / "corpus.json").read_text())
    assert (manifest["revision"], manifest["validation"]) == (COMMIT, VALIDATION)
    assert len(list(open_fineweb(2, folder).documents("train"))) == 80


def test_what_is_there_needs_no_network_and_more_shards_only_the_new_ones(server, folder):
    fetch(server, folder, n=2)
    before = len(server.requests)
    assert fetch(server, folder, n=2) == (0, [])
    assert len(server.requests) == before
    assert fetch(server, folder, n=4)[0] == 2
    assert server.downloads(FIRST) == server.downloads(VALIDATION) == 1


def test_a_shard_that_comes_damaged_is_refused_and_fetched_again(server, folder):
    server.wrong[FIRST] = 1
    assert fetch(server, folder)[0] == 4
    assert on_disk(folder)[FIRST] == server.files[FIRST]
    server.wrong["shard_00003.parquet"] = 100
    with pytest.raises(FetchError, match=r"00003.parquet: came with the wrong content: sha256 .*\n4 of 5 ok in "):
        fetch(server, folder, n=4)
    assert "shard_00003.parquet" not in on_disk(folder)


def test_a_hub_that_is_busy_is_waited_out_or_given_up_without_trying_all_shards(server, folder):
    server.busy[SECOND] = 2
    assert fetch(server, folder, n=2)[0] == 3
    server.busy.update(dict.fromkeys(server.files, 1000))
    with pytest.raises(FetchError, match=f"no success with {server.endpoint}"):
        fetch(server, folder, n=6)
    assert server.downloads("shard_00004.parquet") == server.downloads("shard_00005.parquet") == 0
    assert on_disk(folder) == expected(server, FIRST, SECOND)


def test_a_full_disk_is_one_clear_line_and_leaves_no_half_file(server, folder, monkeypatch):
    fetch(server, folder, n=1)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    free = type("Usage", (), {"free": 100})
    for name, value, words in (
        ("huggingface_hub.hf_hub_download", full, r"parquet: the disk is full\n"),
        ("shutil.disk_usage", lambda path: free, "0.0 GB to fetch and 0.0 GB free"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, value)
            with pytest.raises(FetchError, match=words):
                fetch(server, folder, n=3)
    assert on_disk(folder) == expected(server, FIRST)
    assert fetch(server, folder, n=3)[0] == 2


def test_a_killed_download_leaves_nothing_that_looks_whole(server, folder):
    server.held[FIRST] = threading.Event()
    words = ["-m", "nanogka.data.fineweb", "-n", "1", "--out", str(folder), "--endpoint", server.endpoint]
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen([sys.executable, *words], cwd=root, env={**os.environ}, stdout=subprocess.DEVNULL)
    while VALIDATION not in on_disk(folder) or not server.downloads(FIRST):
        time.sleep(0.02)
        assert process.poll() is None
    process.kill()
    process.wait()
    assert on_disk(folder) == expected(server)
    server.held.pop(FIRST).set()
    assert fetch(server, folder, n=1)[0] == 1
    assert on_disk(folder) == expected(server, FIRST)


def test_verify_finds_a_flipped_byte_and_fetches_the_shard_again(server, folder):
    fetch(server, folder)
    flip(folder / SECOND)
    assert fetch(server, folder)[0] == 0  # not seen without reading them all
    fetched, said = fetch(server, folder, verify=True)
    assert fetched == 1
    assert f"{SECOND}: damaged, its content has changed since it was verified" in said
    assert on_disk(folder)[SECOND] == server.files[SECOND]
    assert fetch(server, folder, verify=True)[0] == 0


def test_a_truncated_shard_is_refused_by_the_corpus_and_fetched_again_without_verify(server, folder):
    folder.mkdir()  # with shards that someone else put there: a good one and a bad one
    (folder / FIRST).write_bytes(server.files[FIRST])
    (folder / SECOND).write_bytes(server.files[SECOND][:-1] + b"PAR1")
    with pytest.raises(ValueError, match="shard_0000[01].parquet"):
        open_fineweb(2, folder)
    assert fetch(server, folder)[0] == 3
    assert server.downloads(FIRST) == 0, "a good shard is kept"
    (folder / SECOND).write_bytes(server.files[SECOND][:-9])
    assert fetch(server, folder)[0] == 1
    assert on_disk(folder)[SECOND] == server.files[SECOND]


def test_a_missing_validation_shard_is_never_replaced_by_another(server, folder):
    fetch(server, folder)
    (folder / VALIDATION).unlink()
    with pytest.raises(ValueError, match=f"whose validation shard {VALIDATION} .* is missing; finish fetching"):
        open_corpus(folder)
    assert fetch(server, folder)[0] == 1
    open_corpus(folder)


def test_the_fingerprint_covers_contents_and_the_shards_used_alone(server, folder, tmp_path):
    fetch(server, folder, n=2)
    before = open_fineweb(2, folder).fingerprint
    fetch(server, folder, n=3)
    assert open_fineweb(2, folder).fingerprint == before
    assert open_fineweb(3, folder).fingerprint != before
    texts = pq.read_table(io.BytesIO(server.files[FIRST]))["text"].to_pylist()
    out = io.BytesIO()
    pq.write_table(pa.table({"text": [texts[1], texts[0], *texts[2:]]}), out, row_group_size=16)
    assert len(out.getvalue()) == len(server.files[FIRST])  # the same size and rows
    server.files[FIRST] = out.getvalue()
    fetch(server, tmp_path / "other", n=2)
    assert open_fineweb(2, tmp_path / "other").fingerprint != before


def test_a_second_process_waits_and_then_finds_everything(server, folder):
    folder.mkdir()
    said = []
    with FileLock(folder / fineweb.LOCK):
        options = {"endpoint": server.endpoint, "say": said.append}
        waiting = threading.Thread(target=fetch_fineweb, args=(1, folder), kwargs=options)
        waiting.start()
        while not said:
            time.sleep(0.01)
    waiting.join()
    assert said[0] == f"another process is fetching into {folder}: waiting for it"
    assert on_disk(folder) == expected(server, FIRST)


# ---- the command ----


def command(endpoint: str, folder, *arguments: str) -> int:
    return fineweb.main(["--out", str(folder), "--endpoint", endpoint, *arguments])


def test_the_command_says_n_of_m_and_what_is_missing(server, folder, capsys):
    assert command(server.endpoint, folder, "-n", "2") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"3 of 3 ok (3 fetched now) in {folder}"
    del server.files["shard_00003.parquet"]
    assert command(server.endpoint, folder, "-n", "4") == 1
    lines = capsys.readouterr().err.splitlines()[-2:]
    assert lines[0].endswith(f"shard_00003.parquet: {REPO} has no such file")
    assert lines[1].endswith(f"4 of 5 ok in {folder}")
    assert "shard_00002.parquet" in on_disk(folder)
    assert command("http://127.0.0.1:1", folder, "-n", "5") == 1  # where nothing listens
    assert "no success with http://127.0.0.1:1: " in capsys.readouterr().err


def test_every_bad_argument_is_reported_at_once_and_nothing_is_created(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    words = ["-n", "many", "--workers", "0", "--endpoint", "hub", "--out", str(tmp_path / "file")]
    assert fineweb.main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["--shards", "--workers", "--endpoint", "--out"]
    assert fineweb.main(["-n", "1823"]) == 2
    assert "takes an integer from 1 to 1822" in capsys.readouterr().err
    assert not (tmp_path / "base").exists()
