"""The interactive loop: a prompt with line editing, replies as they come, interruptions that leave the session whole.

Replies go to standard output, everything else to standard error, so that a redirected output holds the model's text
and nothing else.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from nanogka.generate.session import Session, SessionEnd

PROMPT = "> "
HISTORY_LINES = 1000
BOLD, DIM, RED, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[0m"

# What a model writes must not steer the terminal: control characters are shown as their pictures (U+2400 and on).
CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
CONTROLS |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def wants_colour(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that shows colours and nobody asked for none."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def printable(text: str, stream: TextIO) -> str:
    """`text` as it may go to `stream`: as it is into a file or pipe, without control characters to a terminal."""
    return text.translate(CONTROLS) if stream.isatty() else text


def notice(text: str, style: str = DIM) -> None:
    """A line on standard error."""
    if wants_colour(sys.stderr):
        text = f"{style}{text}{PLAIN}"
    print(text, file=sys.stderr, flush=True)


def show_reply(session: Session, prompt: str) -> None:
    """Stream a reply to standard output and end its line, also when it is interrupted."""
    text = ""
    try:
        for text in session.reply(prompt):
            print(printable(text, sys.stdout), end="", flush=True)
    finally:
        if session.last is not None and not text.endswith("\n"):
            print(flush=True)
    message = session.finish_notice()
    if message:
        notice(f"[{message}]")
    if sys.stderr.isatty():
        notice(f"[{session.speed_notice()}]")


def run_terminal(session: Session, history: Path | None = None) -> int:
    """Ask, reply, until the user leaves; returns the exit code, 0.

    Args:
        session: whose settings the commands change.
        history: a file for the lines typed, where line editing is available.
    """
    with _line_editing(history) as editing:
        try:
            while True:
                try:
                    line = _ask(editing)
                except UnicodeDecodeError:
                    notice("that was no UTF-8 text; nothing was sent", RED)
                    continue
                _answer(session, line)
        except (EOFError, KeyboardInterrupt, SessionEnd):
            notice("")
    return 0


def _answer(session: Session, line: str) -> None:
    if not line.strip():
        return
    try:
        if line.startswith("/") and not line.startswith("//"):
            notice(session.command(line))
        else:
            show_reply(session, line.removeprefix("/") if line.startswith("//") else line)
    except KeyboardInterrupt:
        notice("[stopped]")
    except ValueError as error:
        notice(str(error), RED)


def _ask(editing: bool) -> str:
    prompt = PROMPT
    if not sys.stdout.isatty():  # `input` would write the prompt into the redirected output
        print(prompt, end="", file=sys.stderr, flush=True)
        return input()
    if wants_colour(sys.stdout):
        # The marks tell readline which characters take no room, or it would misplace the cursor.
        prompt = f"\x01{BOLD}\x02{PROMPT}\x01{PLAIN}\x02" if editing else f"{BOLD}{PROMPT}{PLAIN}"
    return input(prompt)


@contextlib.contextmanager
def _line_editing(history: Path | None) -> Iterator[bool]:
    """Line editing and history while inside, where Python has readline. A history that cannot be kept is none."""
    try:
        import readline
    except ImportError:
        yield False
        return
    readline.parse_and_bind("set enable-bracketed-paste on")  # several pasted lines are one prompt
    if history is not None:
        with contextlib.suppress(OSError):
            readline.read_history_file(history)
    try:
        yield True
    finally:
        if history is not None and history.parent.is_dir():
            readline.set_history_length(HISTORY_LINES)
            with contextlib.suppress(OSError):
                readline.write_history_file(history)
