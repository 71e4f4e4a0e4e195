"""scripts.tok_eval: a table of bytes per token whose last line is JSON."""

import json

import pytest

from nanogka.tokenizer import Tokenizer
from scripts import tok_eval
from scripts.tok_eval import SAMPLES


@pytest.fixture
def prepared(tmp_path, base):
    """A tokenizer called default under the base folder, and a folder of text."""
    folder = tmp_path / "own"
    folder.mkdir()
    for i in range(6):
        (folder / f"{i}.txt").write_text(f"Ein Text mit der Nummer {i}, ☕ und so weiter. " * 40)
    Tokenizer.train(SAMPLES.values(), 400).save(base / "tokenizers" / "default")
    return folder


def test_every_kind_of_text_is_measured(prepared, tmp_path, capsys):
    assert tok_eval.main(["--data", str(prepared)]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    tokenizer = Tokenizer.load(tmp_path / "base" / "tokenizers" / "default")
    kinds = [*SAMPLES, "corpus, training", "corpus, validation"]
    assert list(document["bytes_per_token"]) == kinds
    assert document["vocab_size"] == 400
    for kind, text in SAMPLES.items():
        expected = len(text.encode()) / len(tokenizer.encode(text))
        assert document["bytes_per_token"][kind] == pytest.approx(expected, abs=1e-4)
    table = lines[1:-1]
    assert [line[:20].strip() for line in table[1:]] == kinds
    assert all(line.endswith("ok") for line in table[1:])


def test_max_chars_bounds_what_is_read_and_none_reads_nothing(prepared, capsys):
    assert tok_eval.main(["--data", str(prepared), "--max-chars", "100"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("corpus, training"))
    assert 100 <= int(row.split()[2]) <= 110
    assert tok_eval.main(["--data", "none"]) == 0
    assert "corpus" not in capsys.readouterr().out


def test_a_text_that_does_not_survive_fails_the_script(prepared, capsys, monkeypatch):
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: "something else")
    assert tok_eval.main(["--data", "none"]) == 1
    assert "CHANGED" in capsys.readouterr().out
