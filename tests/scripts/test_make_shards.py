"""scripts.make_shards: every document once, in random order, in shards that open as a corpus."""

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanogka.data import open_corpus
from scripts import make_shards

pytestmark = pytest.mark.usefixtures("base")


@pytest.fixture
def own(tmp_path):
    """A folder with 60 documents as .jsonl, and what they are."""
    (tmp_path / "own").mkdir()
    texts = [f"document {i}: " + "naïve ☕ words " * (i % 7 + 1) for i in range(60)]
    for part in range(3):
        lines = [json.dumps({"text": text}) + "\n" for text in texts[part::3]]
        (tmp_path / "own" / f"{part}.jsonl").write_text("".join(lines))
    return str(tmp_path / "own"), texts


def contents(folder) -> tuple[list[str], list[str]]:
    corpus = open_corpus(folder)
    return list(corpus.documents("train")), list(corpus.documents("val"))


def test_own_text_becomes_shards_with_each_document_once(own, tmp_path, capsys):
    folder, texts = own
    out = tmp_path / "out"
    words = ["--data", folder, "--out", str(out), "--shard-chars", "800"]
    assert make_shards.main(words) == 0
    train, val = contents(out)
    assert sorted(train + val) == sorted(texts)
    assert train + val != texts
    assert 1 <= len(val) < 20
    shards = sorted(out.glob("*.parquet"))
    assert len(shards) > 3
    assert sum(map(len, pq.read_table(shards[0]).column(0).to_pylist())) >= 800
    manifest = json.loads((out / "corpus.json").read_text())
    assert manifest["validation"] == shards[-1].name
    for shard in shards:
        record, content = manifest["files"][shard.name], shard.read_bytes()
        assert (record["size"], record["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    said = f"60 documents ({sum(map(len, texts)):,} characters) in {len(shards)} shards"
    assert said in capsys.readouterr().out


def test_the_seed_decides_the_order(own, tmp_path):
    orders = []
    for i, seed in enumerate(("1", "1", "2")):
        out = tmp_path / str(i)
        assert make_shards.main(["--data", own[0], "--out", str(out), "--seed", seed]) == 0
        orders.append(contents(out))
    assert orders[0] == orders[1] != orders[2]


def test_parquet_files_and_null_rows(tmp_path, base, capsys):
    (tmp_path / "p").mkdir()
    pq.write_table(pa.table({"body": ["one", None, "  ", "two", "three"]}), tmp_path / "p" / "0.parquet")
    assert make_shards.main(["--data", str(tmp_path / "p"), "--column", "body"]) == 0
    train, val = contents(base / "corpora" / "p")
    assert sorted(train + val) == ["one", "three", "two"]
    assert "2 without text skipped" in capsys.readouterr().out


@pytest.mark.parametrize("streaming", [True, False])
def test_a_dataset_is_streamed_or_loaded_through_the_datasets_library(tmp_path, monkeypatch, streaming):
    datasets = pytest.importorskip("datasets")
    texts = [f"document {i}" for i in range(50)]
    asked = []

    def load(*names, **options):
        asked.append((names, options))
        loaded = datasets.Dataset.from_dict({"text": texts, "id": list(range(50))})
        return loaded.to_iterable_dataset() if options.get("streaming") else loaded

    monkeypatch.setattr(datasets, "load_dataset", load)
    words = ["--dataset", "HuggingFaceFW/fineweb-edu", "--subset", "sample-10BT"]
    assert make_shards.main([*words, "--streaming" if streaming else "--no-streaming", "--max-chars", "300"]) == 0
    assert asked == [
        (("HuggingFaceFW/fineweb-edu", "sample-10BT"), {"split": "train"} | ({"streaming": True} if streaming else {}))
    ]
    train, val = contents(tmp_path / "base" / "corpora" / "fineweb-edu-sample-10BT")
    assert set(train + val) < set(texts)
    assert len(set(train + val)) == len(train + val)
    assert 300 <= sum(map(len, train + val)) < 320
    assert train + val != texts[: len(train + val)]


def test_text_that_is_not_utf8_is_named_and_leaves_nothing(tmp_path, base, capsys):
    texts = pa.array([b"fine", b"bro\xffken"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": texts}), tmp_path / "0.parquet")
    assert make_shards.main(["--data", str(tmp_path / "0.parquet")]) == 2
    assert "0.parquet: row group 0 has text that is not UTF-8" in capsys.readouterr().err
    assert not list(base.glob("corpora/*"))


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which nobody can write, for root too")
def test_a_folder_in_which_nothing_can_be_written_is_an_error_at_once(own, capsys):
    assert make_shards.main(["--data", own[0], "--out", "/proc/x"]) in (1, 2)
    assert "/proc/.x.lock" in capsys.readouterr().err


def test_a_folder_of_csv_files_is_read_as_text(tmp_path, base, capsys):
    folder = tmp_path / "[D] set"
    folder.mkdir()
    (folder / "a.csv").write_text("text,b\n" + "".join(f"line {i},1\n" for i in range(20)) + "NA,1\nnull,2\n")
    (folder / "b.csv").write_text("c,text\n" + "".join(f"1,row {i}\n" for i in range(9)))
    assert make_shards.main(["--dataset", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert "31 documents" in capsys.readouterr().out
    (folder / "c.csv").write_text("text,b\none,1,2\n")
    words = ["--data", str(folder), "--out", str(tmp_path / "skipped")]
    assert make_shards.main(words) == 2
    error = capsys.readouterr().err
    assert "c.csv, line 2: has 3 fields" in error
    assert "--bad-files skip" in error
    assert make_shards.main([*words, "--bad-files=skip"]) == 0
    printed = capsys.readouterr()
    assert "left out: " in printed.err
    assert "31 documents" in printed.out


def test_a_dataset_whose_column_is_no_text_or_that_cannot_be_read_is_one_line(tmp_path, base, monkeypatch, capsys):
    datasets = pytest.importorskip("datasets")
    loaded = datasets.Dataset.from_dict({"text": list(range(50))})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: loaded)
    assert make_shards.main(["--dataset", "a/b", "--out", str(tmp_path / "x")]) == 2
    assert "--column: got 'text', which holds int in row 1" in capsys.readouterr().err

    def fail(*_, **__):
        raise RuntimeError("An error occurred while generating the dataset") from ValueError("line 4 has 3 fields")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    assert make_shards.main(["--dataset", "a/b", "--out", str(tmp_path / "x")]) == 1
    assert "line 4 has 3 fields" in capsys.readouterr().err
