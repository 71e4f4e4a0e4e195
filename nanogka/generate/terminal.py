"""The chat command line: one reply to a prompt from a flag or a pipe, or a session at a terminal.

Replies go to standard output and everything else to standard error, so redirected output holds the model's text alone.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from nanogka.common.errors import Errors
from nanogka.common.files import base_dir
from nanogka.common.formatting import printable
from nanogka.common.runtime import pick_device_and_dtype
from nanogka.generate.commands import COMMANDS, SETTINGS, SessionEnd, run_command
from nanogka.generate.engine import Engine
from nanogka.generate.session import Session
from nanogka.generate.settings import ChatSettings
from nanogka.runs import find_run, load_run

TALK, TEXT = "What can you do?", "The with statement"  # examples for a run that kept none
DIM, RED, PLAIN = "\x1b[2m", "\x1b[31m", "\x1b[0m"


# ---- start ----


def chat(settings: ChatSettings, errors: Errors) -> int:
    """Reply to one prompt, to the run's examples, or to a person at a terminal. Returns the exit code."""
    errors.require(not (settings.examples and settings.prompt is not None), "examples", True, "it or --prompt")
    prompt, system = None if settings.examples else _read_prompt(settings, errors), settings.system
    errors.require(system is None or bool(system.strip()), "system", system, "some text")
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, errors, decode=True)
    errors.capture(lambda: find_run(settings.run))
    errors.raise_if_any()

    run = load_run(settings.run, device, settings.step, dtype, prefer="chat")
    name, is_chat, context = run.folder.name, run.kind == "chat", run.model.config.sequence_len
    size, precision = sum(p.numel() for p in run.model.parameters()), str(run.model.compute_dtype)
    where = f"{run.model.device}, {precision.removeprefix('torch.')}"
    notice(f"{name}, step {run.step}: {size / 1e6:.1f} M parameters, context {context:,} tokens ({where})")
    if system is not None and not is_chat:
        raise ValueError(f"system: {name} is a base model, expected a chat model")

    engine = Engine(run.model, run.tokenizer)
    session = Session(engine, settings, is_chat, system)
    if settings.examples:
        return _reply_to_examples(session, run.examples or [TALK if is_chat else TEXT])
    if prompt is None:
        engine.generate(" ", max_tokens=2)  # compiles kernels now, not during the first reply
        verb = "replies to" if is_chat else "continues"
        notice(f"It {verb} what you type. /help lists the commands, Ctrl-D leaves.")
        if run.promise:
            notice(run.promise)
        if run.examples:
            notice("\n  ".join(["For example:", *run.examples]))
        return run_terminal(session, base_dir() / "chat_history")
    try:
        show_reply(session, session.reply(prompt))
    except BrokenPipeError:  # a reader that closed the pipe early (`| head`) is not an error
        # The rest of the buffer would fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _reply_to_examples(session: Session, prompts: list[str]) -> int:
    """Reply to each prompt alone. Returns the exit code."""
    for prompt in prompts:
        session.reset()
        notice(f"> {prompt}")
        show_reply(session, session.reply(prompt))
    return 0


def _read_prompt(settings: ChatSettings, errors: Errors) -> str | None:
    """Return the single prompt to reply to, or None for a session at a terminal."""
    source, text = "--prompt", settings.prompt
    if text is None:
        if sys.stdin.isatty():
            return None
        source, data = "standard input", sys.stdin.buffer.read()
        text = errors.capture(lambda: decoded(data, source))
        if text is None:
            return None
        text = text.rstrip("\r\n")
    errors.require(bool(text.strip()), source, text, "some text to reply to or to continue")
    return text


def decoded(data: bytes, source: str) -> str:
    """Return UTF-8 as text, without a byte order mark. Raises ValueError that names `source` and how to convert it."""
    guess, found = "UTF-16", "UTF-16 or binary data"  # text in UTF-16 has zero bytes
    if b"\0" not in data:
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            guess, found = "CP1252", f"byte {data[error.start]:#x} at position {error.start:,}, which is not UTF-8"
    raise ValueError(f"{source}: got {found}, expected UTF-8; `iconv -f {guess} -t UTF-8` converts text")


# ---- print ----


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
    assert turn is not None, "a reply has begun"
    if turn.turns_left_out > max((other.turns_left_out for other in session.turns), default=0):  # new ones are left out
        stays = "" if session.system is None else "; the system prompt stays"
        notice(f"[turns left out, the oldest: {turn.turns_left_out}; the context is {context:,} tokens{stays}]")
    text, calls_shown = "", 0
    try:
        for text in reply:
            _show_calls(turn.calls[calls_shown:])
            calls_shown = len(turn.calls)
            print(shown(text, sys.stdout), end="", flush=True)
        _show_calls(turn.calls[calls_shown:])
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
        # The speed leaves out the first token, whose time is mostly that of reading the prompt.
        elapsed = turn.seconds - turn.seconds_to_first_token
        speed = f", {(turn.tokens - 1) / elapsed:.1f} tokens/s" if elapsed > 0 else ""
        used = f"; {turn.prompt_tokens + turn.tokens:,} of {context:,} in context" if session.chat else ""
        count = f"{turn.tokens} token{'' if turn.tokens == 1 else 's'}"
        notice(f"[{count}{speed}, first after {turn.seconds_to_first_token:.2f} s{used}]")


def _show_calls(calls: list[tuple[str, str]]) -> None:
    for code, output in calls:
        notice(f"[calculator: {code.strip()} → {output or 'no result'}]")


# ---- read ----


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
    """Run a command, or reply to a prompt. Ctrl-C ends either, and the session continues."""
    answer: str | Iterator[str] = ""
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
            show_reply(session, answer)
    except KeyboardInterrupt:
        kept = "the partial reply is kept" if session.last_is_kept else "the conversation is unchanged"
        notice("[stopped]" if isinstance(answer, str) or not session.chat else f"[stopped; {kept}]")
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
