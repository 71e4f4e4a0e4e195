"""What goes to which stream, and in which colours."""

import io

import pytest
from generate_models import byte_tokenizer, talking_model

from nanogka.generate import Engine, SamplingSettings
from nanogka.generate import terminal as terminal_module
from nanogka.generate.session import Session
from nanogka.generate.terminal import notice, printable, run_terminal, wants_colour


class Stream(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.fixture
def streams(monkeypatch):
    """Sets standard output and error; whether they are terminals. Returns them."""
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)

    def make(out, err):
        made = Stream(out), Stream(err)
        monkeypatch.setattr("sys.stdout", made[0])
        monkeypatch.setattr("sys.stderr", made[1])
        return made

    return make


@pytest.mark.parametrize("name, value", [("NO_COLOR", "1"), ("TERM", "dumb"), (None, None)])
def test_colours_are_for_terminals_that_want_them(streams, monkeypatch, name, value):
    if name is not None:
        monkeypatch.setenv(name, value)
    _, err = streams(True, True)
    notice("Hi")
    assert ("\x1b" in err.getvalue()) == (name is None)
    assert not wants_colour(Stream(False))


def test_neither_a_model_nor_a_file_steers_the_terminal(streams):
    _, err = streams(True, True)
    notice("a\x1b[31m\x07\x9bb\tc\n中文")
    assert "a␛[31m␇\ufffdb\tc\n中文" in err.getvalue()
    assert printable("\x1b[31m", Stream(False)) == "\x1b[31m"


@pytest.fixture
def typed(monkeypatch):
    """What is typed, one line a prompt; an exception is raised instead."""
    lines = []

    class Editor:
        editing = False

        def __init__(self, history):
            pass

        def ask(self, prompt):
            line = lines.pop(0) if lines else EOFError()
            if isinstance(line, BaseException):
                raise line
            return line

    monkeypatch.setattr(terminal_module, "LineEditor", Editor)
    return lines


@pytest.fixture
def session():
    engine = Engine(talking_model(range(97, 123)), byte_tokenizer())
    return Session(engine, SamplingSettings(temperature=1.0), max_tokens=5, chat=True)


def test_a_redirected_output_holds_the_replies_alone(streams, typed, session):
    out, err = streams(False, True)
    typed += ["Hi", "/help", "/nothing", "//slash", "  ", "/retry"]
    assert run_terminal(session) == 0
    replies = out.getvalue().splitlines()
    assert [len(reply) for reply in replies] == [5, 5, 5]
    assert [e.prompt for e in session.exchanges] == ["Hi", "/slash"]
    assert [e.text for e in session.exchanges] == [replies[0], replies[2]]
    assert "/nothing: no such command" in err.getvalue()


def test_ctrl_c_at_the_prompt_leaves_only_twice_in_a_row(streams, typed, session):
    streams(True, True)
    typed += [KeyboardInterrupt(), "Hi", KeyboardInterrupt(), KeyboardInterrupt(), "never"]
    assert run_terminal(session) == 0
    assert typed == ["never"]
    assert len(session.exchanges) == 1


def test_ctrl_c_in_a_reply_keeps_what_came_and_the_session(streams, typed, session, monkeypatch):
    out, err = streams(True, True)
    write = out.write

    def interrupted(text):
        write(text)
        if len(session.last.text) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(out, "write", interrupted)
    typed += ["Hi", "/history"]
    assert run_terminal(session) == 0
    (exchange,) = session.exchanges
    assert len(exchange.text) == 3
    assert "[stopped; the reply is kept as far as it came]" in err.getvalue()
    assert f"1  > Hi\n        {exchange.text}" in err.getvalue()


def test_what_is_no_utf8_is_not_sent(streams, typed, session):
    _, err = streams(True, True)
    typed += [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "Hi"]
    assert run_terminal(session) == 0
    assert "that was no UTF-8 text" in err.getvalue()
    assert len(session.exchanges) == 1


def test_the_notice_of_what_is_left_out_comes_before_the_reply(streams, typed, monkeypatch):
    out, _ = streams(True, False)
    engine = Engine(talking_model(range(97, 123), sequence_len=40), byte_tokenizer())
    both = Session(engine, SamplingSettings(temperature=1.0), max_tokens=5, chat=True)
    monkeypatch.setattr("sys.stderr", out)  # one screen, as people have it
    typed += ["ten letter", "and others", "and more"]
    assert run_terminal(both) == 0
    lines = out.getvalue().replace(terminal_module.DIM, "").replace(terminal_module.PLAIN, "").splitlines()
    at = next(i for i, line in enumerate(lines) if "does not fit into the context of 40 tokens any more" in line)
    assert lines[at + 1] == both.exchanges[-1].text
