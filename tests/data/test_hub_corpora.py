"""Fetching a corpus from a hub that misbehaves: a shard under its name is whole, and any other is reported."""

import hashlib
import io
import json
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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


class Hub:
    """Stands in for `huggingface_hub.HfApi`, with its signatures. It compares sizes only, as the library does."""

    def __init__(self) -> None:
        self.files = {name: parquet([f"{name} {i * 7919 % 1000}" for i in range(40)]) for name in NAMES}
        self.busy, self.wrong = Counter(), Counter()  # name → how many more downloads fail, or have one bit flipped
        self.downloads = Counter()
        self.api = create_autospec(huggingface_hub.HfApi, instance=True)
        self.api.endpoint = "https://hub"
        self.api.dataset_info.side_effect = self.describe
        self.api.snapshot_download.side_effect = self.download

    def describe(self, repo: str, *, files_metadata: bool) -> SimpleNamespace:
        def entry(name: str, content: bytes) -> SimpleNamespace:
            lfs = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            return SimpleNamespace(rfilename=name, lfs=SimpleNamespace(**lfs) if files_metadata else None)

        return SimpleNamespace(sha="c0ffee", siblings=[entry(*item) for item in self.files.items()])

    def download(self, repo: str, *, allow_patterns: list[str], local_dir: Path, revision: str, **_: object) -> None:
        assert revision == "c0ffee"
        for name in allow_patterns:
            content, path = self.files[name], local_dir / name
            if path.exists() and path.stat().st_size == len(content):
                continue
            if self.busy[name]:
                self.busy[name] -= 1
                raise OSError("503 Service Unavailable\nand much more")
            self.downloads[name] += 1
            path.write_bytes(content[:-1] + bytes([content[-1] ^ (self.wrong[name] > 0)]))
            self.wrong[name] -= 1


@pytest.fixture
def hub(base, monkeypatch):
    monkeypatch.setattr(hub_corpora, "PAUSES", (0, 0))
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub.api)
    return hub


def fetch(n: int = 3, verify: bool = False) -> list[str]:
    lines = []
    fetch_corpus(FINEWEB, n, verify=verify, log=lines.append)
    return lines


def on_disk() -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in FINEWEB.folder.glob("*.parquet")}


def expected(hub, *names) -> dict[str, bytes]:
    return {name: hub.files[name] for name in (*names, VALIDATION)}


def test_a_fetch_is_a_corpus_with_the_pinned_validation_and_a_second_fetches_new_shards_only(hub):
    fetch(2)
    assert on_disk() == expected(hub, FIRST, SECOND)
    hub.api.dataset_info.reset_mock()
    assert fetch(2) == []
    assert not hub.api.dataset_info.called, "shards on the disk need no network"
    fetch(4)
    assert hub.downloads == dict.fromkeys(NAMES, 1)
    corpus = open_corpus("fineweb-edu")
    assert next(corpus.documents("val")).startswith(VALIDATION)
    assert sum(1 for _ in corpus.documents("train")) == 160
    assert json.loads((FINEWEB.folder / "corpus.json").read_text())["revision"] == "c0ffee"
    assert len(list(FINEWEB.open(2).documents("train"))) == 80


def test_a_damaged_download_is_removed_named_and_fetched_again(hub):
    hub.wrong[FIRST] = 1
    with pytest.raises(OSError, match=f"(?s){FIRST}: .*3 of 4 ok in "):
        fetch()
    assert on_disk() == expected(hub, SECOND, THIRD)
    fetch()
    assert on_disk() == expected(hub, FIRST, SECOND, THIRD)
    assert hub.downloads[SECOND] == 1


def test_a_busy_hub_is_waited_out_and_one_that_stays_so_is_one_line(hub):
    hub.busy[SECOND] = 2
    fetch(2)
    hub.busy[THIRD] = 1000
    with pytest.raises(OSError, match=f"^{REPO}: could not be fetched from https://hub: 503 Service Unavailable$"):
        fetch(3)
    assert on_disk() == expected(hub, FIRST, SECOND)


def test_verify_finds_a_flipped_byte_and_fetches_the_shard_again(hub):
    fetch()
    content = hub.files[SECOND]
    (FINEWEB.folder / SECOND).write_bytes(content[:100] + bytes([content[100] ^ 4]) + content[101:])
    assert fetch() == []  # not seen without reading them all
    assert f"{SECOND}: missing or damaged, fetching it again" in fetch(verify=True)
    assert on_disk()[SECOND] == content
    assert fetch(verify=True) == []


def test_a_truncated_shard_is_fetched_again(hub):
    fetch()
    (FINEWEB.folder / SECOND).write_bytes(hub.files[SECOND][:-9])
    with pytest.raises(ValueError, match=SECOND):
        open_corpus("fineweb-edu")
    fetch()
    assert on_disk() == expected(hub, FIRST, SECOND, THIRD)
    assert hub.downloads[FIRST] == 1


def test_a_missing_validation_shard_is_never_replaced_by_another(hub):
    hub.busy[VALIDATION] = 1000
    with pytest.raises(OSError):
        fetch()
    for name in (FIRST, SECOND):
        (FINEWEB.folder / name).write_bytes(hub.files[name])
    with pytest.raises(ValueError, match=f"validation shard {VALIDATION} .* is missing"):
        open_corpus("fineweb-edu")


def test_of_three_that_fetch_at_once_one_downloads(hub):
    threads = [threading.Thread(target=fetch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hub.downloads == dict.fromkeys((FIRST, SECOND, THIRD, VALIDATION), 1)


def test_the_command_names_a_missing_shard(hub, capsys):
    assert fetch_command.main(["-n", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"3 of 3 ok in {FINEWEB.folder}"
    del hub.files[FOURTH]
    assert fetch_command.main(["-n", "4"]) == 1
    lines = capsys.readouterr().err.splitlines()[-2:]
    assert lines[0].endswith(f"{FOURTH}: {REPO} has no such file")
    assert lines[1].endswith(f"4 of 5 ok in {FINEWEB.folder}")
    assert fetch_command.main(["--data", "climbmix", "-n", "6543"]) == 2


@pytest.mark.parametrize("spare", [-1, 0])
def test_without_space_for_the_missing_shards_nothing_is_downloaded(hub, monkeypatch, spare):
    fetch(1)
    free = len(hub.files[SECOND]) + len(hub.files[THIRD]) + spare
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=10**15, free=free))
    if spare < 0:
        with pytest.raises(OSError, match=str(FINEWEB.folder)):
            fetch(3)
    else:
        fetch(3)
    assert hub.downloads[SECOND] == spare + 1


@pytest.mark.parametrize("tokens, shards", [(0, 8), (363_000_000, 8), (364_000_000, 9), (10**12, 1822)])
def test_a_budget_needs_its_tokens_with_a_tenth_to_spare_and_eight_shards_for_the_tokenizer(tokens, shards):
    assert FINEWEB.shards_needed(tokens) == shards  # of 50 million tokens each


def test_climbmix_has_the_constants_of_nanochat():
    # nanochat/dataset.py at commit 92d63d4
    climbmix = HUB_CORPORA["climbmix"]
    assert (climbmix.repo, climbmix.validation) == ("karpathy/climbmix-400b-shuffle", "shard_06542.parquet")
