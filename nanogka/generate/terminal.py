"""The interactive loop: a prompt with line editing, replies as they come, interruptions that leave the session intact.

Replies go to standard output, everything else to standard error: redirected output holds the model's text alone.
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
    """`text` as it is for a file or pipe; for a terminal without control characters, which could take it over."""
    return printable(text) if stream.isatty() else text


def notice(text: str, style: str = DIM) -> None:
    """Print lines on standard error, colored on a terminal unless NO_COLOR is set."""
    text = shown(text, sys.stderr)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR"):
        text = f"{style}{text}{PLAIN}"
    print(text, file=sys.stderr, flush=True)


def show_reply(session: Session, reply: Iterator[str]) -> None:
    """Stream a reply that `session` has begun to standard output and end its line, also when it is interrupted."""
    last, context = session.last, session.engine.context
    left_out, before = last.left_out_exchanges, [e for e in session.exchanges if e is not last]
    if left_out and all(e.left_out_exchanges < left_out for e in before):  # once for each
        oldest = "the oldest exchange does" if left_out == 1 else f"the oldest {left_out} exchanges do"
        stays = "" if session.system is None else "; the system prompt stays"
        notice(f"[{oldest} not fit into the context of {context:,} tokens any more{stays}]")
    text = ""
    try:
        for text in reply:
            print(shown(text, sys.stdout), end="", flush=True)
    finally:
        if not text.endswith("\n"):
            print(flush=True)
    if last.finish == "context":
        notice(f"[the context of {context:,} tokens is full]")
    elif session.chat and not session.kept:
        notice("[the reply is empty; the conversation stays as it was]")
    elif session.chat and last.finish == "length":
        notice(f"[cut off at {session.settings.max_tokens:,} tokens; /max-tokens changes that]")
    elif last.finish == "stop" and not last.text:
        notice("[the model ends the text here]")
    if sys.stderr.isatty():
        speed = f", {last.tokens_per_second:.1f} tokens/s" if last.tokens > 1 else ""
        used = f"; {last.prompt_tokens + last.tokens:,} of {context:,} in context" if session.chat else ""
        count = f"{last.tokens} token{'' if last.tokens == 1 else 's'}"
        notice(f"[{count}{speed}, first after {last.seconds_to_first_token:.2f} s{used}]")


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
        kept = "the reply is kept as far as it came" if session.kept else "the conversation stays as it was"
        notice(f"[stopped; {kept}]" if replying else "[stopped]")
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
