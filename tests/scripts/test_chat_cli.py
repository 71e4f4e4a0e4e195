"""The chat command line, through pipes and through a pseudo-terminal with real key codes."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from generate_models import byte_tokenizer, save_run, talking_model

from nanogka.tokenizer import Tokenizer
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
    monkeypatch.setenv("CXX", "false")  # each process would compile the kernels first
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def piped(monkeypatch):
    """Sets standard input to bytes that came through a pipe."""

    class Stdin:
        def __init__(self, data):
            self.buffer = self
            self.data = data

        def isatty(self):
            return False

        def read(self):
            return self.data

    return lambda data: monkeypatch.setattr(sys, "stdin", Stdin(data))


# ---- one reply, in this process ----


def test_p_prints_the_continuation_alone_and_names_the_model_on_stderr(base, capsys):
    make_run(base)
    arguments = ["-p", "The with", "--max-tokens", "20", "--dtype", "float32"]
    assert chat_cli.main(arguments) == 0
    first = capsys.readouterr()
    assert "d3-tiny, step 7:" in first.err
    assert "context 4,096 tokens (cpu, float32)" in first.err
    assert any(word in first.out for word in WORDS)
    assert first.out.endswith("\n")
    assert chat_cli.main(arguments) == 0
    assert capsys.readouterr().out == first.out
    assert chat_cli.main([*arguments, "--seed", "1"]) == 0
    assert capsys.readouterr().out != first.out
    assert "prompt_toolkit" not in sys.modules, "only a terminal needs it"


@pytest.mark.parametrize("kind", ["base", "chat"])
def test_a_piped_prompt_is_one_prompt_and_the_same_as_p(base, capsys, piped, kind):
    make_run(base, kind=kind)
    arguments = ["--max-tokens", "12", *(["--system", "Be kind."] if kind == "chat" else [])]
    assert chat_cli.main(["-p", "The with\nstatement 中文", *arguments]) == 0
    expected = capsys.readouterr()
    assert ("[cut off at 12 tokens; /max-tokens changes that]" in expected.err) == (kind == "chat")
    piped("The with\nstatement 中文\n".encode())
    assert chat_cli.main(arguments) == 0
    assert capsys.readouterr().out == expected.out


def test_json_is_one_document(base, capsys):
    folder = make_run(base)
    assert chat_cli.main(["-p", "Hi", "--json", "--max-tokens", "5", "--temperature", "0", "--run", str(folder)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    document = json.loads(line)
    assert document["run"] == str(folder)
    assert (document["prompt"], document["prompt_tokens"], document["tokens"]) == ("Hi", 3, 5)
    assert document["finish"] == "length"
    assert document["log_probability"] < 0
    assert document["settings"]["temperature"] == 0
    assert document["kind"] == "base"
    assert "messages" not in document


def messages(*texts, system=None):
    head = [] if system is None else [{"role": "system", "content": system}]
    return head + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def test_json_of_a_chat_is_a_conversation_in_and_out(base, capsys, piped):
    make_run(base, kind="chat")
    said = messages("Hi", "Hello 中文", "And?", system="Be kind.")
    piped(json.dumps({"messages": said}).encode())
    assert chat_cli.main(["--json", "--max-tokens", "6"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["messages"] == [*said, {"role": "assistant", "content": document["text"]}]
    assert (document["kind"], document["prompt"], document["left_out_exchanges"]) == ("chat", "And?", 0)
    # The document token, four marks for each exchange but the last's three and what the tokenizer makes of the words.
    encode = Tokenizer.load(base / "runs/d3-tiny/tokenizer").encode
    words = ["Be kind.\n\nHi", "Hello 中文", "And?"]
    assert document["prompt_tokens"] == 1 + 4 + 3 + sum(len(encode(text)) for text in words)

    piped(json.dumps({"messages": said[1:]}).encode())  # --system stands in front
    assert chat_cli.main(["--json", "--max-tokens", "6", "--system", "Be kind."]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["messages"], again["text"]) == (document["messages"], document["text"])

    assert chat_cli.main(["--json", "--max-tokens", "6", "-p", '{"messages": 1}']) == 0
    assert json.loads(capsys.readouterr().out)["messages"][0]["content"] == '{"messages": 1}'


# ---- bad input ----


@pytest.mark.parametrize(
    "value, message",
    [
        ('{"messages": [', "standard input, line 1: wrong JSON"),
        ({"messages": messages("Hi", "Ho")}, "standard input: messages: the last is the assistant's"),
        ({"messages": messages("Hi", system="Be.")}, "standard input: messages: have a system prompt already"),
    ],
)
def test_a_bad_conversation_is_named(base, capsys, piped, value, message):
    make_run(base, kind="chat")
    piped((value if isinstance(value, str) else json.dumps(value)).encode())
    assert chat_cli.main(["--json", "--system", "Be kind."]) == 2
    output = capsys.readouterr()
    assert output.err.splitlines()[1].startswith(f"chat_cli: {message}")
    assert not output.out


def test_a_base_model_takes_no_system_prompt_and_continues_any_json(base, capsys, piped):
    make_run(base)
    assert chat_cli.main(["-p", "Hi", "--system", "Be kind."]) == 2
    assert "--system: d3-tiny is a base model, a system prompt takes a chat model" in capsys.readouterr().err
    piped(b'{"messages": ')
    assert chat_cli.main(["--json", "--max-tokens", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == '{"messages": '


@pytest.mark.parametrize("kind, got", [("base", "100,001 tokens, takes at most 63"), ("chat", "100,000 tokens")])
def test_the_context_limit_is_a_message(base, capsys, kind, got):
    make_run(base, kind=kind, sequence_len=64)
    assert chat_cli.main(["-p", "abcdefghij", "--max-tokens", "0"]) == 0
    assert "[the context of 64 tokens is full]" in capsys.readouterr().err
    assert chat_cli.main(["-p", "x" * 100_000]) == 2
    assert f"chat_cli: prompt: got {got}" in capsys.readouterr().err


def test_every_bad_argument_is_reported_at_once(base, capsys):
    bad = {
        "--prompt": " ", "--system": " ", "--temperature": "-1", "--top-k": "-2", "--top-p": "0", "--min-p": "2",
        "--max-tokens": "-1", "--seed": "-1", "--device": "abacus", "--dtype": "int8", "--run": "nowhere",
        "--step": "-3", "--repetition-penalty": "1e-320",
    }  # fmt: skip
    assert chat_cli.main([word for pair in bad.items() for word in pair]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert {line.removeprefix("chat_cli: ").split(":")[0] for line in lines} == set(bad)


def test_no_run_says_how_to_train_one(base, capsys):
    assert chat_cli.main(["-p", "Hi"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no trained run" in line
    assert "scripts.base_train" in line


def test_a_pipe_without_text_is_refused(base, capsys, piped):
    make_run(base)
    for data, message in ((b"\n", "takes some text"), (b"a\xff", "not UTF-8 at position 1")):
        piped(data)
        assert chat_cli.main([]) == 2
        assert message in capsys.readouterr().err


# ---- as people use it, in a process of its own ----

UP, LEFT, ALT_ENTER, CTRL_C, CTRL_D = "\x1b[A", "\x1b[D", "\x1b\r", "\x03", "\x04"


def heed_ctrl_c():
    """As a shell in the foreground starts a program: one in the background makes its children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def own_terminal():
    heed_ctrl_c()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, arguments):
        controller, terminal = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
        environment |= {"PROMPT_TOOLKIT_NO_CPR": "1"}  # nobody here tells where the cursor is
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scripts.chat_cli", *arguments], cwd=ROOT, env=environment,
            stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
            preexec_fn=own_terminal,
        )  # fmt: skip
        os.close(terminal)
        self.controller = controller
        self.unread = b""

    def expect(self, pattern, seconds=120):
        """Read until `pattern` has come; returns everything up to its end."""
        end = time.monotonic() + seconds
        while not (match := re.search(pattern.encode(), self.unread, re.DOTALL)):
            shown = self.unread[-2000:].decode("utf-8", "replace")
            ready, _, _ = select.select([self.controller], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {pattern!r} in {shown!r}"
            assert self._read(), f"ended without {pattern!r}: {shown!r}"
        text, self.unread = self.unread[: match.end()], self.unread[match.end() :]
        return text.decode("utf-8")  # strict: characters come whole

    def _read(self):
        try:
            data = os.read(self.controller, 65536)
        except OSError:  # Linux, when the other side has closed
            data = b""
        self.unread += data
        return data

    def prompt(self):
        return self.expect("\x1b\\[0;1m>.*?\x1b\\[\\?25h")

    def send(self, keys):
        """Type `keys`; reads what the other side shows meanwhile, or both would wait for room."""
        data = keys if isinstance(keys, bytes) else keys.encode()
        while data:
            ready, free, _ = select.select([self.controller], [self.controller], [], 120)
            assert ready or free
            if ready:
                assert self._read()
            if free:
                data = data[os.write(self.controller, data[:512]) :]

    def exit_code(self):
        while self._read():
            pass
        return self.process.wait(120)


@contextmanager
def terminal(*arguments):
    session = Terminal(arguments)
    try:
        yield session
    finally:
        session.process.kill()
        session.process.wait()
        os.close(session.controller)


def paste(text):
    return f"\x1b[200~{text}\x1b[201~"


def test_a_conversation_survives_what_people_do_to_it(base):
    make_run(base, kind="chat", sequence_len=4096)
    (base / "chat_history").write_text("\n# last time\n+plain\n\n# last time\n+of last time\n+and its second line\n")
    file = base / "talk.jsonl"
    with terminal("--max-tokens", "9", "--system", "Be kind.") as chat:
        assert "It replies to what you type" in chat.prompt()
        chat.send("   \r")
        assert "tokens" not in chat.prompt()

        chat.send("的 statemenX\x7ft" + LEFT * 3 + "😀\r")  # Chinese, a correction, an emoji put in
        reply = chat.expect(r"\[cut off at 9 tokens.*\[9 tokens, [0-9.]+ tokens/s, first after .*of 4,096 in context\]")
        assert "\x1b[31m" not in reply, "the model must not colour the terminal"
        chat.prompt()
        chat.send(paste("two\rlines") + ALT_ENTER + "and a third\r")  # one prompt
        chat.expect("in context")
        chat.prompt()
        chat.send("/hist\t\r")  # completed
        shown = chat.expect("2  > two lines and a third")
        assert "system  Be kind." in shown
        assert "1  > 的 statem😀ent" in shown
        chat.prompt()

        chat.send("/max-tokens off\r")
        chat.expect("max-tokens = off")
        chat.prompt()
        chat.send(b"not \xff UTF-8\r")
        chat.expect("lone surrogate")
        chat.prompt()
        chat.send(UP * 6 + "\r")  # a prompt of three lines, past those behind it
        chat.expect("statement")
        chat.send(CTRL_C)  # in the middle of the reply
        chat.expect(r"\[stopped; the reply is kept as far as it came\]")
        chat.prompt()
        chat.send(f"/save {file}\r")
        chat.expect("saved 3 exchanges to")
        chat.prompt()

        chat.send(paste("word\r" * 20_000) + "\r")  # 100 KB
        chat.expect(r"prompt: got 100,000 tokens, takes at most 4,0\d\d: the context is 4,096 tokens")
        chat.prompt()
        chat.send("half a thought" + CTRL_C)
        chat.expect(r"\[Ctrl-D leaves, or Ctrl-C once more\]")
        chat.prompt()
        chat.send(CTRL_D)
        assert chat.exit_code() == 0
    (line,) = file.read_text(encoding="utf-8").splitlines()
    said = json.loads(line)["messages"]
    assert [m["content"] for m in said[:2]] == ["Be kind.", "的 statem😀ent"]
    assert [m["content"] for m in said[3::2]] == ["two\nlines\nand a third"] * 2
    assert "statement" in said[-1]["content"]
    kept = (base / "chat_history").read_text(encoding="utf-8")
    assert "+的 statem😀ent\n" in kept
    assert "+two\n+lines\n+and a third\n" in kept
    assert "word" not in kept
    assert "half a thought" not in kept


def run_piped(arguments, **kwargs):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "scripts.chat_cli", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, preexec_fn=heed_ctrl_c, **kwargs)


def test_a_reader_that_leaves_early_is_no_error_and_an_interrupt_says_so(base):
    make_run(base)
    arguments = ["-p", "Hi", "--max-tokens", "4000"]
    first, second = (run_piped(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2))
    first.stdout.read(10)
    first.stdout.close()
    errors = first.stderr.read().decode()
    assert first.wait(30) == 0
    assert "Traceback" not in errors
    assert "Exception" not in errors

    second.stdout.read(10)
    second.send_signal(signal.SIGINT)
    _, errors = second.communicate(timeout=30)
    assert second.returncode == 130
    assert errors.decode().endswith("chat_cli: interrupted\n")
