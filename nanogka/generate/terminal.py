"""The interactive loop: a prompt with line editing, replies as they come, interruptions that keep the session intact.

Replies go to standard output and everything else to standard error, so redirected output holds the model's text alone.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from nanogka.common.formatting import printable
from nanogka.generate.commands import COMMANDS, SETTINGS, SessionEnd, run_command
from nanogka.generate.session import Session

DIM, RED, PLAIN = "\x1b[2m", "\x1b[31m", "\x1b[0m"
HISTORY_LENGTH = 10_000  # characters: longer prompts, such as pasted files, stay out of the history file


def shown(text: str, stream: TextIO) -> str:
    """Return `text` as it is for a file or pipe. For a terminal, replace control characters, which could steer it."""
    return printable(text) if stream.isatty() else text


def notice(text: str, style: str = DIM) -> None:
    """Print lines on standard error, colored on a terminal unless NO_COLOR is set."""
    text = shown(text, sys.stderr)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR"):
        text = f"{style}{text}{PLAIN}"
    print(text, file=sys.stderr, flush=True)


def show_reply(session: Session, reply: Iterator[str]) -> None:
    """Stream a reply of `session` to standard output and end its line, also if it is interrupted."""
    turn, context = session.last, session.engine.context
    most_before = max((t.turns_left_out for t in session.turns if t is not turn), default=0)
    if turn.turns_left_out > most_before:  # said once for each number
        stays = "" if session.system is None else "; the system prompt stays"
        notice(f"[turns left out, the oldest: {turn.turns_left_out}; the context is {context:,} tokens{stays}]")
    text, calls_shown = "", 0

    def show_calls() -> None:
        nonlocal calls_shown
        for code, output in turn.calls[calls_shown:]:
            notice(f"[calculator: {code.strip()} → {output or 'no result'}]")
        calls_shown = len(turn.calls)

    try:
        for text in reply:
            show_calls()
            print(shown(text, sys.stdout), end="", flush=True)
        show_calls()
    finally:
        if not text.endswith("\n"):
            print(flush=True)
    if turn.finish_reason == "context":
        notice(f"[the context of {context:,} tokens is full]")
    elif session.chat and not session.last_is_kept:
        notice("[the reply is empty; the conversation is unchanged]")
    elif session.chat and turn.finish_reason == "length":
        notice(f"[cut off at {session.settings.max_tokens:,} tokens; /max-tokens changes that]")
    elif turn.finish_reason == "stop" and not turn.text:
        notice("[the model ends the text here]")
    if sys.stderr.isatty():
        speed = f", {turn.tokens_per_second:.1f} tokens/s" if turn.tokens > 1 else ""
        used = f"; {turn.prompt_tokens + turn.tokens:,} of {context:,} in context" if session.chat else ""
        count = f"{turn.tokens} token{'' if turn.tokens == 1 else 's'}"
        notice(f"[{count}{speed}, first after {turn.seconds_to_first_token:.2f} s{used}]")


def run_terminal(session: Session, history: Path | None = None) -> int:
    """Prompt and reply until the user leaves, then return exit code 0. `history` is a file of earlier prompts."""
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
    replying = False
    try:
        if not line.strip():
            return
        if line.startswith("/") and not line.startswith("//"):
            answer = run_command(session, line)
        else:
            answer = session.reply(line.removeprefix("/") if line.startswith("//") else line)
        if isinstance(answer, str):
            notice(answer)
        else:
            replying = session.chat
            show_reply(session, answer)
    except KeyboardInterrupt:
        kept = "the partial reply is kept" if session.last_is_kept else "the conversation is unchanged"
        notice(f"[stopped; {kept}]" if replying else "[stopped]")
    except ValueError as error:
        notice(str(error), RED)


def line_editor(history: Path | None) -> Callable[[], str]:
    """Return a function that asks for a prompt, with line editing, history, and Tab to complete commands.

    The function raises EOFError for Ctrl-D and KeyboardInterrupt for Ctrl-C.
    """
    # Imported here: pipes and single prompts need not wait for it.
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.output import create_output
    from prompt_toolkit.shortcuts import CompleteStyle

    class History(FileHistory):
        """Saves prompts to a file if possible. A failure to save does not end the session."""

        def store_string(self, string: str) -> None:
            if len(string) <= HISTORY_LENGTH:
                with contextlib.suppress(OSError, UnicodeEncodeError):
                    super().store_string(string)

    saved = InMemoryHistory()
    if history is not None:
        with contextlib.suppress(OSError):
            os.close(os.open(history, os.O_RDWR | os.O_CREAT, 0o600))  # readable by the user only
            saved = History(str(history))

    keys = KeyBindings()
    keys.add("enter")(lambda event: event.current_buffer.validate_and_handle())
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    session = PromptSession(
        [("bold", "> ")],
        multiline=True,
        key_bindings=keys,
        history=saved,
        completer=WordCompleter([f"/{name}" for name in (*COMMANDS, *SETTINGS)], sentence=True),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        output=None if sys.stdout.isatty() else create_output(sys.stderr),
    )
    return session.prompt
