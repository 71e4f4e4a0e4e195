"""scripts.bench_loader: what it prints. How fast the loader is depends on the machine."""

import json

from nanogka.tokenizer import Tokenizer
from scripts import bench_loader


def test_it_measures_and_ends_with_json(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    Tokenizer.train(["document some words and more " * 20], 270).save(tmp_path / "base" / "tokenizers" / "small")
    corpus = tmp_path / "c.jsonl"
    texts = [f"document {i}: " + "some words and more " * (i % 9 + 1) for i in range(60)]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = ["--data", str(corpus), "--tokenizer", "small", "--tokens", "2000", "--batch-size", "2"]
    for packing in ("bestfit", "bos-bestfit-crop"):
        assert bench_loader.main([*words, "--sequence-len", "63", "--threads", "1", "--packing", packing]) == 0
        lines = capsys.readouterr().out.splitlines()
        results = {result["kind"]: result for result in json.loads(lines[-1])["results"]}
        assert list(results) == ["tiktoken alone", "loader"]
        assert all(result["tokens"] >= 2000 for result in results.values())
        assert all(result["tokens_per_core_second"] > 0 for result in results.values())
        assert 0.5 < results["loader"]["filled"] < 1
        assert (results["loader"]["dropped_share"] > 0) == (packing == "bos-bestfit-crop")
