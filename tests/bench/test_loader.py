"""scripts.bench_loader: what it prints, and what it refuses. How fast the loader is depends on the machine."""

import json

import pytest

from nanogka.tokenizer import Tokenizer
from scripts import bench_loader


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    return tmp_path / "base"


@pytest.fixture
def corpus(tmp_path):
    file = tmp_path / "c.jsonl"
    texts = [f"document {i}: " + "some words and more " * (i % 9 + 1) for i in range(60)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


@pytest.fixture
def tokenizer(base):
    made = Tokenizer.train(["document some words and more " * 20], 270)
    made.save(base / "tokenizers" / "small")
    return made


SMALL = ["--tokenizer", "small", "--tokens", "2000", "--batch-size", "2", "--sequence-len", "63", "--threads", "1"]


@pytest.mark.parametrize("packing", ["bestfit", "bos-bestfit-crop"])
def test_it_measures_and_ends_with_json(corpus, tokenizer, capsys, packing):
    assert bench_loader.main(["--data", str(corpus), "--packing", packing, *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    results = {result["kind"]: result for result in json.loads(lines[-1])["results"]}
    assert list(results) == ["tiktoken alone", "loader"]
    assert all(result["tokens"] >= 2000 for result in results.values())
    assert all(result["tokens_per_core_second"] > 0 for result in results.values())
    assert 0.5 < results["loader"]["filled"] < 1
    assert (results["loader"]["dropped_share"] > 0) == (packing == "bos-bestfit-crop")
    assert any(line.startswith("loader ") and "%" in line for line in lines)


def test_every_bad_argument_is_reported_at_once(base, capsys):
    words = ["--data", "/no", "--tokenizer", "no", "--tokens", "0", "--batch-size", "x", "--packing", "tight"]
    assert bench_loader.main(words) == 2
    assert [line.split(", ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "bench_loader: --batch-size: got 'x'",
        "bench_loader: --packing: got 'tight'",
        "bench_loader: --tokens: got 0",
        "bench_loader: --data: got '/no'",
        f"bench_loader: tokenizer: got {base / 'tokenizers' / 'no'}",
    ]
    assert not base.exists()
