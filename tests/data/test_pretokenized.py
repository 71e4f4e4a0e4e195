"""A pretokenised corpus: the same batches and states as its source, and clear words where it does not fit."""

import itertools
import json

import numpy as np
import pytest
import torch

from nanogka.data import PackingLoader, merge_states, open_corpus
from nanogka.data import pretokenized as module
from nanogka.data.pretokenized import TokenCorpus, pretokenize
from nanogka.tokenizer import Tokenizer
from scripts import pretokenize as script


def documents(first: int, n: int) -> list[str | None]:
    texts: list[str | None] = [f"document {first + i}: " + "naïve ☕ words " * (i * 7 % 11) for i in range(n)]
    texts[2], texts[5] = None, " \n"
    return texts


@pytest.fixture
def corpus(tmp_path, write_shards):
    return open_corpus(write_shards(tmp_path / "mine", documents(0, 40), documents(100, 33), documents(300, 20)))


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer.train([text for text in documents(0, 40) if text], 300)


@pytest.fixture
def tokens(corpus, tokenizer, tmp_path):
    return pretokenize(corpus, tokenizer, tmp_path / "tokens")


def load(corpus, tokenizer, split="train", **changes) -> PackingLoader:
    options = {"batch_size": 2, "sequence_len": 31, "seed": 3, "num_threads": 1, **changes}
    return PackingLoader(corpus, split, tokenizer, **options)


def take(loader: PackingLoader, n: int | None = None) -> list:
    with loader:
        return list(itertools.islice(loader, n))


def assert_same(one: list, two: list) -> None:
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.targets, b.targets)
        assert a.state == b.state


