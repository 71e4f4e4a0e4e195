"""`python -m scripts.visualize` on a run's folder: what it writes, what it says, what it refuses."""

import json
import re

import pytest
import torch
import yaml
from generate_models import byte_tokenizer, save_run, small_model
from run_fakes import write_corpus

from nanogka.data.sharding import write_shards
from nanogka.plots import style
from nanogka.runs import load_run
from nanogka.visualize import run as visualize_run
from nanogka.visualize.capture import clearest_look_back
from nanogka.visualize.page import build_page
from nanogka.visualize.run import read_text
from scripts import visualize


@pytest.fixture
def make_run(base, tmp_path):
    """`make_run(tag, pattern)`: the folder of a run of two layers that was hardly trained."""

    def call(tag="tiny", pattern="G"):
        tokenizer = byte_tokenizer([b"and ", b"word"])
        model = small_model(pattern, n_layer=2, sequence_len=40, vocab_size=tokenizer.vocab_size)
        data = str(write_corpus(tmp_path / "corpus"))
        folder = save_run(base / "runs" / tag, model, tokenizer=tokenizer, data=data)
        line = {"kind": "train", "step": 1, "tokens": 64, "bandwidth": [[1.5, 2.5]] * 2, "bandwidth_layers": [0, 1]}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        return folder

    return call


@pytest.fixture
def drawn(monkeypatch) -> list[str]:
    """Names of the figures that were drawn; their files are not written."""
    names = []
    monkeypatch.setattr(visualize_run, "save", lambda figure, path: names.append(path.stem))
    return names


@pytest.fixture
def sketched(drawn, monkeypatch) -> list[str]:
    """The same, but nothing is drawn."""
    for name in ("plot_matrices", "plot_heads"):
        monkeypatch.setattr(visualize_run, name, lambda *_: None)
    return drawn


@pytest.mark.parametrize("mode, shared", [(0o700, False), (0o755, True), (None, False)])
def test_a_page_of_private_text_is_private(make_run, sketched, tmp_path, mode, shared):
    folder = make_run() / "visualization"
    if mode is not None:  # shards are read where they are; of text files, a private copy is made
        write_shards(tmp_path / "corpus", [["words of training"], ["words of validation"]])
        (tmp_path / "corpus").chmod(mode)
    assert visualize.main(["--tokens", "4"]) == 0
    assert bool(folder.stat().st_mode & 0o077) == shared
    assert visualize.main(["--tokens", "4", "--output", str(tmp_path / "out")]) == 0  # a folder that the user chose
    assert (tmp_path / "out").stat().st_mode & 0o077


NAMES = ["bandwidth", "attention_layer_00", "attention_layer_01"]


def test_figures_and_page_of_the_validation_text_are_in_the_runs_folder(make_run, monkeypatch, capsys):
    monkeypatch.setattr(style, "DPI", 30)
    folder = make_run() / "visualization"
    assert visualize.main(["--passage", "1", "--tokens", "12"]) == 0
    out, _ = capsys.readouterr()
    assert out.splitlines()[-1] == f"page: {folder / 'index.html'}"
    assert "12 tokens" in out
    files = {path.name for path in folder.iterdir()}
    assert files == {f"{name}.png" for name in NAMES} | {"index.html"}
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert '"sigma":[[[1.5,2.5],[1.5,2.5]]]' in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_any_text_gives_every_figure_also_without_sigma_over_training(make_run, drawn, tmp_path, capsys):
    (make_run() / "metrics.jsonl").unlink()
    (tmp_path / "text.txt").write_text("😀\n\n\t<b>\x1b $x$ and $ " * 20, encoding="utf-8")
    for tokens in ("1", "99"):
        words = ["--tokens", tokens, "--text-file", str(tmp_path / "text.txt"), "--output", str(tmp_path / "out")]
        assert visualize.main(words) == 0
        assert (tmp_path / "out/index.html").is_file()
    assert drawn == 2 * NAMES
    assert "the text is longer" in capsys.readouterr().out


def test_a_chat_model_reads_the_prompt_in_its_template_and_its_own_reply(make_run):
    folder = make_run()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["run"] = {**config.get("run", {}), "kind": "chat"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    run = load_run(str(folder))
    trace = read_text(run, "a word", 40)
    ids = trace.captured.ids
    special = run.tokenizer.special_tokens
    start = ids.index(special["<|assistant_start|>"])
    assert ids[:2] == [run.tokenizer.bos_id, special["<|user_start|>"]]
    assert run.tokenizer.decode(ids[2 : start - 1]) == "a word"
    with torch.no_grad():  # the reply is greedy: each token is the likeliest after those before it
        best = run.model(torch.tensor([ids]))[0].argmax(-1).tolist()
    assert len(ids) > start + 1
    assert ids[start + 1 :] == best[start:-1]
    # The page opens on a token of the reply, and counts the bits of the reply.
    data = json.loads(re.search(r'id="data">(.*?)</script>', build_page([trace]))[1])
    assert data["models"][0]["reply"] == trace.reply_start == start + 1
    assert data["view"]["t"] >= start + 1
    place = clearest_look_back(trace.captured, 40, len(ids) - 1)
    assert place[0] == len(ids) - 1


def test_a_page_is_drawn_again_only_if_something_that_it_shows_has_changed(make_run, sketched, capsys):
    folder = make_run()
    page = folder / "visualization/index.html"

    def is_drawn(*flags: str) -> bool:
        sketched.clear()
        before = page.stat().st_mtime_ns if page.exists() else 0
        assert visualize.main(["--tokens", "5", *flags]) == 0
        assert bool(sketched) == (page.stat().st_mtime_ns != before)
        return bool(sketched)

    assert is_drawn()
    assert not is_drawn()
    assert is_drawn("--prompt", "a word")
    assert not is_drawn("--prompt", "a word")
    assert is_drawn("--prompt", "a word", "--token", "1")
    assert is_drawn("--prompt", "a word", "--token", "1", "--overwrite")
    (folder / "metrics.jsonl").unlink()
    assert is_drawn("--prompt", "a word", "--token", "1")


def test_bad_settings_are_named_before_anything_is_written(make_run, capsys, tmp_path):
    folder = make_run()
    (tmp_path / "empty").write_text("")
    (tmp_path / "latin").write_bytes("café".encode("latin-1"))
    files = [("--text-file", str(tmp_path / name)) for name in ("none", "empty", "latin")]
    for bad in (*files, ("--prompt", "a", "--token", "2"), ("--passage", "999")):
        assert visualize.main([*bad]) == 2
        assert f"visualize: {bad[-2]}: " in capsys.readouterr().err
    (folder / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "bandwidth": [[1], [1, 2]]}\n{"kin')
    assert visualize.main(["-p", "a word"]) == 2
    assert "`bandwidth`" in capsys.readouterr().err
    assert not (folder / "visualization").exists()
