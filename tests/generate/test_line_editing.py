"""Typing without a terminal to type at: the history file, and pasted lines where readline does not know pastes."""

import json
import stat

import pytest

from nanogka.generate import line_editing
from nanogka.generate.line_editing import HISTORY_LENGTH, LineEditor

readline = pytest.importorskip("readline")


@pytest.fixture
def typed(monkeypatch):
    """Lines that `input` gives; an exception among them is raised."""
    lines = []

    def give(prompt=""):
        line = lines.pop(0)
        if isinstance(line, type):
            raise line
        return line

    monkeypatch.setattr("builtins.input", give)
    monkeypatch.setattr(line_editing.sys, "stdin", type("Stdin", (), {"isatty": lambda self: True})())
    # What is there the moment a line has been read was pasted with it; None stands for the hand that types.
    waiting = lambda *_: ([lines[0]] if lines and lines[0] is not None else [], [], [])  # noqa: E731
    monkeypatch.setattr(line_editing.select, "select", waiting)
    yield lines
    readline.clear_history()


def entries():
    return [readline.get_history_item(i + 1) for i in range(readline.get_current_history_length())]


def test_prompts_of_several_lines_come_back_whole_in_the_next_session(tmp_path, typed):
    path = tmp_path / "history"
    prompts = ["one\ntwo", "中文 😀\u2028", "/help", "/help"]
    typed += [line for prompt in prompts for line in (prompt, None)]
    editor = LineEditor(path)
    editor.bracketed_paste = False
    for prompt in prompts:
        assert editor.ask("> ") == prompt
        typed.pop(0)
    assert entries() == prompts[:3]
    readline.clear_history()
    LineEditor(path)
    assert entries() == prompts[:3]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_pasted_file_is_not_kept_for_the_next_session(tmp_path, typed):
    typed += ["x" * (HISTORY_LENGTH + 1), None, " ", None]
    editor = LineEditor(tmp_path / "history")
    editor.ask("> ")
    assert len(entries()) == 1
    typed.pop(0)
    editor.ask("> ")
    assert len(entries()) == 1
    assert not (tmp_path / "history").exists()


def test_a_history_of_plain_lines_is_read_as_it_is(tmp_path, typed):
    (tmp_path / "history").write_text('plain "words"\n"a\\nb"\n17\n')
    LineEditor(tmp_path / "history")
    assert entries() == ['plain "words"', "a\nb", "17"]


def test_a_long_history_is_cut(tmp_path, typed, monkeypatch):
    monkeypatch.setattr(line_editing, "HISTORY_ENTRIES", 3)
    (tmp_path / "history").write_text("".join(f"{json.dumps(str(i))}\n" for i in range(7)))
    LineEditor(tmp_path / "history")
    assert entries() == ["4", "5", "6"]
    assert (tmp_path / "history").read_text() == '"4"\n"5"\n"6"\n'


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff\n")])
def test_a_history_that_cannot_be_read_is_none(tmp_path, typed, make):
    make(tmp_path / "history")
    typed += ["Hi", None]
    assert LineEditor(tmp_path / "history").ask("> ") == "Hi"


def test_without_bracketed_paste_lines_that_come_together_are_one_prompt(typed):
    editor = LineEditor()
    editor.bracketed_paste = False
    typed += ["one", "two", "", "three", None, "four", None]
    assert editor.ask("> ") == "one\ntwo\n\nthree"
    typed.pop(0)
    assert editor.ask("> ") == "four"


def test_without_bracketed_paste_commands_stay_apart_and_the_end_waits(typed):
    editor = LineEditor()
    editor.bracketed_paste = False
    typed += ["/help", "one", "two", EOFError]
    assert editor.ask("> ") == "/help"
    assert editor.ask("> ") == "one\ntwo"
    with pytest.raises(EOFError):
        editor.ask("> ")
