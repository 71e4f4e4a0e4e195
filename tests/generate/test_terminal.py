"""The interactive loop: what goes to which stream, and interruptions that leave the session intact."""

import io

import pytest
from generate_models import byte_tokenizer, chat_session

from nanogka.generate import terminal as terminal_module
from nanogka.generate.terminal import notice, run_terminal, shown


class Stream(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.fixture
def streams(monkeypatch):
    """Replaces standard output and error; whether they are terminals."""
    monkeypatch.setenv("NO_COLOR", "1")

    def make(*terminals):
        made = [Stream(terminal) for terminal in terminals]
        monkeypatch.setattr("sys.stdout", made[0])
        monkeypatch.setattr("sys.stderr", made[1])
        return made

    return make


@pytest.fixture
def typed(monkeypatch):
    """Typed texts, one per prompt; an exception is raised instead."""
    lines = []

    def ask():
        line = lines.pop(0) if lines else EOFError()
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr(terminal_module, "line_editor", lambda history: ask)
    return lines


@pytest.mark.parametrize("name, value", [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "xterm")])
def test_colours_are_for_terminals_that_want_them(streams, monkeypatch, name, value):
    _, err = streams(True, True)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    notice("Hi")
    assert ("\x1b" in err.getvalue()) == (value == "xterm")


def test_neither_a_model_nor_a_file_controls_the_terminal(streams, typed):
    out, err = streams(True, True)
    notice("a\x1b[31m\x07\x9bb\tc\n中文")
    assert "a␛[31m␇\ufffdb\tc\n中文" in err.getvalue()
    assert shown("\x1b[31m", Stream(False)) == "\x1b[31m"
    typed += ["Hi", "/load \x1b[31m", "/history"]
    run_terminal(chat_session([0x1B, 97]))
    assert "␛" in out.getvalue()
    assert "\x1b" not in out.getvalue() + err.getvalue()


def test_a_redirected_output_holds_the_replies_alone(streams, typed):
    out, err = streams(False, True)
    session = chat_session()
    typed += ["Hi", "/help", "/nothing", "//slash", "  ", "/retry", "/exit", "never"]
    assert run_terminal(session) == 0
    assert typed == ["never"]
    replies = out.getvalue().splitlines()
    assert [len(reply) for reply in replies] == [8, 8, 8]
    assert [(e.prompt, e.text) for e in session.exchanges] == [("Hi", replies[0]), ("/slash", replies[2])]
    assert "/nothing: no such command" in err.getvalue()


def test_ctrl_c_at_the_prompt_leaves_only_twice_in_a_row(streams, typed):
    streams(True, True)
    typed += [KeyboardInterrupt(), "Hi", KeyboardInterrupt(), KeyboardInterrupt(), "never"]
    assert run_terminal(chat_session()) == 0
    assert typed == ["never"]


def test_a_reply_that_says_nothing_or_is_cut_off_is_explained(streams, typed):
    _, err = streams(True, False)
    silent = [byte_tokenizer().special_tokens["<|assistant_end|>"]]
    for session in (chat_session(silent), chat_session()):
        typed += ["Hi"]
        run_terminal(session)
    assert err.getvalue().splitlines() == [
        "[the reply is empty; the conversation stays as it was]",
        "[cut off at 8 tokens; /max-tokens changes that]",
    ]


def test_exchanges_left_out_are_announced_once_before_the_reply(streams, typed, monkeypatch):
    out, _ = streams(True, False)
    session = chat_session(sequence_len=40, max_tokens=5)
    monkeypatch.setattr("sys.stderr", out)  # one screen, as people have it
    typed += ["ten letter", "and others", "and more", "/retry"]
    assert run_terminal(session) == 0
    lines = out.getvalue().splitlines()
    (at,) = [i for i, line in enumerate(lines) if "does not fit into the context of 40 tokens any more" in line]
    assert len(lines[at + 1]) == 5  # the reply
