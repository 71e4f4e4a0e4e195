"""scripts.bench_loader: what it prints, and what it refuses. How fast the loader is depends on the machine."""

import json

import pytest

from nanogka.data import open_corpus
from nanogka.data.pretokenized import pretokenize
from nanogka.tokenizer import Tokenizer
from scripts import bench_loader


@pytest.fixture
def corpus(tmp_path, write_shards):
    texts = [f"document {i}: " + "some words and more " * (i % 9 + 1) for i in range(60)]
    return open_corpus(write_shards(tmp_path / "c", texts, texts[:9]))


@pytest.fixture
def tokenizer(base):
    made = Tokenizer.train(["document some words and more " * 20], 270)
    made.save(base / "tokenizers" / "small")
    return made


SMALL = ["--tokenizer", "small", "--tokens", "2000", "--batch-size", "2", "--sequence-len", "63", "--threads", "1"]


@pytest.mark.parametrize("packing", ["bestfit", "bos-bestfit-crop"])
def test_it_measures_three_ways_and_ends_with_json(corpus, tokenizer, capsys, packing):
    assert bench_loader.main(["--data", str(corpus.path), "--packing", packing, *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    results = {result["kind"]: result for result in json.loads(lines[-1])["results"]}
    assert list(results) == ["tiktoken alone", "from text", "pretokenised"]
    assert results["from text"]["tokens"] >= 2000
    assert results["pretokenised"]["tokens"] >= 20_000
    assert results["tiktoken alone"]["tokens"] >= 2000
    assert all(result["tokens_per_core_second"] > 0 for result in results.values())
    assert 0.5 < results["from text"]["filled"] < 1
    assert (results["pretokenised"]["dropped_share"] > 0) == (packing == "bos-bestfit-crop")
    assert any(line.startswith("pretokenised ") and "%" in line for line in lines)


def test_tokens_of_other_text_are_refused(corpus, tokenizer, tmp_path, write_shards, capsys):
    pretokenize(corpus, tokenizer, tmp_path / "t")
    words = ["--data", str(corpus.path), "--pretokenized", str(tmp_path / "t"), *SMALL]
    assert bench_loader.main(words) == 0
    other = write_shards(tmp_path / "other", ["a text", "and one"], ["more"])
    assert bench_loader.main(["--data", str(other), *words[2:]]) == 2
    assert "--pretokenized: got " in capsys.readouterr().err


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
