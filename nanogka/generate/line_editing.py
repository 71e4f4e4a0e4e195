"""Typing a prompt: line editing and a history that outlives the session, where Python has readline.

With GNU readline several pasted lines are one prompt (bracketed paste), and Alt-Enter begins a new line. Where there is
no readline, or libedit in its place, lines that are there the moment one has been read are taken for pasted.
"""

import contextlib
import json
import os
import select
import sys
from pathlib import Path

try:
    import readline
except ImportError:  # optional in CPython
    readline = None

HISTORY_ENTRIES = 1000
HISTORY_LENGTH = 10_000  # characters: a longer prompt, a pasted file, is not kept for the next session
PASTE_SECONDS = 0.02


class LineEditor:
    """Asks for prompts.

    Args:
        history: a file for what is typed, one JSON string a line, as prompts may have several; None keeps none. A
            history that cannot be read or written is none.
    """

    def __init__(self, history: Path | None = None) -> None:
        self.history = history
        self.editing = readline is not None
        self.bracketed_paste = self.editing and "libedit" not in (readline.__doc__ or "")
        self._ended = False  # the end of the input came behind a line that is to be answered first
        if self.bracketed_paste:
            readline.parse_and_bind("set enable-bracketed-paste on")
            readline.parse_and_bind(r'"\e\C-m": "\C-v\C-j"')
        if self.editing:
            readline.set_auto_history(False)
            with contextlib.suppress(OSError, UnicodeDecodeError):
                self._restore()

    def ask(self, prompt: str) -> str:
        """What is typed, without the newline that ends it.

        Raises:
            EOFError: at the end of the input.
            KeyboardInterrupt: for Ctrl-C.
            UnicodeDecodeError: if it is no UTF-8.
        """
        if self._ended:
            raise EOFError
        line = input(prompt)
        # Without a terminal on both sides `input` does not call readline at all.
        bracketed = self.bracketed_paste and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        if not bracketed and not line.startswith("/"):
            line = "\n".join([line, *self._pasted()])
        self._remember(line)
        return line

    def _pasted(self) -> list[str]:
        lines = []
        while sys.stdin.isatty() and select.select([sys.stdin], [], [], PASTE_SECONDS)[0]:
            try:
                lines.append(input())
            except EOFError:
                self._ended = True
                break
        return lines

    def _restore(self) -> None:
        if self.history is None:
            return
        lines = self.history.read_text(encoding="utf-8").rstrip("\n").split("\n")
        readline.clear_history()
        for line in lines[-HISTORY_ENTRIES:]:
            try:
                entry = json.loads(line)
            except ValueError:
                entry = line
            readline.add_history(entry if isinstance(entry, str) else line)
        if len(lines) > 2 * HISTORY_ENTRIES:
            self.history.write_text("".join(f"{line}\n" for line in lines[-HISTORY_ENTRIES:]), encoding="utf-8")

    def _remember(self, line: str) -> None:
        if not self.editing or not line.strip():
            return
        length = readline.get_current_history_length()
        if length and readline.get_history_item(length) == line:
            return
        readline.add_history(line)
        if self.history is None or len(line) > HISTORY_LENGTH or not self.history.parent.is_dir():
            return
        # At once: a terminal window that is closed ends the session without a farewell. For the user's eyes only.
        with contextlib.suppress(OSError, UnicodeEncodeError):
            descriptor = os.open(self.history, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
