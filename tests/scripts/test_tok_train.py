"""scripts.tok_train: trains and saves, or names everything that is wrong before it touches the disk."""

import pytest

from nanogka.tokenizer import Tokenizer
from scripts import tok_train


@pytest.fixture
def own_text(tmp_path, base):
    folder = tmp_path / "own"
    folder.mkdir()
    for i in range(6):
        (folder / f"{i}.txt").write_text(f"A text of number {i}, and its words are words. " * 40)
    return folder


def test_it_trains_saves_and_says_what_it_did(own_text, tmp_path, capsys):
    assert tok_train.main(["--data", str(own_text), "--vocab-size", "290", "--name", "mine"]) == 0
    tokenizer = Tokenizer.load(tmp_path / "base" / "tokenizers" / "mine")
    assert tokenizer.vocab_size == 290
    assert "290 ids from 5 documents" in capsys.readouterr().out
    trained_on = tokenizer.meta["trained_on"]
    assert (trained_on["corpus"], trained_on["documents"]) == (str(own_text), 5)


def test_a_tokenizer_that_exists_can_be_kept(own_text, tmp_path):
    words = ["--data", str(own_text), "--name", str(tmp_path / "out"), "--vocab-size"]
    path = tmp_path / "out" / "meta.json"
    assert tok_train.main([*words, "280", "--keep"]) == 0, "there is none yet"
    before = path.read_bytes()
    assert tok_train.main([*words, "290", "--keep"]) == 0
    assert path.read_bytes() == before
    assert tok_train.main([*words, "290"]) == 0
    assert path.read_bytes() != before


def test_caps_on_characters_are_kept(own_text, tmp_path):
    out = str(tmp_path / "out")
    arguments = [
        "--data",
        str(own_text),
        "--vocab-size",
        "280",
        "--name",
        out,
        "--doc-cap",
        "100",
        "--max-chars",
        "250",
    ]
    assert tok_train.main(arguments) == 0
    trained_on = Tokenizer.load(out).meta["trained_on"]
    assert (trained_on["documents"], trained_on["characters"]) == (3, 250)


def test_a_vocabulary_that_the_text_cannot_fill_is_smaller_and_said(own_text, tmp_path, capsys):
    assert tok_train.main(["--data", str(own_text), "--vocab-size", "5000"]) == 0
    out = capsys.readouterr().out
    size = Tokenizer.load(tmp_path / "base" / "tokenizers" / "default").vocab_size
    assert size < 5000
    assert "note: --vocab-size: got 5000, but " in out
    assert f"too few repeated pairs; the tokenizer has {size}\n" in out  # too few for a multiple of 64
    words = " ".join(2 * [a + b + "x" for a in "abcdefghij" for b in "klmnopqrst"])
    for number in range(8):
        (own_text / f"more{number}.txt").write_text(f"{number} {words}")
    assert tok_train.main(["--data", str(own_text), "--vocab-size", "5000", "--name", "more"]) == 0
    size = Tokenizer.load(tmp_path / "base" / "tokenizers" / "more").vocab_size
    assert size % 64 == 0
    assert f"the tokenizer has {size}, the next lower multiple of 64\n" in capsys.readouterr().out
