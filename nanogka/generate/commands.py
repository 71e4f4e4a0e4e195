"""Slash commands of a session."""

from collections.abc import Iterator
from dataclasses import replace

from nanogka.common.cli import describe_range, flags_of, parse_value
from nanogka.common.files import expand_path
from nanogka.common.formatting import shorten
from nanogka.generate.session import BASE_KEEPS_NO_HISTORY, Session
from nanogka.generate.settings import CAN_BE_OFF, SessionSettings

HISTORY_WIDTH = 100  # characters per message in /history
SETTINGS = {name.replace("_", "-"): setting for name, setting in flags_of(SessionSettings).items()}
COMMANDS = {
    "help": "list the commands and the settings",
    "retry": "reply to the last prompt again, with the next seed",
    "undo": "take the last prompt and its reply back",
    "history": "the conversation, each message shortened",
    "system": "the system prompt; off for none",
    "save": "write the conversation to a new file: JSON, or one line of JSON for .jsonl",
    "load": "continue the conversation in a file that /save wrote",
    "reset": "forget the conversation and start again from the seed",
    "quit": "leave",
}
ARGUMENTS = {"system": "TEXT", "save": "FILE", "load": "FILE"}
CHAT_ONLY = ("undo", "history", "system", "load")


class SessionEnd(Exception):
    """The user asked to leave."""


def run_command(session: Session, line: str) -> str | Iterator[str]:
    """Carry out a slash command; returns a message, or a reply's text as it becomes certain.

    Raises SessionEnd for /quit, ValueError for an unknown command or an argument that cannot be used.
    """
    words = line.removeprefix("/").split(None, 1) or ["help"]
    name, argument = words[0].lower().replace("_", "-"), words[1].strip() if len(words) > 1 else ""
    name = {"exit": "quit", "?": "help"}.get(name, name)
    try:
        if name in SETTINGS:
            if argument:
                _set(session, name, argument)
            return f"{name} = {_shown(session, name)}"
        if name not in COMMANDS:
            raise ValueError("no such command; /help lists them")
        if argument and name not in ARGUMENTS:
            raise ValueError(f"got {argument!r}, expected no argument")
        if name in CHAT_ONLY:
            session.require_chat()
        return _run(session, name, argument)
    except ValueError as error:
        raise ValueError(f"/{name}: {error}") from None


def _run(session: Session, name: str, argument: str) -> str | Iterator[str]:
    if name in ("save", "load"):
        if not argument:
            raise ValueError("expected the name of a file")
        path = expand_path(argument)
        if name == "save":
            session.save(path)
            return f"saved {_exchanges(session)} to {path}"
        session.load(path)
        system = "" if session.system is None else " and its system prompt"
        return f"loaded {_exchanges(session)}{system} from {path}; the next prompt continues the conversation"
    if name == "retry":
        return session.retry()
    if name == "undo":
        return f"taken back: {_shortened(session.undo().prompt)} ({_exchanges(session)} left)"
    if name == "history":
        return _history(session)
    if name == "system":
        if argument:
            session.system = None if argument == "off" else argument
        return "there is no system prompt" if session.system is None else f"system prompt: {session.system}"
    if name == "reset":
        session.reset()
        forgotten = "the conversation is forgotten" if session.chat else BASE_KEEPS_NO_HISTORY
        return f"back to seed {session.settings.seed}; {forgotten}"
    if name == "quit":
        raise SessionEnd
    return _help(session)


def _shown(session: Session, name: str) -> str:
    value = getattr(session.settings, SETTINGS[name].name)
    return "off" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _set(session: Session, name: str, text: str) -> None:
    setting, can_be_off = SETTINGS[name], SETTINGS[name].name in CAN_BE_OFF
    try:
        value = None if can_be_off and text in ("off", "0") else parse_value(setting.kind, text)
        session.settings = replace(session.settings, **{setting.name: value})
    except ValueError:
        takes = describe_range(setting.kind, **setting.metadata["bounds"]) + (", or off" if can_be_off else "")
        raise ValueError(f"got {text!r}, expected {takes}") from None
    if name == "seed":
        session.replies = 0


def _help(session: Session) -> str:
    if session.chat:
        about = "This is a chat model: it replies to what you type and sees the conversation so far, as far as it fits."
    else:
        about = "This is a base model: it continues what you type. Each prompt is a new text, without the earlier ones."
    lines = [
        about,
        "Several pasted lines are one prompt; Alt-Enter begins a new line. // at the start: text that begins with /.",
        "Ctrl-C stops a reply, or drops the line being typed; Ctrl-D leaves, as Ctrl-C twice does.",
    ]
    shown = {name: text for name, text in COMMANDS.items() if session.chat or name not in CHAT_ONLY}
    rows = [(f"{name} {ARGUMENTS.get(name, '')}", text) for name, text in shown.items()]
    rows += [(f"{name} {_shown(session, name)}", setting.metadata["help"]) for name, setting in SETTINGS.items()]
    return "\n".join([*lines, *(f"  /{usage:<24} {text}" for usage, text in rows)])


def _history(session: Session) -> str:
    lines = [] if session.system is None else [f"system  {_shortened(session.system)}"]
    left_out = session.last.left_out_exchanges if session.last is not None else 0
    for number, exchange in enumerate(session.exchanges, 1):
        unseen = "  (no longer in the context)" if number <= left_out else ""
        lines += [f"{number:>6}  > {_shortened(exchange.prompt)}{unseen}", f"        {_shortened(exchange.text)}"]
    return "\n".join(lines) or "no exchanges yet"


def _shortened(text: str) -> str:
    return shorten(" ".join(text.split()), HISTORY_WIDTH)


def _exchanges(session: Session) -> str:
    count = len(session.exchanges)
    return f"{count:,} exchange{'' if count == 1 else 's'}"
