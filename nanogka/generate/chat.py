"""The chat command line: one reply to a prompt from a flag or a pipe, or a session at a terminal."""

import os
import sys

from nanogka.common.errors import Errors
from nanogka.common.files import base_dir
from nanogka.common.runtime import pick_device_and_dtype
from nanogka.generate.engine import Engine
from nanogka.generate.session import Session
from nanogka.generate.settings import ChatSettings
from nanogka.generate.terminal import notice, run_terminal, show_reply
from nanogka.runs import find_run, load_run


def chat(settings: ChatSettings, errors: Errors) -> int:
    """Reply to one prompt, or to a person at a terminal. Returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows ? instead
    try:
        return _chat(settings, errors)
    except BrokenPipeError:  # a reader that closed the pipe early (`| head`) is not an error
        # The rest of the buffer would fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _chat(settings: ChatSettings, errors: Errors) -> int:
    prompt, system = _read_prompt(settings, errors), settings.system
    errors.require(system is None or bool(system.strip()), "--system", system, "some text")
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, errors, decode=True)
    errors.capture(lambda: find_run(settings.run))
    errors.raise_if_any()

    run = load_run(settings.run, device, settings.step, dtype)
    name, is_chat, context = run.folder.name, run.kind == "chat", run.model.config.sequence_len
    size, precision = sum(p.numel() for p in run.model.parameters()), str(run.model.compute_dtype)
    where = f"{run.model.device}, {precision.removeprefix('torch.')}"
    notice(f"{name}, step {run.step}: {size / 1e6:.1f} M parameters, context {context:,} tokens ({where})")
    if system is not None and not is_chat:
        raise ValueError(f"--system: {name} is a base model, expected a chat model")

    engine = Engine(run.model, run.tokenizer)
    session = Session(engine, settings.session(), is_chat, system)
    if prompt is not None:
        show_reply(session, session.reply(prompt))
        return 0
    engine.generate(" ", max_tokens=2)  # compiles kernels now, not during the first reply
    verb = "replies to" if is_chat else "continues"
    notice(f"It {verb} what you type. /help lists the commands, Ctrl-D leaves.")
    return run_terminal(session, base_dir() / "chat_history")


def _read_prompt(settings: ChatSettings, errors: Errors) -> str | None:
    """Return the single prompt to reply to, or None for a session at a terminal."""
    source, text = "--prompt", settings.prompt
    if text is None:
        if sys.stdin.isatty():
            return None
        source = "standard input"
        try:
            text = sys.stdin.buffer.read().decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            errors.lines.append(f"{source}: got a byte that is not UTF-8 at position {error.start}, expected UTF-8")
            return ""
    errors.require(bool(text.strip()), source, text, "some text to reply to or to continue")
    return text
