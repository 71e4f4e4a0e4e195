"""A small world to train in: own text, its tokenizer, a base folder."""

import random

import pytest
from training import train

from nanogka.data import open_corpus, train_on_corpus
from nanogka.train.optimizer import Schedule

WORDS = ("the", "a", "cat", "dog", "sees", "finds", "old", "red", "house", "river", "and", "in", "on", "with", "quick")


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A base folder that holds a corpus of 60 documents (`text`) and a tokenizer of 300 ids (`tiny`)."""
    base = tmp_path_factory.mktemp("base")
    rng = random.Random(0)
    (base / "text").mkdir()
    for i in range(60):
        words = [rng.choice(WORDS) for _ in range(rng.randint(20, 200))]
        (base / "text" / f"{i:03}.txt").write_text(" ".join(words) + ".")
    corpus = open_corpus(base / "text")
    train_on_corpus(corpus, 300, max_chars=10**6, doc_cap=10**4).save(base / "tokenizers" / "tiny")
    return base


@pytest.fixture
def base(world, tmp_path, monkeypatch):
    """A fresh base folder with the world's tokenizer."""
    (tmp_path / "tokenizers").symlink_to(world / "tokenizers")
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.fixture
def flags(base, world):
    """Command-line flags of a run of seconds: depth 2, 12 steps of 128 tokens."""
    words = f"--data {world / 'text'} --tokenizer tiny --depth 2 --sequence-len 32 --total-batch-size 128"
    words += " --device-batch-size 2 --num-iterations 12 --eval-every 5 --eval-tokens 256 --device cpu --compile off"
    return words.split()


@pytest.fixture
def interrupted(monkeypatch):
    """`interrupted(step, *words, main=train)`: train as `main` does, but die before the update after `step`."""

    def run(step, *words, main=train):
        with monkeypatch.context() as patched:
            original = Schedule.apply

            def apply(self, optimizers, at):
                if at == step:
                    raise KeyboardInterrupt
                return original(self, optimizers, at)

            patched.setattr(Schedule, "apply", apply)
            assert main(*words) == 130

    return run
