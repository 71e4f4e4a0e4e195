"""The slash commands of a session."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nanogka.generate.session import BASE_KEEPS_NO_HISTORY, Session

SETTINGS = {  # command: (field, type, what /help says)
    "temperature": ("temperature", float, "0 for the most likely token, 1 for the model's own probabilities"),
    "top-k": ("top_k", int, "choose among the k most likely tokens; off for all"),
    "top-p": ("top_p", float, "choose among the fewest tokens with this probability together; 1 for all"),
    "min-p": ("min_p", float, "leave out tokens below this fraction of the most likely one's probability"),
    "repetition-penalty": ("repetition_penalty", float, "above 1 makes tokens that were used less likely"),
    "seed": ("seed", int, "of the next reply; each further reply takes the next one"),
    "max-tokens": ("max_tokens", int, "longest reply; off for what the context takes"),
}
OPTIONAL = ("top-k", "max-tokens")  # may be off
HISTORY_WIDTH = 100  # characters of a message that /history shows


class SessionEnd(Exception):
    """The user asked to leave."""


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        usage: its name and what follows it.
        about: what /help says.
        run: gets the session and what follows the name; returns what to tell the user, or a reply to show.
        chat: whether it is for chat models alone.
    """

    usage: str
    about: str
    run: Callable[[Session, str], str | Iterator[str]]
    chat: bool = False


def run_command(session: Session, line: str) -> str | Iterator[str]:
    """Carry out a slash command; returns what to tell the user, or the text of a reply as it becomes certain.

    Raises:
        SessionEnd: for /quit.
        ValueError: if there is no such command, or what follows it cannot be used.
    """
    words = line.removeprefix("/").split(None, 1) or ["help"]
    name, value = words[0].lower().replace("_", "-"), words[1].strip() if len(words) > 1 else ""
    name = ALIASES.get(name, name)
    if name in SETTINGS:
        return _setting(session, name, value)
    if name not in COMMANDS:
        raise ValueError(f"/{name}: no such command; /help lists them")
    command = COMMANDS[name]
    if value and " " not in command.usage:
        raise ValueError(f"/{name}: got {value!r}, takes nothing behind it")
    try:
        if command.chat:
            session.need_chat()
        return command.run(session, value)
    except ValueError as error:
        raise ValueError(f"/{name}: {error}") from None


def _setting(session: Session, name: str, value: str) -> str:
    if value:
        _set(session, name, value)
    return f"{name} = {_shown(session, name)}"


def _shown(session: Session, name: str) -> str:
    field_name = SETTINGS[name][0]
    value = session.max_tokens if field_name == "max_tokens" else getattr(session.settings, field_name)
    return "off" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _set(session: Session, name: str, text: str) -> None:
    field_name, kind, _ = SETTINGS[name]
    if text in ("off", "0") and name in OPTIONAL:
        value = None
    else:
        try:
            value = kind(text)
        except ValueError:
            off = ", or off" if name in OPTIONAL else ""
            takes = "a number" if kind is float else "an integer"
            raise ValueError(f"/{name}: got {text!r}, takes {takes}{off}") from None
    if field_name == "max_tokens":
        if value is not None and value < 1:
            raise ValueError(f"/{name}: got {value}, takes an integer of at least 1, or off")
        session.max_tokens = value
        return
    try:
        session.settings = dataclasses.replace(session.settings, **{field_name: value})
    except ValueError as error:
        raise ValueError(f"/{error}") from None
    if field_name == "seed":
        session.replies = 0


def _help(session: Session, _: str) -> str:
    if session.chat:
        about = "This is a chat model: it replies to what you type and remembers what was said, as far as fits."
    else:
        about = (
            "This is a base model: it continues what you type. Each prompt is a fresh text, without the earlier ones."
        )
    lines = [
        about,
        "Several pasted lines are one prompt; Alt-Enter begins a new line. // at the start: text that begins with /.",
        "Ctrl-C stops a reply, or drops the line being typed; Ctrl-D leaves, as Ctrl-C twice does.",
    ]
    rows = [(c.usage, c.about) for c in COMMANDS.values() if session.chat or not c.chat]
    rows += [(f"{name} {_shown(session, name)}", about) for name, (_, _, about) in SETTINGS.items()]
    return "\n".join([*lines, *(f"  /{usage:<24} {about}" for usage, about in rows)])


def _reset(session: Session, _: str) -> str:
    session.reset()
    forgotten = "the conversation is forgotten" if session.chat else BASE_KEEPS_NO_HISTORY
    return f"back to seed {session.settings.seed}; {forgotten}"


def _history(session: Session, _: str) -> str:
    lines = [] if session.dialogue.system is None else [f"system  {_short(session.dialogue.system)}"]
    left_out = session.last.left_out if session.last is not None else 0
    for number, exchange in enumerate(session.exchanges, 1):
        unseen = "  (out of the model's sight)" if number <= left_out else ""
        lines += [f"{number:>6}  > {_short(exchange.prompt)}{unseen}", f"        {_short(exchange.text)}"]
    return "\n".join(lines) or "nothing was said yet"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= HISTORY_WIDTH else f"{text[: HISTORY_WIDTH - 1]}…"


def _undo(session: Session, _: str) -> str:
    gone = session.undo()
    return f"taken back: {_short(gone.prompt)} ({_exchanges(session)} left)"


def _exchanges(session: Session) -> str:
    count = len(session.exchanges)
    return f"{count:,} exchange{'' if count == 1 else 's'}"


def _system(session: Session, text: str) -> str:
    if text:
        session.dialogue.system = None if text == "off" else text
    system = session.dialogue.system
    return "there is no system prompt" if system is None else f"system prompt: {system}"


def _save(session: Session, name: str) -> str:
    path = _path(name)
    session.save(path)
    what = _exchanges(session) if session.chat else f"prompt and continuation, {len(session.exchanges):,} of each,"
    return f"saved {what} to {path}"


def _load(session: Session, name: str) -> str:
    path, number = _path(name), None
    if not path.exists() and (match := re.fullmatch(r"(.*\S)\s+(\d+)", name)):
        path, number = _path(match[1]), int(match[2])
    session.load(path, number)
    system = "" if session.dialogue.system is None else " and its system prompt"
    return f"loaded {_exchanges(session)}{system} from {path}; the next prompt goes on from there"


def _path(name: str) -> Path:
    if not name:
        raise ValueError("takes the name of a file")
    return Path(name).expanduser()


def _retry(session: Session, _: str) -> Iterator[str]:
    return session.retry()


def _quit(session: Session, _: str) -> str:
    raise SessionEnd


COMMANDS = {
    "help": Command("help", "this", _help),
    "retry": Command("retry", "reply to the last prompt again, with the next seed", _retry),
    "undo": Command("undo", "take the last prompt and its reply back", _undo, chat=True),
    "history": Command("history", "what was said, each message shortened", _history, chat=True),
    "system": Command("system TEXT", "the system prompt; off for none", _system, chat=True),
    "save": Command("save FILE", "write what was said to a new file: JSON, or one line of JSON for .jsonl", _save),
    "load": Command("load FILE [NUMBER]", "go on from such a file, of several lines from that one", _load, chat=True),
    "reset": Command("reset", "forget what was said and start again from the seed", _reset),
    "quit": Command("quit", "leave", _quit),
}
ALIASES = {"exit": "quit", "?": "help"}
