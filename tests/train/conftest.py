"""A small world to train in: own text, its tokenizer, a base folder."""

import random
import shutil

import pytest
from generate_models import save_run
from training import die_before, train, write_talk
from world import make_text, make_tokenizer

from nanogka.model import GPT, GPTConfig
from nanogka.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A base folder that holds a corpus of 60 documents (`text`) and a tokenizer of 300 ids (`tiny`)."""
    base = tmp_path_factory.mktemp("base")
    make_text(base / "text", random.Random(0), 60, 200)
    make_tokenizer(base)
    return base


@pytest.fixture
def base(world, tmp_path, monkeypatch):
    """A fresh base folder with the world's tokenizer."""
    (tmp_path / "tokenizers").symlink_to(world / "tokenizers")
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.fixture
def chat_base(base):
    """The base folder, with a base model `tiny` of random weights in it."""
    tokenizer = Tokenizer.load(base / "tokenizers" / "tiny")
    model = GPT(GPTConfig(64, tokenizer.vocab_size, n_layer=2, n_head=1, n_embd=64), seed=1)
    save_run(base / "runs" / "tiny", model, tokenizer=tokenizer, data="text")
    return base


@pytest.fixture
def talk(base):
    """A file of conversations."""
    return write_talk(base / "talk.jsonl")


def toy_flags(world):
    """Command-line flags of a run of seconds: depth 2, 12 steps of 128 tokens."""
    words = f"--data {world / 'text'} --tokenizer tiny --depth 2 --sequence-len 32 --total-batch-size 128"
    words += " --device-batch-size 2 --num-iterations 12 --eval-every 5 --eval-tokens 256 --device cpu --compile off"
    return words.split()


@pytest.fixture
def flags(base, world):
    return toy_flags(world)


@pytest.fixture
def short(flags):
    """Flags of a run of five steps, `mine`."""
    return [*flags, "--num-iterations", "5", "--eval-every", "0", "--save-every", "2", "--run", "mine"]


@pytest.fixture(scope="session")
def finished(world, tmp_path_factory):
    """The folder of such a run, which nobody changes."""
    base = tmp_path_factory.mktemp("finished")
    (base / "tokenizers").symlink_to(world / "tokenizers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGKA_BASE_DIR", str(base))
        words = toy_flags(world) + "--num-iterations 5 --eval-every 0 --save-every 2 --run mine".split()
        assert train(*words) == 0
    return base / "runs" / "mine"


@pytest.fixture
def mine(base, finished):
    """A copy of it in the base folder."""
    return shutil.copytree(finished, base / "runs" / "mine")


@pytest.fixture
def interrupted(monkeypatch):
    """`interrupted(step, *words, main=train)`: train as `main` does, but die before the update after `step`."""

    def run(step, *words, main=train):
        with monkeypatch.context() as patched:
            die_before(step, patched.setattr)
            assert main(*words) == 130

    return run
