"""The chat command line: one prompt from a flag or a pipe, a person at a terminal."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from generate_models import byte_tokenizer, save_run, talking_model
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input

from nanogka.runs import Run
from scripts import chat_cli

ROOT = Path(__file__).parents[2]
WORDS = [" the", " with", " statement", " 中文", "😀", "é", ".", "\n", "\x1b[31m"]


def make_run(base, sequence_len=4096, kind="base"):
    """An untrained run whose model says little but `WORDS`."""
    tokenizer = byte_tokenizer([word.encode() for word in WORDS if len(word.encode()) > 1])
    ids = range(tokenizer.vocab_size - len(tokenizer.special_tokens))
    model = talking_model([i for i in ids if tokenizer.decode([i]) in WORDS], sequence_len)
    return save_run(base / "runs" / "d3-tiny", model, kind, tokenizer)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def reply(capsys, monkeypatch):
    """Runs the command in this process, with bytes from a pipe; returns its exit code, output and errors."""

    def run(*arguments, data=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return chat_cli.main(list(arguments)), *capsys.readouterr()

    return run


def test_p_and_a_pipe_print_the_reply_alone_and_name_the_model_on_stderr(base, reply, monkeypatch):
    make_run(base)
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)  # only a terminal needs it
    arguments = ["--max-tokens", "20", "--dtype", "float32"]
    code, first, errors = reply("-p", "The with\nstatement 中文", *arguments)
    assert code == 0
    assert "d3-tiny, step 7:" in errors
    assert "context 4,096 tokens (cpu, float32)" in errors
    assert any(word in first for word in WORDS)
    assert reply(*arguments, data="The with\nstatement 中文\n".encode())[1] == first
    assert reply("-p", "The with\nstatement 中文", *arguments, "--seed", "1")[1] != first


def test_a_terminal_begins_a_session(base, monkeypatch, capsys):
    make_run(base, kind="chat")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    with create_pipe_input() as keys, create_app_session(input=keys):
        keys.send_text("Hi there\r\x04")
        assert chat_cli.main(["--max-tokens", "5", "--system", "Be kind."]) == 0
    out, err = capsys.readouterr()
    assert "It replies to what you type. /help" in err
    assert "[cut off at 5 tokens" in err
    assert any(word in out for word in WORDS)
    assert "+Hi there\n" in (base / "chat_history").read_text()


@pytest.mark.parametrize(
    "kind, arguments, data, message",
    [
        ("base", "-p Hi --system Be", b"", "--system: d3-tiny is a base model, expected a chat model"),
        ("base", "", b"\n", "expected some text"),
        ("base", "", b"a\xff", "at position 1"),
        ("base", "", b"x" * 10_000, "chat_cli: --prompt: got 10,001 tokens"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_named(base, reply, kind, arguments, data, message):
    make_run(base, kind=kind)
    code, output, errors = reply(*arguments.split(), data=data)
    assert (code, output) == (2, "")
    assert message in errors


def start_talking() -> subprocess.Popen:
    """A process of the terminal that prints a long reply, after its first characters."""
    command = [sys.executable, "-m", "scripts.chat_cli", "-p", "Hi", "--max-tokens", "4000"]
    options = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "stdout": -1, "stderr": -1}
    # As a shell in the foreground starts a program: one in the background makes its children ignore Ctrl-C.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, **options)
    process.stdout.read(10)
    return process


def test_a_reader_that_leaves_early_is_no_error(base):
    make_run(base)
    process = start_talking()
    process.stdout.close()
    assert re.fullmatch(r"d3-tiny, step 7.*\n", process.stderr.read().decode())
    assert process.wait(30) == 0


@pytest.mark.slow  # a process as above; tests/common/test_signals.py has what all scripts share
def test_an_interrupt_says_so(base):
    make_run(base)
    process = start_talking()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[1].decode().endswith("chat_cli: ended by SIGINT\n")
    assert process.returncode == 130


def test_without_a_run_the_chat_model_replies_and_not_the_later_base_model(base, reply):
    make_run(base, kind="chat")
    save_run(base / "runs" / "later", talking_model([97]))
    assert "d3-tiny, step 7:" in reply("-p", "a", "--max-tokens", "1")[2]
    assert "later, step 7:" in reply("-p", "a", "--max-tokens", "1", "--run", "later")[2]


def test_examples_of_the_run_are_answered_each_alone(base, reply):
    folder = make_run(base, kind="chat")
    greedy = ["--temperature", "0", "--max-tokens", "12", "--dtype", "float32"]
    (folder / "examples.json").write_text('["One?", "Two?"]')
    code, shown, errors = reply("--examples", *greedy)
    assert code == 0
    assert [line for line in errors.splitlines() if line.startswith("> ")] == ["> One?", "> Two?"]
    assert shown == reply("-p", "One?", *greedy)[1] + reply("-p", "Two?", *greedy)[1]
    for damaged in ("[", "{}", "[1]"):  # then there are none, and a common first question is asked
        (folder / "examples.json").write_text(damaged)
        assert "> What can you do?" in reply("--examples", *greedy)[2]
    assert reply("--examples", "-p", "One?")[0] == 2


def test_an_evaluated_run_shows_questions_that_it_answered_rightly(base):
    def task(name, *replies):
        shown = [{"prompt": prompt, "reply": "x", "right": right} for prompt, right in replies]
        return {"name": name, "accuracy": 0.5, "items": 9, "chance": 0.1, "stderr": 0.1, "replies": shown}

    folder = make_run(base, kind="chat")
    (folder / "examples.json").write_text('["One?", "Two?"]')
    tasks = [
        task("a", ("A?", False), ("B?", True), ("C?", True)),
        task("b", ("D?", False)),
        task("c", ("E?" * 50, True)),
    ]
    tasks += [task(name, (f"{name}?", True)) for name in "defg"]
    (folder / "chat_evaluation.json").write_text(json.dumps({"tasks": tasks}))
    assert Run.open(folder).examples == ["B?", "d?", "e?", "f?"]
    (folder / "chat_evaluation.json").write_text(json.dumps({"tasks": tasks[1:3]}))
    assert Run.open(folder).examples == ["One?", "Two?"]
