"""The chat command line: one reply to a prompt from a flag or a pipe, or a session at a terminal."""

import json
import os
import sys
from dataclasses import asdict

from nanogka.common.errors import Errors
from nanogka.common.files import base_dir
from nanogka.common.runtime import pick_device_and_dtype
from nanogka.generate.engine import Engine
from nanogka.generate.session import Session
from nanogka.generate.settings import ChatSettings
from nanogka.generate.terminal import notice, run_terminal, show_reply
from nanogka.generate.transcript import parse_conversation
from nanogka.runs import LoadedRun, find_run, load_run


def chat(settings: ChatSettings, errors: Errors) -> int:
    """Reply to one prompt, or to a person at a terminal; returns the exit code."""
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
    s, prompt = settings, _read_prompt(settings, errors)
    errors.require(s.system is None or bool(s.system.strip()), "--system", s.system, "some text, or is left out")
    device, dtype = pick_device_and_dtype(s.device, s.dtype, errors)
    errors.capture(lambda: find_run(s.run))
    errors.raise_if_any()
    loaded = load_run(s.run, device, s.step, dtype)
    size, precision = sum(p.numel() for p in loaded.model.parameters()), str(loaded.model.compute_dtype)
    context, where = loaded.model.config.sequence_len, f"{loaded.model.device}, {precision.removeprefix('torch.')}"
    name, chats = loaded.folder.name, loaded.kind == "chat"
    notice(f"{name}, step {loaded.step}: {size / 1e6:.1f} M parameters, context {context:,} tokens ({where})")
    if s.system is not None and not chats:
        raise ValueError(f"--system: {name} is a base model, a system prompt takes a chat model")
    engine = Engine(loaded.model, loaded.tokenizer)
    session = Session(engine, s.session(), chats, s.system)
    if prompt is None:
        engine.generate(" ", max_tokens=2)  # compiles kernels now, not during the first reply
        does = "It replies to" if chats else "It continues"
        notice(f"{does} what you type; /help lists the commands, Ctrl-D leaves.")
        return run_terminal(session, base_dir() / "chat_history")
    if not s.json:
        show_reply(session, session.reply(prompt))
        return 0
    if chats and s.prompt is None and prompt.lstrip().startswith("{"):
        prompt = _resume(session, prompt)
    print(json.dumps(_document(loaded, session, prompt), ensure_ascii=False), flush=True)
    return 0


def _read_prompt(settings: ChatSettings, errors: Errors) -> str | None:
    """The one prompt to reply to, or a conversation in JSON that ends with it; None for a session."""
    source, text = "--prompt", settings.prompt
    if text is None:
        if sys.stdin.isatty():
            errors.require(not settings.json, "--json", True, "a prompt, from -p or standard input")
            return None
        source = "standard input"
        try:
            text = sys.stdin.buffer.read().decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            errors.lines.append(f"{source}: got a byte that is not UTF-8 at position {error.start}, expected UTF-8")
            return ""
    errors.require(bool(text.strip()), source, text, "some text to reply to or to continue")
    return text


def _resume(session: Session, text: str) -> str:
    """Continue the conversation in a JSON document; returns the prompt that it ends with."""
    conversation, system = parse_conversation(text, "standard input", complete=False), session.system
    if system is not None and conversation.system is not None:
        raise ValueError("standard input: messages: have a system prompt already, --system gives another")
    prompt = session.take_over(conversation)
    session.system = system or conversation.system
    return prompt


def _document(loaded: LoadedRun, session: Session, prompt: str) -> dict:
    """The reply with its numbers; of a chat model also the conversation, without a reply that has no text."""
    for _ in session.reply(prompt):
        pass
    document = {"run": str(loaded.folder), "step": loaded.step, "kind": loaded.kind} | asdict(session.last)
    document |= {"tokens_per_second": session.last.tokens_per_second, "settings": asdict(session.settings)}
    if session.chat:
        document |= session.conversation(None if session.kept else prompt).to_json()
    return document
