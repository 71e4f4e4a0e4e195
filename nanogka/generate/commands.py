"""Slash commands of a session."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from nanogka.cli import describe_range, flags_of, in_range, parse_value
from nanogka.formatting import shorten
from nanogka.generate.session import BASE_KEEPS_NO_HISTORY, Session, SessionSettings

HISTORY_WIDTH = 100  # characters per message in /history


class SessionEnd(Exception):
    """The user asked to leave."""


class Command(NamedTuple):
    """A command; `run` is given the session and the argument and returns as `run_command`."""

    usage: str
    help: str
    run: Callable[[Session, str], str | Iterator[str]]
    chat: bool = False  # for chat models only


def run_command(session: Session, line: str) -> str | Iterator[str]:
    """Carry out a slash command; returns a message, or a reply's text as it becomes certain.

    Raises SessionEnd for /quit, ValueError for an unknown command or an argument that cannot be used.
    """
    words = line.removeprefix("/").split(None, 1) or ["help"]
    name, argument = words[0].lower().replace("_", "-"), words[1].strip() if len(words) > 1 else ""
    name = ALIASES.get(name, name)
    try:
        if name in SETTINGS:
            if argument:
                _set(session, name, argument)
            return f"{name} = {_shown(session, name)}"
        if name not in COMMANDS:
            raise ValueError("no such command; /help lists them")
        command = COMMANDS[name]
        if argument and " " not in command.usage:
            raise ValueError(f"got {argument!r}, takes no argument")
        if command.chat:
            session.require_chat()
        return command.run(session, argument)
    except ValueError as error:
        raise ValueError(f"/{name}: {error}") from None


def _shown(session: Session, name: str) -> str:
    value = session.max_tokens if name == "max-tokens" else getattr(session.settings, SETTINGS[name].name)
    return "off" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _set(session: Session, name: str, text: str) -> None:
    setting, can_be_off = SETTINGS[name], name in ("top-k", "max-tokens")
    bounds = setting.metadata["bounds"]
    try:
        value = parse_value(setting.kind, "0" if can_be_off and text == "off" else text)
        fits = in_range(value, **bounds)
    except ValueError:
        fits = False
    if not fits:
        takes = describe_range(setting.kind, **bounds) + (", or off" if can_be_off else "")
        raise ValueError(f"got {text!r}, takes {takes}")
    value = None if can_be_off and value == 0 else value
    if name == "max-tokens":
        session.max_tokens = value
    else:
        session.settings = dataclasses.replace(session.settings, **{setting.name: value})
    if name == "seed":
        session.replies = 0


def _help(session: Session, _: str) -> str:
    if session.chat:
        about = "This is a chat model: it replies to what you type and sees the conversation so far, as far as it fits."
    else:
        about = "This is a base model: it continues what you type. Each prompt is a new text, without the earlier ones."
    lines = [
        about,
        "Several pasted lines are one prompt; Alt-Enter begins a new line. // at the start: text that begins with /.",
        "Ctrl-C stops a reply, or drops the line being typed; Ctrl-D leaves, as Ctrl-C twice does.",
    ]
    rows = [(c.usage, c.help) for c in COMMANDS.values() if session.chat or not c.chat]
    rows += [(f"{name} {_shown(session, name)}", setting.metadata["help"]) for name, setting in SETTINGS.items()]
    return "\n".join([*lines, *(f"  /{usage:<24} {text}" for usage, text in rows)])


def _reset(session: Session, _: str) -> str:
    session.reset()
    forgotten = "the conversation is forgotten" if session.chat else BASE_KEEPS_NO_HISTORY
    return f"back to seed {session.settings.seed}; {forgotten}"


def _history(session: Session, _: str) -> str:
    lines = [] if session.system is None else [f"system  {_shortened(session.system)}"]
    left_out = session.last.left_out_exchanges if session.last is not None else 0
    for number, exchange in enumerate(session.exchanges, 1):
        unseen = "  (no longer in the context)" if number <= left_out else ""
        lines += [f"{number:>6}  > {_shortened(exchange.prompt)}{unseen}", f"        {_shortened(exchange.text)}"]
    return "\n".join(lines) or "no exchanges yet"


def _undo(session: Session, _: str) -> str:
    return f"taken back: {_shortened(session.undo().prompt)} ({_exchanges(session)} left)"


def _system(session: Session, text: str) -> str:
    if text:
        session.system = None if text == "off" else text
    return "there is no system prompt" if session.system is None else f"system prompt: {session.system}"


def _save(session: Session, name: str) -> str:
    path = _path(name)
    session.save(path)
    return f"saved {_exchanges(session)} to {path}"


def _load(session: Session, name: str) -> str:
    path = _path(name)
    session.load(path)
    system = "" if session.system is None else " and its system prompt"
    return f"loaded {_exchanges(session)}{system} from {path}; the next prompt continues the conversation"


def _quit(session: Session, _: str) -> str:
    raise SessionEnd


def _shortened(text: str) -> str:
    return shorten(" ".join(text.split()), HISTORY_WIDTH)


def _exchanges(session: Session) -> str:
    count = len(session.exchanges)
    return f"{count:,} exchange{'' if count == 1 else 's'}"


def _path(name: str) -> Path:
    if not name:
        raise ValueError("takes the name of a file")
    return Path(name).expanduser()


SETTINGS = {name.replace("_", "-"): setting for name, setting in flags_of(SessionSettings).items()}
COMMANDS = {
    "help": Command("help", "list the commands and the settings", _help),
    "retry": Command("retry", "reply to the last prompt again, with the next seed", lambda session, _: session.retry()),
    "undo": Command("undo", "take the last prompt and its reply back", _undo, chat=True),
    "history": Command("history", "the conversation, each message shortened", _history, chat=True),
    "system": Command("system TEXT", "the system prompt; off for none", _system, chat=True),
    "save": Command("save FILE", "write the conversation to a new file: JSON, or one line of JSON for .jsonl", _save),
    "load": Command("load FILE", "continue the conversation in a file that /save wrote", _load, chat=True),
    "reset": Command("reset", "forget the conversation and start again from the seed", _reset),
    "quit": Command("quit", "leave", _quit),
}
ALIASES = {"exit": "quit", "?": "help"}
