"""The chat command line, through pipes and through a pseudo-terminal with real key codes."""

import fcntl
import io
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
def reply(capsys, monkeypatch):
    """Runs the command in this process, with bytes from a pipe; returns its exit code, output and errors."""

    def run(*arguments, data=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return chat_cli.main(list(arguments)), *capsys.readouterr()

    return run


# ---- one reply, in this process ----


def test_p_and_a_pipe_print_the_reply_alone_and_name_the_model_on_stderr(base, reply):
    make_run(base)
    arguments = ["--max-tokens", "20", "--dtype", "float32"]
    code, first, errors = reply("-p", "The with\nstatement 中文", *arguments)
    assert code == 0
    assert "d3-tiny, step 7:" in errors
    assert "context 4,096 tokens (cpu, float32)" in errors
    assert any(word in first for word in WORDS)
    assert reply(*arguments, data="The with\nstatement 中文\n".encode())[1] == first
    assert reply("-p", "The with\nstatement 中文", *arguments, "--seed", "1")[1] != first
    assert "prompt_toolkit" not in sys.modules, "only a terminal needs it"


def as_json(*texts, system=None):
    head = [] if system is None else [{"role": "system", "content": system}]
    said = head + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return json.dumps({"messages": said}).encode()


def test_json_is_one_document_of_a_chat_a_conversation_in_and_out(base, reply):
    folder, flags = make_run(base), ["--max-tokens", "5", "--json"]
    code, output, _ = reply(*flags, "--run", str(folder), data=b'{"messages": ')  # a base model continues any text
    document = json.loads(output)
    wanted = {"run": str(folder), "kind": "base", "prompt": '{"messages": ', "tokens": 5, "finish": "length"}
    assert (code, document | wanted) == (0, document)
    assert document["log_probability"] < 0
    assert document["settings"] == {
        **{"temperature": 0.8, "top_k": 50, "top_p": 1.0, "min_p": 0.0},
        **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": 0, "max_tokens": 5},
    }
    assert "messages" not in document

    make_run(base, kind="chat")
    texts = ("Hi", "Hello 中文", "And?")
    document = json.loads(reply(*flags, data=as_json(*texts, system="Be kind."))[1])
    assert [m["content"] for m in document["messages"]] == ["Be kind.", *texts, document["text"]]
    # The document token, four marks for each exchange but the last's three and what the tokenizer makes of the words.
    encode = Tokenizer.load(base / "runs/d3-tiny/tokenizer").encode
    words = ["Be kind.\n\nHi", *texts[1:]]
    assert document["prompt_tokens"] == 1 + 4 + 3 + sum(len(encode(text)) for text in words)
    again = json.loads(reply(*flags, "--system", "Be kind.", data=as_json(*texts))[1])
    assert again["messages"] == document["messages"]
    plain = json.loads(reply(*flags, "-p", '{"messages": 1}')[1])
    assert plain["messages"][0]["content"] == '{"messages": 1}'


@pytest.mark.parametrize(
    "kind, arguments, data, message",
    [
        ("chat", "--json --system Be", b'{"messages": [', "standard input, line 1: wrong JSON"),
        ("chat", "--json", as_json("Hi", "Ho"), "standard input: messages: the last is the assistant's"),
        ("chat", "--json --system Be", as_json("Hi", system="Be."), "messages: have a system prompt already"),
        ("base", "-p Hi --system Be", b"", "--system: d3-tiny is a base model, a system prompt takes a chat model"),
        ("base", "", b"\n", "takes some text"),
        ("base", "", b"a\xff", "not UTF-8 at position 1"),
        ("base", "", b"x" * 100_000, "chat_cli: prompt: got 100,001 tokens, takes at most 4,095"),
        ("chat", "", b"x" * 100_000, "chat_cli: prompt: got 100,000 tokens"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_named(base, reply, kind, arguments, data, message):
    make_run(base, kind=kind)
    code, output, errors = reply(*arguments.split(), data=data)
    assert (code, output) == (2, "")
    assert message in errors


def test_every_bad_argument_is_reported_at_once(base, reply):
    bad = {
        "--prompt": " ", "--system": " ", "--temperature": "-1", "--top-k": "-2", "--top-p": "0", "--min-p": "2",
        "--max-tokens": "-1", "--seed": "-1", "--device": "abacus", "--dtype": "int8", "--run": "nowhere",
        "--step": "-3", "--repetition-penalty": "1e-320",
    }  # fmt: skip
    code, _, errors = reply(*(word for pair in bad.items() for word in pair))
    assert code == 2
    assert {line.removeprefix("chat_cli: ").split(":")[0] for line in errors.splitlines()} == set(bad)
    assert re.fullmatch("chat_cli: .*no trained run.*base_train.*\n", reply("-p", "Hi")[2])


# ---- as people use it, in a process of its own ----

UP, LEFT, ALT_ENTER, CTRL_C, CTRL_D = "\x1b[A", "\x1b[D", "\x1b\r", "\x03", "\x04"


def prepare(terminal):
    """As a shell in the foreground starts a program: one in the background makes its children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def start(arguments, terminal=False, **kwargs):
    """The command in a process of its own."""
    environment = os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    environment |= {"PROMPT_TOOLKIT_NO_CPR": "1"}  # nothing here reports the cursor's position
    command = [sys.executable, "-m", "scripts.chat_cli", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, preexec_fn=lambda: prepare(terminal), **kwargs)


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, arguments):
        self.controller, terminal = pty.openpty()
        streams, self.unread = dict.fromkeys(("stdin", "stdout", "stderr"), terminal), b""
        self.process = start(arguments, terminal=True, start_new_session=True, **streams)
        os.close(terminal)

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
            assert not ready or self._read()
            if free:
                data = data[os.write(self.controller, data[:512]) :]

    def ask(self, keys, answer):
        """Type `keys`, and wait for an answer and the next prompt; returns what came up to the answer."""
        self.send(keys)
        shown = self.expect(answer)
        self.prompt()
        return shown

    def exit_code(self):
        while self._read():
            pass
        return self.process.wait(120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.controller)


def paste(text):
    return f"\x1b[200~{text}\x1b[201~"


def test_a_conversation_survives_what_people_do_to_it(base):
    make_run(base, kind="chat", sequence_len=4096)
    (base / "chat_history").write_text("\n# last time\n+plain\n\n# last time\n+of last time\n+and its second line\n")
    file = base / "talk.jsonl"
    with Terminal(["--max-tokens", "9", "--system", "Be kind."]) as chat:
        assert "It replies to what you type" in chat.prompt()
        chat.send("   \r")
        assert "tokens" not in chat.prompt()
        # Chinese, a correction, an emoji put in
        ended = r"\[cut off at 9 tokens.*\[9 tokens, [0-9.]+ tokens/s, first after .*of 4,096 in context\]"
        reply = chat.ask("的 statemenX\x7ft" + LEFT * 3 + "😀\r", ended)
        assert "\x1b[31m" not in reply, "the model must not colour the terminal"
        chat.ask(paste("two\rlines") + ALT_ENTER + "and a third\r", "in context")  # one prompt
        shown = chat.ask("/hist\t\r", "2  > two lines and a third")  # completed
        assert "1  > 的 statem😀ent" in shown
        chat.ask("/max-tokens off\r", "max-tokens = off")
        chat.ask(b"not \xff UTF-8\r", "lone surrogate")
        chat.send(UP * 6 + "\r")  # a prompt of three lines, past those behind it
        chat.expect("statement")
        chat.ask(CTRL_C, r"\[stopped; the reply is kept as far as it came\]")  # in the middle of the reply
        chat.ask(f"/save {file}\r", "saved 3 exchanges to")
        chat.ask(paste("word\r" * 20_000) + "\r", r"prompt: got 100,000 tokens, takes at most 4,0\d\d")  # 100 KB
        chat.ask("half a thought" + CTRL_C, r"\[Ctrl-D leaves, or Ctrl-C once more\]")
        chat.send(CTRL_D)
        assert chat.exit_code() == 0
    said = [m["content"] for m in json.loads(file.read_text(encoding="utf-8"))["messages"]]
    assert said[:2] == ["Be kind.", "的 statem😀ent"]
    assert said[3::2] == ["two\nlines\nand a third"] * 2
    assert "statement" in said[-1]
    kept = (base / "chat_history").read_text(encoding="utf-8")
    assert "+的 statem😀ent\n" in kept
    assert "+two\n+lines\n+and a third\n" in kept
    assert "word" not in kept
    assert "half a thought" not in kept


def test_a_reader_that_leaves_early_is_no_error_and_an_interrupt_says_so(base):
    make_run(base)
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    first, second = (start(["-p", "Hi", "--max-tokens", "4000"], **pipes) for _ in range(2))
    first.stdout.read(10)
    first.stdout.close()
    second.stdout.read(10)
    second.send_signal(signal.SIGINT)
    assert re.fullmatch(r"d3-tiny, step 7.*\n", first.stderr.read().decode())
    assert second.communicate(timeout=30)[1].decode().endswith("chat_cli: interrupted\n")
    assert (first.wait(30), second.returncode) == (0, 130)
