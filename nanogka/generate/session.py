"""A conversation with a model: its settings, the slash commands that change them, and replies as they are generated.

A base model knows no turns: every prompt begins a new document, which the model continues.
"""

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from nanogka.generate.engine import Engine
from nanogka.generate.sampling import SamplingSettings

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


class SessionEnd(Exception):
    """The user asked to leave."""


@dataclass
class Reply:
    """A reply, complete or as far as it came.

    Attributes:
        prompt: what it continues.
        text: all of it so far.
        prompt_tokens, tokens: numbers of tokens.
        log_probability: sum over the reply's tokens, in nats, under the model itself.
        finish: why it ended, see `Event`; None while it has not.
        seconds, first_seconds: until its last and its first token.
    """

    prompt: str
    prompt_tokens: int
    text: str = ""
    tokens: int = 0
    log_probability: float = 0.0
    finish: str | None = None
    seconds: float = 0.0
    first_seconds: float = 0.0
    started: float = field(default_factory=time.perf_counter, repr=False)

    @property
    def tokens_per_second(self) -> float:
        """Speed after the first token, whose time goes to reading the prompt; 0 for a reply of one token."""
        elapsed = self.seconds - self.first_seconds
        return (self.tokens - 1) / elapsed if self.tokens > 1 and elapsed > 0 else 0.0


class Session:
    """What a person at a prompt holds: an engine, settings and the last reply.

    Args:
        engine: generates.
        settings: to begin with; the seed is that of the first reply.
        max_tokens: longest reply; None for what the context takes.
    """

    def __init__(self, engine: Engine, settings: SamplingSettings, max_tokens: int | None = None) -> None:
        self.engine, self.settings, self.max_tokens = engine, settings, max_tokens
        self.replies = 0  # since the seed was set
        self.last: Reply | None = None

    def reply(self, prompt: str) -> Iterator[str]:
        """Text as it becomes certain; `last` is kept up to date, an interrupted reply as far as it came.

        Raises:
            ValueError: at the first step, if the prompt does not fit into the context or is no Unicode text.
        """
        self.last = None
        ids = self.engine.encode(prompt)
        settings = dataclasses.replace(self.settings, seed=self.settings.seed + self.replies)
        steps = self.engine.stream([ids], settings, max_tokens=self.max_tokens)
        self.replies += 1
        self.last = reply = Reply(prompt, len(ids))
        for (event,) in steps:
            reply.seconds = time.perf_counter() - reply.started
            if reply.tokens == 0:
                reply.first_seconds = reply.seconds
            reply.tokens += 1
            reply.log_probability += event.log_probability
            reply.text += event.text
            reply.finish = event.finish
            if event.text:
                yield event.text

    def finish_notice(self) -> str | None:
        """What a reader should know of how the last reply ended, if anything."""
        if self.last is None:
            return None
        if self.last.finish == "context":
            return f"the context of {self.engine.context:,} tokens is full"
        if self.last.finish == "stop" and not self.last.text:
            return "the model ends the text here"
        return None

    def speed_notice(self) -> str:
        """How fast the last reply came."""
        reply = self.last
        speed = f", {reply.tokens_per_second:.1f} tokens/s" if reply.tokens > 1 else ""
        return f"{reply.tokens} tokens{speed}, first after {reply.first_seconds:.2f} s"

    def command(self, line: str) -> str:
        """Carry out a slash command; returns what to tell the user.

        Raises:
            SessionEnd: for /quit.
            ValueError: if there is no such command, or its value is out of range.
        """
        name, _, value = line.removeprefix("/").strip().partition(" ")
        name, value = name.lower().replace("_", "-"), value.strip()
        if name in ("quit", "exit"):
            raise SessionEnd
        if name in ("help", "?", ""):
            return self.help()
        if name == "reset":
            self.replies = 0
            return f"back to seed {self.settings.seed}; a base model keeps no history between prompts"
        if name not in SETTINGS:
            raise ValueError(f"/{name}: no such command; /help lists them")
        if value:
            self._set(name, value)
        return f"{name} = {self._shown(name)}"

    def help(self) -> str:
        """The commands, with the current settings."""
        lines = [
            "This is a base model: it continues what you type. Each prompt is a fresh text, without the earlier ones.",
            "Ctrl-C stops a reply; at the prompt it leaves, as Ctrl-D does. // at the start: text that begins with /.",
            "  /help                    this",
            "  /reset                   start again from the seed",
            "  /quit                    leave",
        ]
        for name, (_, _, explanation) in SETTINGS.items():
            usage = f"/{name} {self._shown(name)}"
            lines.append(f"  {usage:<24} {explanation}")
        return "\n".join(lines)

    def _shown(self, name: str) -> str:
        field_name = SETTINGS[name][0]
        value = self.max_tokens if field_name == "max_tokens" else getattr(self.settings, field_name)
        return "off" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    def _set(self, name: str, text: str) -> None:
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
            self.max_tokens = value
            return
        try:
            self.settings = dataclasses.replace(self.settings, **{field_name: value})
        except ValueError as error:
            raise ValueError(f"/{error}") from None
        if field_name == "seed":
            self.replies = 0
