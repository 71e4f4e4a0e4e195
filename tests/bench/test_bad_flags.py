"""Every benchmark names all of its bad flags at once, and creates nothing."""

import importlib

import pytest

BAD = {
    "attention": {"--lengths": "64,x", "--window": "-1", "--batch": "0", "--contestants": "mine", "--dtype": "int8"},
    "generate": {"--depth": "0", "--contexts": "5,x", "--batch-sizes": "0", "--repeats": "0", "--dtype": "int8"},
    "train": {"--depth": "0", "--batch": "0", "--device": "nowhere", "--compare": "x"},
    "loader": {"--batch-size": "x", "--packing": "tight", "--tokens": "0", "--data": "/no", "--tokenizer": "no"},
    "ranks": {"--repeats": "0", "ranks": "1"},  # the number of processes is no flag
}


@pytest.mark.parametrize("name", BAD)
def test_every_bad_flag_is_named(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    monkeypatch.delenv("RANK", raising=False)
    words = [word for flag, value in BAD[name].items() if flag.startswith("--") for word in (flag, value)]
    assert importlib.import_module(f"scripts.bench_{name}").main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    named = {line.split(":")[1].strip().removeprefix("--") for line in lines}
    assert named == {flag.removeprefix("--") for flag in BAD[name]}
    assert not (tmp_path / "base").exists()
