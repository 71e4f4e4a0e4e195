"""The interactive loop: commands, what goes to which stream, and interruptions that leave the session intact."""

import io
import threading

import pytest
from generate_models import byte_tokenizer, calling_model, chat_session, say
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input

from nanogka.generate import terminal as terminal_module
from nanogka.generate.commands import CHAT_ONLY, COMMANDS, SETTINGS, run_command
from nanogka.generate.engine import Engine
from nanogka.generate.session import Session
from nanogka.generate.settings import SessionSettings
from nanogka.generate.terminal import run_terminal


@pytest.fixture
def session():
    return chat_session()


@pytest.mark.parametrize("line, field, value", [("/top_k off", "top_k", 0), ("/TOP-P  .9", "top_p", 0.9)])
def test_a_command_sets_its_setting_and_without_a_value_shows_it(session, line, field, value):
    shown = f"{field.replace('_', '-')} = {value or 'off'}"
    assert run_command(session, line) == run_command(session, line.split()[0]) == shown
    assert getattr(session.settings, field) == value


@pytest.mark.parametrize(
    "line, message",
    [
        ("/temperature -1", "/temperature: got '-1'"),
        ("/sing", "/sing: no such command"),
        ("/undo 3", "/undo: got '3'"),
        ("/undo", "/undo: there is nothing to undo"),
        ("/retry", "/retry: there is no reply to retry"),
        ("/system \ud800", "/system: content of system: text: got a lone surrogate"),
    ],
)
def test_a_bad_command_is_named_and_changes_nothing(session, line, message):
    with pytest.raises(ValueError) as error:
        run_command(session, line)
    assert str(error.value).startswith(message)
    assert (session.settings, session.system) == (SessionSettings(temperature=1.0, max_tokens=8), None)


def test_help_lists_every_command_that_the_model_has(session):
    base, everything = chat_session(chat=False), {*COMMANDS, *SETTINGS}
    chat, continuing = run_command(session, "/help"), run_command(base, "/")
    assert all(f"  /{name}" in chat for name in everything)
    assert {name for name in everything if f"  /{name}" in continuing} == everything - {*CHAT_ONLY}
    for name in CHAT_ONLY:
        with pytest.raises(ValueError, match="a base model keeps no history"):
            run_command(base, f"/{name}")


def test_commands_act_on_the_conversation(session):
    assert run_command(session, "/system Be kind.") == "system prompt: Be kind."
    replies = say(session, "Hi\nthere", "x" * 220)
    assert run_command(session, "/system off") == "there is no system prompt"
    assert run_command(session, "/undo") == f"removed: {'x' * 99}… (1 left)"
    assert "".join(run_command(session, "/retry")) not in replies
    assert run_command(session, "/reset") == "back to seed 0; the conversation is forgotten"
    assert not session.turns
    assert say(session, "Hi") == [replies[0]]
    run_command(session, "/seed 1")
    assert say(session, "Hi") == [replies[1]]  # this model never looks back, so the seed alone decides


