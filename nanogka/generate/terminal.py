"""The interactive loop: a prompt with line editing, replies as they come, interruptions that leave the session whole.

Replies go to standard output, everything else to standard error, so that a redirected output holds the model's text
and nothing else.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from nanogka.generate.commands import SessionEnd, run_command
from nanogka.generate.line_editing import LineEditor
from nanogka.generate.session import Session

PROMPT = "> "
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
    """Lines on standard error."""
    text = printable(text, sys.stderr)
    if wants_colour(sys.stderr):
        text = f"{style}{text}{PLAIN}"
    print(text, file=sys.stderr, flush=True)


def show_reply(session: Session, reply: Iterator[str]) -> None:
    """Stream a reply that `session` has begun to standard output and end its line, also when it is interrupted."""
    if trimmed := session.trim_notice():
        notice(f"[{trimmed}]")
    text = ""
    try:
        for text in reply:
            print(printable(text, sys.stdout), end="", flush=True)
    finally:
        if not text.endswith("\n"):
            print(flush=True)
    if ended := session.finish_notice():
        notice(f"[{ended}]")
    if sys.stderr.isatty():
        notice(f"[{session.speed_notice()}]")


def run_terminal(session: Session, history: Path | None = None) -> int:
    """Ask, reply, until the user leaves; returns the exit code, 0.

    Args:
        session: whose settings the commands change.
        history: a file for what is typed, where line editing is available.
    """
    editor = LineEditor(history)
    interrupted = False  # the last key at the prompt was Ctrl-C
    while True:
        try:
            line = _ask(editor)
            interrupted = False
            _answer(session, line)
        except UnicodeDecodeError:
            notice("that was no UTF-8 text; nothing was sent", RED)
        except KeyboardInterrupt:
            notice("")
            if interrupted:
                return 0
            interrupted = True
            notice("[Ctrl-D leaves, or Ctrl-C once more]")
        except (EOFError, SessionEnd):
            notice("")
            return 0


def _answer(session: Session, line: str) -> None:
    if not line.strip():
        return
    stopped = "stopped"
    try:
        if line.startswith("/") and not line.startswith("//"):
            answer = run_command(session, line)
        else:
            answer = session.reply(line.removeprefix("/") if line.startswith("//") else line)
        if isinstance(answer, str):
            notice(answer)
        else:
            stopped = None
            show_reply(session, answer)
    except KeyboardInterrupt:
        notice(f"[{stopped or session.interrupted_notice()}]")
    except ValueError as error:
        notice(str(error), RED)


def _ask(editor: LineEditor) -> str:
    prompt = PROMPT
    if not sys.stdout.isatty():  # `input` would write the prompt into the redirected output
        print(prompt, end="", file=sys.stderr, flush=True)
        return editor.ask("")
    if wants_colour(sys.stdout):
        # The marks tell readline which characters take no room, or it would misplace the cursor.
        prompt = f"\x01{BOLD}\x02{PROMPT}\x01{PLAIN}\x02" if editor.editing else f"{BOLD}{PROMPT}{PLAIN}"
    return editor.ask(prompt)