@pytest.mark.parametrize("packing", ["bestfit", "bos-bestfit-crop"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_batches_and_states_are_those_of_the_text(corpus, tokens, tokenizer, split, packing):
    text, ids = (take(load(c, tokenizer, split, packing=packing), 60) for c in (corpus, tokens))
    assert len(text) > 4
    assert_same(text, ids)


def test_a_run_may_change_from_text_to_tokens_and_from_one_rank_to_two(corpus, tokens, tokenizer):
    before = take(load(corpus, tokenizer, epochs=1), 6)
    state = json.loads(json.dumps(before[-1].state))
    for ranks in (1, 2):
        one, two = (
            [take(load(c, tokenizer, epochs=1, state=state, rank=r, world_size=ranks)) for r in range(ranks)]
            for c in (corpus, tokens)
        )
        for a, b in zip(one, two):
            assert_same(a, b)
        merge_states(batches[-1].state for batches in two)


def test_text_comes_back(corpus, tokens):
    assert isinstance(tokens, TokenCorpus)
    for split in ("train", "val"):
        assert list(tokens.documents(split)) == list(corpus.documents(split))
        for one, two in zip(tokens.blocks(split), corpus.blocks(split)):
            assert one.tolist() == two.tolist()
    assert tokens.read("train", 1, [3, 0, 3]) == corpus.read("train", 1, [3, 0, 3])
    assert tokens.read("train", 0)[2] is None


def test_open_corpus_finds_it_and_it_says_what_it_is(tokens, corpus, tokenizer, tmp_path):
    opened = open_corpus(tmp_path / "tokens")
    assert opened.fingerprint == corpus.fingerprint
    n = sum(len(tokenizer.encode(text)) for text in corpus.documents("train"))
    assert f"tokens of {corpus.path}, 69 training documents ({n:,} tokens), 18 validation" in opened.describe()
    assert opened.read_tokens("train", 0)[0].dtype == np.uint16


def test_a_large_vocabulary_takes_four_bytes(corpus, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer, "vocab_size", 70_000)
    tokens = pretokenize(corpus, tokenizer, tmp_path / "wide")
    assert tokens.read_tokens("train", 0)[0].dtype == np.uint32
    assert_same(take(load(corpus, tokenizer), 5), take(load(tokens, tokenizer), 5))


def test_another_tokenizer_is_refused(tokens, corpus):
    other = Tokenizer.train(["other words, other words"], 280)
    with pytest.raises(ValueError, match=r"tokens of the tokenizer .*…, and --tokenizer .*…; takes the one they were"):
        load(tokens, other)
    load(corpus, other).close()


def test_a_shard_without_any_document_is_empty(tmp_path, write_shards, tokenizer):
    corpus = open_corpus(write_shards(tmp_path / "c", [None, ""], ["some words " * 30] * 3, ["validation"]))
    tokens = pretokenize(corpus, tokenizer, tmp_path / "t")
    assert list(tokens.documents("train")) == ["some words " * 30] * 3
    assert_same(take(load(corpus, tokenizer), 9), take(load(tokens, tokenizer), 9))


def test_an_attempt_that_was_broken_off_goes_on_with_the_next_shard(corpus, tokenizer, tmp_path, monkeypatch):
    write, written = module._write_shard, []

    def failing(stem, *arguments):
        if len(written) == 1:
            raise OSError(28, "No space left on device")
        written.append(stem.name)
        return write(stem, *arguments)

    monkeypatch.setattr(module, "_write_shard", failing)
    with pytest.raises(OSError, match="No space left"):
        pretokenize(corpus, tokenizer, tmp_path / "t")
    assert not (tmp_path / "t").exists()
    monkeypatch.setattr(module, "_write_shard", lambda stem, *rest: written.append(stem.name) or write(stem, *rest))
    tokens = pretokenize(corpus, tokenizer, tmp_path / "t")
    assert written == ["train_00000", "train_00001", "val_00002"]
    assert list(tokens.documents("train")) == list(corpus.documents("train"))
    assert not (tmp_path / ".t.partial").exists()


def test_an_unfinished_attempt_at_something_else_is_not_continued(corpus, tokenizer, tmp_path):
    partial = tmp_path / ".t.partial"
    partial.mkdir()
    (partial / "plan.json").write_text("{}")
    np.save(partial / "train_00000.offsets.npy", np.zeros(41, np.int64))
    (partial / "train_00000.bin").touch()
    tokens = pretokenize(corpus, tokenizer, tmp_path / "t")
    assert list(tokens.documents("train")) == list(corpus.documents("train"))


def test_damage_is_named(tokens, tmp_path):
    file = tmp_path / "tokens" / "train_00001.bin"
    whole = file.read_bytes()
    file.write_bytes(whole[:-2])
    with pytest.raises(ValueError, match=r"train_00001.bin: has .* bytes, takes .*; pretokenise again"):
        open_corpus(tmp_path / "tokens")
    file.unlink()
    with pytest.raises(ValueError, match=r"train_00001.bin: is missing; pretokenise again"):
        open_corpus(tmp_path / "tokens")
    file.write_bytes(whole)
    offsets = tmp_path / "tokens" / "train_00000.offsets.npy"
    offsets.write_bytes(offsets.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"train_00000.offsets.npy: cannot be read"):
        open_corpus(tmp_path / "tokens").read_tokens("train", 0)
    (tmp_path / "tokens" / "tokens.json").write_text('{"format": 9')
    with pytest.raises(ValueError, match=r"tokens.json: cannot be read"):
        open_corpus(tmp_path / "tokens")


# ---- the command ----


def test_the_command_makes_a_corpus_of_tokens(corpus, tokenizer, base, capsys):
    tokenizer.save(base / "tokenizers" / "small")
    assert script.main(["--data", str(corpus.path), "--tokenizer", "small", "--threads", "1"]) == 0
    tokens = open_corpus(base / "tokens" / "mine-small")
    assert list(tokens.documents("val")) == list(corpus.documents("val"))
    out = capsys.readouterr().out
    assert "69 training documents" in out
    assert "tokens/s" in out
    assert script.main(["--data", str(tokens.path), "--tokenizer", "small"]) == 2
    assert "takes a corpus of text; this one is pretokenised already" in capsys.readouterr().err


def test_every_bad_argument_is_reported_at_once_and_nothing_is_created(tmp_path, base, capsys):
    words = ["--data", "/no/such", "--tokenizer", "none", "--threads", "0", "--out", str(tmp_path)]
    assert script.main(words) == 2
    assert [line.split(", ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "pretokenize: --threads: got 0",
        f"pretokenize: --out: got '{tmp_path}'",
        "pretokenize: --data: got '/no/such'",
        f"pretokenize: tokenizer: got {base / 'tokenizers' / 'none'}",
    ]
    assert not base.exists()