class Stream(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.fixture
def run(monkeypatch):
    """`run(session, *typed, terminals)`: what stands on standard output and error; a typed exception is raised."""
    monkeypatch.setenv("NO_COLOR", "1")

    def call(session, *typed, terminals=(True, True)):
        streams, lines = [Stream(terminal) for terminal in terminals], iter([*typed, EOFError()])

        def ask():
            if isinstance(line := next(lines), BaseException):
                raise line
            return line

        monkeypatch.setattr(terminal_module, "line_editor", lambda history: ask)
        monkeypatch.setattr("sys.stdout", streams[0])
        monkeypatch.setattr("sys.stderr", streams[-1])
        assert run_terminal(session) == 0
        return [stream.getvalue() for stream in streams]

    return call


def test_no_color_turns_colors_off(run, session, monkeypatch):
    assert "\x1b" not in run(session, "/undo")[1]
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" in run(session, "/undo")[1]


def test_neither_a_model_nor_an_argument_controls_the_terminal(run):
    out, err = run(chat_session([0x1B, 97]), "Hi", "/system a\x1b[31m\x07\x9bb\tc\n中文")
    assert "a␛[31m␇\ufffdb\tc\n中文" in err
    assert "␛" in out
    assert "\x1b" not in out + err
    assert "\x1b" in run(chat_session([0x1B, 97]), "Hi", terminals=(False, True))[0]  # a file gets what the model says


def test_a_redirected_output_holds_the_replies_alone(run, session):
    typed = ["Hi", "/help", "/nothing", "//slash", "  ", "/retry", "/exit", "never"]
    out, err = run(session, *typed, terminals=(False, True))
    replies = out.splitlines()
    assert [len(reply) for reply in replies] == [8, 8, 8]
    assert [(e.prompt, e.reply.text) for e in session.turns] == [("Hi", replies[0]), ("/slash", replies[2])]
    assert "/nothing: no such command" in err


def test_a_call_of_the_calculator_is_shown_beside_the_reply(run):
    session = Session(Engine(calling_model(), byte_tokenizer()), SessionSettings(temperature=0), chat=True)
    out, err = run(session, "Hi", terminals=(False, True))
    assert out == "yes\n"
    assert "[calculator: 12*3 → 36]" in err


def test_ctrl_c_at_the_prompt_leaves_only_twice_in_a_row(run, session):
    run(session, KeyboardInterrupt(), "Hi", KeyboardInterrupt(), KeyboardInterrupt(), "never")
    assert [e.prompt for e in session.turns] == ["Hi"]


def test_ctrl_c_in_a_reply_stops_it_and_keeps_what_came(run, session, monkeypatch):
    original = session.engine.stream

    def stream(*args, **kwargs):
        for number, events in enumerate(original(*args, **kwargs)):
            if number == 3:
                raise KeyboardInterrupt
            yield events

    monkeypatch.setattr(session.engine, "stream", stream)
    out, err = run(session, "Hi")
    assert "[stopped; the partial reply is kept]" in err
    assert [turn.reply.text for turn in session.turns] == [out.splitlines()[0]] == [session.last.reply.text]
    assert session.last.tokens == 3


UP, LEFT, ALT_ENTER, CTRL_C, CTRL_D = "\x1b[A", "\x1b[D", "\x1b\r", "\x03", "\x04"


def test_keys_edit_complete_paste_and_recall(tmp_path, capsys):
    history = tmp_path / "chat_history"
    session, pasted = chat_session(sequence_len=4096), "\x1b[200~{}\x1b[201~"
    with create_pipe_input() as keys, create_app_session(input=keys):
        keys.send_text("   \r的 statemenX\x7ft" + LEFT * 3 + "😀\r")  # Chinese, a correction, an emoji put in
        keys.send_text(pasted.format("two\rlines") + ALT_ENTER + "and a third\r")  # one prompt
        keys.send_text("/und\t\r" + "half a thought" + CTRL_C)
        keys.send_bytes(b"not \xff UTF-8\r")
        keys.send_text(CTRL_D)
        assert run_terminal(session, history) == 0
        threading.Timer(0.5, keys.send_text, [UP * 4 + "\r" + CTRL_D]).start()  # once the history has been read
        assert run_terminal(session, history) == 0
    said = ["的 statem😀ent", "two\nlines\nand a third"]
    assert [e.prompt for e in session.turns] == said
    err = capsys.readouterr().err
    for message in ("removed: two lines and a third (1 left)", "lone surrogate", "or Ctrl-C once more"):
        assert message in err
    kept = history.read_text(encoding="utf-8")
    assert "+的 statem😀ent\n" in kept
    assert "+two\n+lines\n+and a third\n" in kept
    assert "half a thought" not in kept


@pytest.mark.parametrize(
    "session, message",
    [
        (chat_session([byte_tokenizer().special_tokens["<|assistant_end|>"]]), "the reply is empty; the conversation"),
        (chat_session(), "cut off at 8 tokens; /max-tokens changes that"),
        (chat_session(sequence_len=40, max_tokens=None), "the context of 40 tokens is full"),
    ],
)
def test_an_end_that_is_not_obvious_is_explained(run, session, message):
    assert run(session, "Hi", terminals=(True, False))[1].startswith(f"[{message}")


def test_turns_left_out_are_announced_once_before_the_reply(run):
    session = chat_session(sequence_len=40, max_tokens=5)
    (screen,) = run(session, "ten letter", "and others", "and more", "/retry", terminals=[False])
    lines = screen.splitlines()
    (at,) = [i for i, line in enumerate(lines) if "turns left out, the oldest: 1; the context is 40 tokens" in line]
    assert len(lines[at + 1]) == 5  # the reply


@pytest.mark.parametrize(
    "data, text", [(b"Hi", "Hi"), (b"\xef\xbb\xbfHi\n", "Hi\n"), ("é 中文".encode(), "é 中文"), (b"", "")]
)
def test_a_prompt_on_standard_input_is_utf_8_without_its_byte_order_mark(data, text):
    assert terminal_module.decoded(data, "standard input") == text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252"])
def test_another_encoding_is_refused_with_the_command_that_converts_it(encoding):
    name = "CP1252" if encoding in ("latin-1", "cp1252") else "UTF-16"
    with pytest.raises(ValueError, match=f"^standard input: got .*, expected UTF-8; `iconv -f {name} -t UTF-8`"):
        terminal_module.decoded("Größe".encode(encoding), "standard input")
