"""Fetching FineWeb-Edu from a hub that misbehaves: what ends under a shard's name is the shard, or nothing does."""

import errno
import importlib.util
import io
import json
import socket
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanogka.data import fineweb, hub, open_corpus
from nanogka.data.fineweb import REPO, VALIDATION, FetchSettings, fetch
from nanogka.data.hub import HubDataset

_spec = importlib.util.spec_from_file_location("fake_hub", Path(__file__).with_name("fake_hub.py"))
_fake_hub = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fake_hub)

FIRST, SECOND = "shard_00000.parquet", "shard_00001.parquet"


def shard(word: str, n: int = 40) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": [f"{word} {i * 7919 % 1000}" for i in range(n)]}), out, row_group_size=16)
    return out.getvalue()


@pytest.fixture
def server():
    names = [f"shard_{i:05d}.parquet" for i in range(6)]
    running = _fake_hub.FakeHub(REPO, {**{name: shard(name) for name in names}, VALIDATION: shard("validation")})
    yield running
    running.close()


CHUNK = 64  # bytes that the hub library writes at once: 10 MB, which the shards here do not have


@pytest.fixture(autouse=True)
def small_and_hasty(monkeypatch):
    """Small chunks, and none of the second's pause that the hub library makes between two attempts."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", CHUNK)
    monkeypatch.setattr("huggingface_hub.file_download.DOWNLOAD_CHUNK_SIZE", CHUNK, raising=False)  # older versions
    monkeypatch.setattr("huggingface_hub.file_download.time", _Hasty)


class _Hasty:
    time = staticmethod(time.time)
    sleep = staticmethod(lambda seconds: None)


def run(server, tmp_path, n=3, *, retries=3, verify=False, workers=2, stop=None):
    settings = FetchSettings(shards=n, out=str(tmp_path / "fw"), verify=verify, workers=workers)
    said = []
    remote = HubDataset(REPO, endpoint=server.endpoint, retries=retries, wait=0.001, stop=stop)
    return fetch(settings, remote, said.append), said


def on_disk(tmp_path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (tmp_path / "fw").glob("shard_*")}


def expected(server, *names) -> dict[str, bytes]:
    return {name: server.files[name] for name in (*names, VALIDATION)}


def test_a_full_fetch_has_every_shard_and_is_a_corpus_with_the_pinned_validation(server, tmp_path):
    outcome, said = run(server, tmp_path)
    assert outcome.complete
    assert (outcome.fetched, outcome.problems) == (4, [])
    assert on_disk(tmp_path) == expected(server, FIRST, SECOND, "shard_00002.parquet")
    assert len(said) == 4
    corpus = open_corpus(tmp_path / "fw")
    assert next(corpus.documents("val")).startswith("validation")
    assert sum(1 for _ in corpus.documents("train")) == 120
    contents = [path for method, path, _ in server.requests if method == "GET" and path.startswith("/cdn/")]
    assert contents[0].startswith(f"/cdn/{VALIDATION}")
    assert not list((tmp_path / "fw").glob(".*.partial"))


def test_every_request_is_for_one_commit(server, tmp_path):
    run(server, tmp_path)
    resolved = [path for _, path, _ in server.requests if "/resolve/" in path]
    assert len(resolved) == 4
    assert all(f"/resolve/{_fake_hub.COMMIT}/" in path for path in resolved)
    marker = json.loads((tmp_path / "fw" / "corpus.json").read_text())
    assert (marker["revision"], marker["validation"]) == (_fake_hub.COMMIT, VALIDATION)


def test_what_is_there_needs_no_network_and_more_shards_only_the_new_ones(server, tmp_path):
    run(server, tmp_path, n=2)
    before = len(server.requests)
    outcome, _ = run(server, tmp_path, n=2)
    assert outcome.complete
    assert outcome.fetched == 0
    assert len(server.requests) == before
    outcome, _ = run(server, tmp_path, n=4)
    assert (outcome.complete, outcome.fetched) == (True, 2)
    assert server.ranges(FIRST) == [None] == server.ranges(VALIDATION)


def test_a_connection_cut_in_mid_shard_resumes_where_it_broke(server, tmp_path):
    server.cut[FIRST] = 1
    outcome, _ = run(server, tmp_path)
    assert outcome.complete
    assert on_disk(tmp_path)[FIRST] == server.files[FIRST]
    half = len(server.files[FIRST]) // 2
    assert server.ranges(FIRST) == [None, f"bytes={half - half % CHUNK}-"]


def test_a_later_process_resumes_what_an_earlier_one_left(server, tmp_path):
    run(server, tmp_path, n=1)
    digest = json.loads((tmp_path / "fw" / "corpus.json").read_text())["files"][FIRST]["sha256"]
    (tmp_path / "fw" / FIRST).unlink()
    partial = tmp_path / "fw" / f".{FIRST}.{digest[:12]}.partial"
    partial.write_bytes(server.files[FIRST][:100])
    outcome, _ = run(server, tmp_path, n=1)
    assert (outcome.complete, outcome.fetched) == (True, 1)
    assert server.ranges(FIRST) == [None, "bytes=100-"]
    assert on_disk(tmp_path) == expected(server, FIRST)
    assert not partial.exists()


def test_a_server_without_range_requests_is_read_from_the_start(server, tmp_path):
    server.ignores_range = True
    server.cut[FIRST] = 1
    outcome, _ = run(server, tmp_path)
    assert outcome.complete
    assert on_disk(tmp_path)[FIRST] == server.files[FIRST]


def test_a_503_twice_is_waited_out(server, tmp_path):
    server.busy[SECOND] = 2
    outcome, _ = run(server, tmp_path)
    assert outcome.complete
    assert len(server.ranges(SECOND)) == 3


def test_a_hub_that_stays_busy_is_given_up_and_the_others_are_not_tried_for_ever(server, tmp_path):
    server.busy.update(dict.fromkeys(server.files, 1000))
    outcome, _ = run(server, tmp_path, n=6, retries=2)
    assert not outcome.complete
    assert len(outcome.ok) == 0
    assert len(server.ranges(VALIDATION)) >= 3  # some versions of the library have patience of their own
    assert server.ranges(FIRST) == []
    assert len(outcome.problems) == 1
    assert f"{VALIDATION}: no success with {server.endpoint}" in outcome.problems[0]
    assert on_disk(tmp_path) == {}


def test_a_wrong_hash_is_fetched_once_more(server, tmp_path):
    server.wrong[FIRST] = 1
    outcome, _ = run(server, tmp_path)
    assert outcome.complete
    assert server.ranges(FIRST) == [None, None]
    assert on_disk(tmp_path)[FIRST] == server.files[FIRST]


def test_a_hash_that_stays_wrong_is_reported_and_the_others_come(server, tmp_path):
    server.wrong[FIRST] = 100
    outcome, _ = run(server, tmp_path)
    assert not outcome.complete
    assert len(outcome.ok) == 3
    assert server.ranges(FIRST) == [None, None]
    assert len(outcome.problems) == 1
    assert f"{FIRST}: came twice with the wrong content: sha256 " in outcome.problems[0]
    assert on_disk(tmp_path) == expected(server, SECOND, "shard_00002.parquet")
    assert not list((tmp_path / "fw").glob(".shard*"))


class _FullDisk:
    """A file on a disk that has room for so many bytes."""

    def __init__(self, file, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: bytes) -> int:
        taken = self.file.write(data[: self.room])
        self.room -= taken
        if taken < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        return taken

    def __getattr__(self, name: str):
        return getattr(self.file, name)


def test_a_full_disk_leaves_no_half_file_under_a_name(server, tmp_path, monkeypatch):
    run(server, tmp_path, n=1)
    opened = hub._Sink.__init__

    def on_a_full_disk(sink, *arguments):
        opened(sink, *arguments)
        sink.file = _FullDisk(sink.file, 300)

    monkeypatch.setattr(hub._Sink, "__init__", on_a_full_disk)
    outcome, _ = run(server, tmp_path, n=6, workers=1)
    assert len(outcome.problems) == 1
    assert "the disk is full" in outcome.problems[0]
    assert outcome.ok == {FIRST, VALIDATION}
    assert on_disk(tmp_path) == expected(server, FIRST)
    assert server.ranges("shard_00003.parquet") == []  # nothing more was tried
    open_corpus(tmp_path / "fw")  # what is there is as good as before
    monkeypatch.setattr(hub._Sink, "__init__", opened)
    assert run(server, tmp_path, n=6)[0].complete
    assert server.ranges(SECOND)[-1] == "bytes=300-"  # and what came before the disk was full is not lost


def test_a_disk_too_small_is_said_before_anything_is_fetched(server, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 100}))
    outcome, _ = run(server, tmp_path)
    assert "0.0 GB to fetch and 0.0 GB free" in outcome.problems[0]
    assert server.ranges(VALIDATION) == []


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


def test_verify_finds_a_flipped_byte_and_fetches_the_shard_again(server, tmp_path):
    run(server, tmp_path)
    flip(tmp_path / "fw" / SECOND)
    assert run(server, tmp_path)[0].fetched == 0  # without reading them all it cannot be seen
    outcome, said = run(server, tmp_path, verify=True)
    assert (outcome.complete, outcome.fetched) == (True, 1)
    assert f"{SECOND}: damaged, its content has changed since it was verified" in said
    assert on_disk(tmp_path)[SECOND] == server.files[SECOND]
    assert run(server, tmp_path, verify=True)[0].fetched == 0


def test_a_shard_that_the_disk_cannot_read_counts_as_damaged(server, tmp_path, monkeypatch):
    run(server, tmp_path)
    read = fineweb.sha256_of

    def bad_sector(path):
        if path.name == FIRST:
            raise hub.DiskError(f"{path}: Input/output error")
        return read(path)

    monkeypatch.setattr(fineweb, "sha256_of", bad_sector)
    outcome, _ = run(server, tmp_path, verify=True)
    assert (outcome.complete, outcome.fetched) == (True, 1)


def test_damage_found_without_a_network_is_remembered(server, tmp_path):
    run(server, tmp_path)
    flip(tmp_path / "fw" / SECOND)
    server.busy.update(dict.fromkeys(server.files, 1000))
    assert not run(server, tmp_path, verify=True, retries=0)[0].complete
    server.busy.clear()
    assert run(server, tmp_path)[0].fetched == 1
    assert on_disk(tmp_path)[SECOND] == server.files[SECOND]


def test_a_truncated_shard_is_fetched_again_without_verify(server, tmp_path):
    run(server, tmp_path)
    (tmp_path / "fw" / FIRST).write_bytes(server.files[FIRST][:50])
    assert run(server, tmp_path)[0].fetched == 1
    assert on_disk(tmp_path)[FIRST] == server.files[FIRST]


def test_shards_that_someone_else_put_there_are_checked_and_kept(server, tmp_path):
    (tmp_path / "fw").mkdir()
    (tmp_path / "fw" / FIRST).write_bytes(server.files[FIRST])
    (tmp_path / "fw" / SECOND).write_bytes(b"\0" * len(server.files[SECOND]))
    outcome, _ = run(server, tmp_path)
    assert (outcome.complete, outcome.fetched) == (True, 3)
    assert server.ranges(FIRST) == []
    assert on_disk(tmp_path)[SECOND] == server.files[SECOND]


def test_a_missing_validation_shard_is_never_replaced_by_another(server, tmp_path):
    run(server, tmp_path)
    (tmp_path / "fw" / VALIDATION).unlink()
    with pytest.raises(ValueError, match=f"whose validation shard {VALIDATION} .* is missing; finish fetching"):
        open_corpus(tmp_path / "fw")
    assert run(server, tmp_path)[0].fetched == 1
    open_corpus(tmp_path / "fw")


def test_a_shard_that_the_hub_does_not_have_is_named_and_the_others_come(server, tmp_path):
    del server.files[SECOND]
    outcome, _ = run(server, tmp_path)
    assert outcome.problems == [f"{SECOND}: {REPO} has no such file"]
    assert len(outcome.ok) == 3


def test_stopping_keeps_what_came(server, tmp_path):
    stop = threading.Event()
    stop.set()
    outcome, _ = run(server, tmp_path, stop=stop)
    assert outcome.ok == set()
    assert on_disk(tmp_path) == {}


# ---- the command ----


def command(server, tmp_path, *arguments: str) -> int:
    words = ["--out", str(tmp_path / "fw"), "--endpoint", server.endpoint, "--retries", "0", *arguments]
    return fineweb.main(words)


def test_the_command_says_n_of_m_and_its_exit_code_follows(server, tmp_path, capsys):
    assert command(server, tmp_path, "-n", "2") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"3 of 3 ok (3 fetched now) in {tmp_path / 'fw'}"
    server.wrong["shard_00002.parquet"] = 2
    assert command(server, tmp_path, "-n", "3", "--verify") == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == f"3 of 4 ok (0 fetched now) in {tmp_path / 'fw'}"
    assert "fineweb: shard_00002.parquet: came twice with the wrong content" in captured.err


def test_without_a_network_it_says_so_in_one_line(tmp_path, capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        out = str(tmp_path / "fw")
        assert fineweb.main(["-n", "1", "--out", out, "--endpoint", endpoint, "--retries", "0"]) == 1
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert f"fineweb: no success with {endpoint}: " in captured.err
    assert captured.out.splitlines() == [f"0 of 2 ok (0 fetched now) in {out}"]


def test_every_bad_argument_is_reported_at_once_and_nothing_is_created(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    words = ["-n", "many", "--workers", "0", "--retries", "-1", "--endpoint", "hub", "--out", str(tmp_path / "file")]
    assert fineweb.main(words) == 2
    assert capsys.readouterr().err.splitlines() == [
        "fineweb: --shards: got 'many', takes an integer",
        "fineweb: --workers: got 0, takes an integer of at least 1",
        "fineweb: --retries: got -1, takes an integer of at least 0",
        "fineweb: --endpoint: got 'hub', takes an address that begins with http:// or https://",
        f"fineweb: --out: got '{tmp_path / 'file'}', takes a folder, not a file",
    ]
    assert fineweb.main(["-n", "1823"]) == 2
    assert capsys.readouterr().err == "fineweb: -n: got 1823, takes an integer from 1 to 1822\n"
    assert fineweb.main([]) == 2
    assert not (tmp_path / "base").exists()


def test_the_default_folder_is_under_the_base_folder(base):
    assert FetchSettings().folder == base / "corpora" / "fineweb-edu"
