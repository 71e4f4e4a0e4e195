"""`nanogka.load`: the same numbers and texts as the evaluator and the chat command line."""

import inspect
import math
import pydoc
import subprocess
import sys

import pytest
import torch
from generate_models import save_run, small_model

import nanogka
from nanogka import api
from scripts import chat_cli

CONTEXT = 64


@pytest.fixture
def load(tmp_path, monkeypatch):
    """`load(kind)`: a model of random weights, through a run's folder."""
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))

    def call(kind: str) -> nanogka.Model:
        save_run(tmp_path / "base" / "runs" / f"tiny-{kind}", small_model("GD", sequence_len=CONTEXT), kind)
        return nanogka.load(f"tiny-{kind}", device="cpu", dtype="float32")

    return call


def test_every_token_of_a_text_counts(load):
    model = load("base")
    text = "".join(chr(97 + i * i % 26) for i in range(2 * CONTEXT + 9))
    nats = 0.0
    for start in range(0, len(text), CONTEXT):
        ids = [model.run.tokenizer.bos_id, *text[start : start + CONTEXT].encode()]
        logits = model.run.model(torch.tensor([ids[:-1]]))[0].double()
        nats -= float(logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]].detach().sum())
    assert model.loss(text) == pytest.approx(nats / len(text), rel=1e-5)
    assert model.bits_per_byte(text) == pytest.approx(nats / len(text) / math.log(2), rel=1e-5)


def test_chat_and_generate_are_the_command_lines(load, capsys):
    model = load("chat")
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(("Hi", "Yes", "So"))]
    options = ["--temperature", "0", "--max-tokens", "12", "--dtype", "float32", "--run", "tiny-chat"]
    assert chat_cli.main(["-p", "Hi", *options]) == 0
    expected = capsys.readouterr().out.removesuffix("\n")
    assert model.chat(messages[:1], temperature=0, max_tokens=12) == expected
    assert expected
    with pytest.raises(ValueError, match="^messages"):
        model.chat(messages[:2])
    assert model.chat(messages, temperature=0, max_tokens=12) != expected

    base = load("base")
    assert chat_cli.main(["-p", "Hi", *options[:-1], "tiny-base"]) == 0
    text = capsys.readouterr().out.removesuffix("\n")
    greedy = {"temperature": 0, "max_tokens": 12}
    assert base.generate("Hi", **greedy) == text == "".join(base.stream("Hi", **greedy))
    assert base.generate("Hi", **greedy, stop=text[3:5]) == text[: text.find(text[3:5])]
    for asked in ("Hi", messages):
        with pytest.raises(ValueError, match=r"tiny-base is a base model.*generate\(\).*chat_sft --base tiny-base"):
            base.chat(asked)


def test_a_text_in_chat_is_one_message_of_the_user(load):
    model = load("chat")
    greedy = {"temperature": 0, "max_tokens": 12}
    assert model.chat("Hi", **greedy) == model.chat([{"role": "user", "content": "Hi"}], **greedy)
    assert model.chat("Hi", **greedy) != model.generate("Hi", **greedy)


def test_importing_nanogka_imports_nothing_large():
    code = "import nanogka, sys; print({'torch', 'numpy', 'yaml'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_help_shows_how_to_load_generate_and_chat():
    shown = pydoc.plain(pydoc.render_doc(nanogka))
    assert "load(run" in shown
    for example in ("nanogka.load(", "model.generate(", "model.chat("):
        assert example in shown
    assert inspect.signature(nanogka.load).parameters.keys() == inspect.signature(api.load).parameters.keys()
