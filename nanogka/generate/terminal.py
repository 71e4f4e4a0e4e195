"""The interactive loop: a prompt with line editing, replies as they come, interruptions that leave the session intact.

Replies go to standard output, everything else to standard error: redirected output holds the model's text alone.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from nanogka.formatting import printable
from nanogka.generate.commands import COMMANDS, SETTINGS, SessionEnd, run_command
from nanogka.generate.session import Session

DIM, RED, PLAIN = "\x1b[2m", "\x1b[31m", "\x1b[0m"
HISTORY_LENGTH = 10_000  # characters: longer prompts, such as pasted files, stay out of the history file


def shown(text: str, stream: TextIO) -> str:
    """`text` as it is for a file or pipe; for a terminal without control characters, which could take it over."""
    return printable(text) if stream.isatty() else text


def notice(text: str, style: str = DIM) -> None:
    """Print lines on standard error, coloured on a terminal unless NO_COLOR is set."""
    text = shown(text, sys.stderr)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR"):
        text = f"{style}{text}{PLAIN}"
    print(text, file=sys.stderr, flush=True)


def show_reply(session: Session, reply: Iterator[str]) -> None:
    """Stream a reply that `session` has begun to standard output and end its line, also when it is interrupted."""
    if left_out := _left_out(session):
        notice(f"[{left_out}]")
    text = ""
    try:
        for text in reply:
            print(shown(text, sys.stdout), end="", flush=True)
    finally:
        if not text.endswith("\n"):
            print(flush=True)
    if ended := _ended(session):
        notice(f"[{ended}]")
    if sys.stderr.isatty():
        notice(f"[{_speed(session)}]")


def _left_out(session: Session) -> str | None:
    """Message when exchanges stop fitting into the context, shown once."""
    left_out = session.last.left_out_exchanges
    if not left_out or any(e.left_out_exchanges >= left_out for e in session.exchanges if e is not session.last):
        return None
    oldest = "the oldest exchange does" if left_out == 1 else f"the oldest {left_out} exchanges do"
    stays = "" if session.system is None else "; the system prompt stays"
    return f"{oldest} not fit into the context of {session.engine.context:,} tokens any more{stays}"


def _ended(session: Session) -> str | None:
    """Message on how the last reply ended, where that is not obvious."""
    last = session.last
    if last.finish == "context":
        return f"the context of {session.engine.context:,} tokens is full"
    if session.chat and not session.kept:
        return "the reply is empty; the conversation stays as it was"
    if session.chat and last.finish == "length":
        return f"cut off at {session.max_tokens:,} tokens; /max-tokens changes that"
    if last.finish == "stop" and not last.text:
        return "the model ends the text here"
    return None


def _interrupted(session: Session) -> str:
    """Message on a reply that the user stopped."""
    if not session.chat:
        return "stopped"
    return f"stopped; {'the reply is kept as far as it came' if session.kept else 'the conversation stays as it was'}"


def _speed(session: Session) -> str:
    """Message on the speed of the last reply, and how much of the context is used."""
    last = session.last
    speed = f", {last.tokens_per_second:.1f} tokens/s" if last.tokens > 1 else ""
    used = f"; {last.prompt_tokens + last.tokens:,} of {session.engine.context:,} in context" if session.chat else ""
    count = f"{last.tokens} token{'' if last.tokens == 1 else 's'}"
    return f"{count}{speed}, first after {last.seconds_to_first_token:.2f} s{used}"


def run_terminal(session: Session, history: Path | None = None) -> int:
    """Prompt and reply until the user leaves; returns the exit code, 0. `history` is a file of typed prompts."""
    ask = line_editor(history)
    interrupted = False  # the last key at the prompt was Ctrl-C
    while True:
        try:
            line = ask()
            interrupted = False
            _answer(session, line)
        except KeyboardInterrupt:
            if interrupted:
                return 0
            interrupted = True
            notice("[Ctrl-D leaves, or Ctrl-C once more]")
        except (EOFError, SessionEnd):
            return 0


def _answer(session: Session, line: str) -> None:
    if not line.strip():
        return
    replying = False
    try:
        if line.startswith("/") and not line.startswith("//"):
            answer = run_command(session, line)
        else:
            answer = session.reply(line.removeprefix("/") if line.startswith("//") else line)
        if isinstance(answer, str):
            notice(answer)
        else:
            replying = True
            show_reply(session, answer)
    except KeyboardInterrupt:
        notice(f"[{_interrupted(session) if replying else 'stopped'}]")
    except ValueError as error:
        notice(str(error), RED)


def line_editor(history: Path | None) -> Callable[[], str]:
    """A function that prompts for text: line editing, history, pasted lines as one prompt, Tab for commands.

    It raises EOFError for Ctrl-D and KeyboardInterrupt for Ctrl-C.
    """
    # Imported here: pipes and single prompts need not wait for it.
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.output import create_output
    from prompt_toolkit.shortcuts import CompleteStyle

    class History(FileHistory):
        """Keeps prompts in the file where it can; none of its failures may end the session."""

        def store_string(self, string: str) -> None:
            if len(string) <= HISTORY_LENGTH:
                with contextlib.suppress(OSError, UnicodeEncodeError):
                    super().store_string(string)

    kept = InMemoryHistory()
    if history is not None:
        with contextlib.suppress(OSError):
            os.close(os.open(history, os.O_RDWR | os.O_CREAT, 0o600))  # for the user's eyes only
            kept = History(str(history))

    keys = KeyBindings()
    keys.add("enter")(lambda event: event.current_buffer.validate_and_handle())
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    session = PromptSession(
        [("bold", "> ")],
        multiline=True,
        key_bindings=keys,
        history=kept,
        completer=WordCompleter([f"/{name}" for name in (*COMMANDS, *SETTINGS)], sentence=True),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        output=None if sys.stdout.isatty() else create_output(sys.stderr),
    )
    return session.prompt
