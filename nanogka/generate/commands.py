"""Slash commands of a chat session."""

from collections.abc import Iterator
from dataclasses import replace

from nanogka.common.cli import flags_of
from nanogka.common.formatting import shorten
from nanogka.generate.session import BASE_KEEPS_NO_HISTORY, Session
from nanogka.generate.settings import CAN_BE_OFF, SessionSettings

SETTINGS = {name.replace("_", "-"): setting for name, setting in flags_of(SessionSettings).items()}
COMMANDS = {
    "help": "list the commands and the settings",
    "retry": "reply to the last prompt again, with the next seed",
    "undo": "remove the last prompt and its reply",
    "system": "show or set the system prompt; off removes it",
    "reset": "forget the conversation and return to the first seed",
    "quit": "leave",
}
CHAT_ONLY = ("undo", "system")


class SessionEnd(Exception):
    """The user asked to leave."""


def run_command(session: Session, line: str) -> str | Iterator[str]:
    """Run a slash command and return a message, or the text of a reply as it is released.

    Raises SessionEnd for /quit, and ValueError for an unknown command or a wrong argument.
    """
    name, argument = [*line.removeprefix("/").split(maxsplit=1), "", ""][:2]
    name, argument = name.lower().replace("_", "-"), argument.strip()
    name = {"exit": "quit", "?": "help", "": "help"}.get(name, name)
    if name in SETTINGS:
        return _setting(session, name, argument)
    try:
        if name not in COMMANDS:
            raise ValueError("no such command; /help lists the commands")
        if argument and name != "system":
            raise ValueError(f"got {argument!r}, expected no argument")
        return _run(session, name, argument)
    except ValueError as error:
        raise ValueError(f"/{name}: {error}") from None


def _run(session: Session, name: str, argument: str) -> str | Iterator[str]:
    if name in CHAT_ONLY:
        session.require_chat()
    if name == "quit":
        raise SessionEnd
    if name == "retry":
        return session.retry()
    if name == "undo":
        prompt = " ".join(session.undo().prompt.split())
        return f"removed: {shorten(prompt, 100)} ({len(session.turns):,} left)"
    if name == "system":
        if argument:
            session.set_system(None if argument == "off" else argument)
        return "there is no system prompt" if session.system is None else f"system prompt: {session.system}"
    if name == "reset":
        session.reset()
        effect = "the conversation is forgotten" if session.chat else BASE_KEEPS_NO_HISTORY
        return f"back to seed {session.settings.seed}; {effect}"
    return _help(session)


def _setting(session: Session, name: str, text: str) -> str:
    """Set a setting, unless `text` is empty. Returns its name and value."""
    if text:
        setting = SETTINGS[name]
        off = text == "off" and setting.name in CAN_BE_OFF
        session.settings = replace(session.settings, **{setting.name: 0 if off else setting.convert(text, f"/{name}")})
        if name == "seed":
            session.replies = 0
    return f"{name} = {_value(session, name)}"


def _value(session: Session, name: str) -> str:
    value = getattr(session.settings, SETTINGS[name].name)
    if SETTINGS[name].name in CAN_BE_OFF:
        return str(value or "off")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _help(session: Session) -> str:
    if session.chat:
        about = "This is a chat model. It replies to what you type and sees as much of the conversation as fits."
    else:
        about = "This is a base model. It continues what you type. It does not see earlier prompts."
    lines = [
        about,
        "Pasted lines are one prompt. Alt-Enter begins a new line. Type // to begin a prompt with /.",
        "Ctrl-C stops a reply, or drops the line that you are typing. Ctrl-D leaves.",
    ]
    rows = [(name, text) for name, text in COMMANDS.items() if session.chat or name not in CHAT_ONLY]
    rows += [(f"{name} {_value(session, name)}", setting.help) for name, setting in SETTINGS.items()]
    return "\n".join([*lines, *(f"  /{usage:<24} {text}" for usage, text in rows)])
