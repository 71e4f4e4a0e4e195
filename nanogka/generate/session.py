"""A session with a model: settings, what was said, and replies as they are generated.

A chat model sees the conversation so far, of which only what is new is read again; a base model knows no turns: every
prompt begins a new document, which the model continues.
"""

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.generate.dialogue import Dialogue, Exchange
from nanogka.generate.engine import Engine, Event
from nanogka.generate.kept_cache import KeptCache
from nanogka.generate.sampling import SamplingSettings
from nanogka.generate.transcript import read_conversation, write_documents

BASE_KEEPS_NO_HISTORY = "a base model keeps no history: it continues each prompt by itself"


@dataclass
class Reply(Exchange):
    """A reply, complete or as far as it came; `prompt`, `text` and `ids` are those of an `Exchange`.

    Attributes:
        prompt_tokens, tokens: numbers of tokens; those of the prompt are all that the model sees.
        reused_tokens: of the prompt's, those that had been read before.
        left_out: the oldest exchanges that the model does not see.
        log_probability: sum over the reply's tokens, in nats, under the model itself.
        finish: why it ended, see `Event`; None while it has not.
        seconds, first_seconds: until its last and its first token.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    left_out: int = 0
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
    """What a person at a prompt holds.

    Args:
        engine: generates.
        settings: to begin with; the seed is that of the first reply.
        max_tokens: longest reply; None for what the context takes.
        chat: whether it is a chat model, which replies in a conversation; else a base model, which continues text.
        system: a chat model's system prompt.

    Attributes:
        exchanges: what was said, the last possibly as far as it came. A reply without any text is not kept.
        last: the last reply, kept or not; None before the first and after a prompt that could not be sent.

    Raises:
        ValueError: for a chat model whose tokenizer lacks the marks of turns, or a system prompt that is no text or
            that a base model cannot take.
    """

    def __init__(
        self,
        engine: Engine,
        settings: SamplingSettings,
        max_tokens: int | None = None,
        chat: bool = False,
        system: str | None = None,
    ) -> None:
        if system is not None and not chat:
            raise ValueError(f"system: {BASE_KEEPS_NO_HISTORY}, and takes no system prompt")
        self.engine, self.settings, self.max_tokens = engine, settings, max_tokens
        self.dialogue = Dialogue(ChatFormat(engine.tokenizer), system) if chat else None
        self.exchanges: list[Exchange] = []
        self.replies = 0  # since the seed was set
        self.last: Reply | None = None
        self._cache = KeptCache(engine)
        self._left_out = 0  # as the user knows
        self._files: set[Path] = set()  # that hold this conversation, as it was

    @property
    def chat(self) -> bool:
        """Whether it is a chat model."""
        return self.dialogue is not None

    # ---- replies ----

    def reply(self, prompt: str) -> Iterator[str]:
        """Text as it becomes certain; `last` and `exchanges` are kept up to date, also while it is abandoned.

        Raises:
            ValueError: at once, if the prompt does not fit into the context or is no Unicode text.
        """
        return self._begin(prompt, self.exchanges)

    def retry(self) -> Iterator[str]:
        """Another reply to the last prompt, with the next seed; it takes the last one's place once it has some text.

        Raises:
            ValueError: if there is none.
        """
        if not self.exchanges:
            raise ValueError("there is no reply yet to try again")
        return self._begin(self.exchanges[-1].prompt, self.exchanges[:-1])

    def _begin(self, prompt: str, before: list[Exchange]) -> Iterator[str]:
        self.last = None
        ids, left_out, stops = self._prompt_ids(prompt, before)
        settings = dataclasses.replace(self.settings, seed=self.settings.seed + self.replies)
        events = self._cache.stream(ids, settings, max_tokens=self.max_tokens, stop_tokens=stops)
        self.replies += 1
        reply = Reply(prompt, "", [], prompt_tokens=len(ids), reused_tokens=self._cache.reused, left_out=left_out)
        self.last = reply
        return self._follow(events, reply, before)

    def _prompt_ids(self, prompt: str, before: list[Exchange]) -> tuple[list[int], int, list[int] | None]:
        """The ids to continue, the exchanges left out, and the tokens at which to stop."""
        if self.dialogue is None:
            return self.engine.encode(prompt), 0, None
        context = self.engine.context
        room = min(self.max_tokens or context, context // 4)
        ids, left_out = self.dialogue.prompt_ids(prompt, before, context, room)
        # A reply is text: a model that writes any mark, say of the user's next turn, has lost its own.
        return ids, left_out, list(self.engine.tokenizer.special_tokens.values())

    def _follow(self, events: Iterator[Event], reply: Reply, before: list[Exchange]) -> Iterator[str]:
        special = set(self.engine.tokenizer.special_tokens.values())
        kept = False
        for event in events:
            reply.seconds = time.perf_counter() - reply.started
            if reply.tokens == 0:
                reply.first_seconds = reply.seconds
            reply.tokens += 1
            reply.log_probability += event.log_probability
            if event.token not in special:
                reply.ids.append(event.token)
            reply.text += event.text
            reply.finish = event.finish
            if not kept and reply.text.strip():
                kept, self.exchanges = True, [*before, reply]
            if event.text:
                yield event.text

    # ---- what a reader should know ----

    @property
    def kept(self) -> bool:
        """Whether the last reply stands in `exchanges`."""
        return bool(self.exchanges) and self.exchanges[-1] is self.last

    def trim_notice(self) -> str | None:
        """Once for each change: what the model does not see any more."""
        left_out = self.last.left_out if self.last is not None else 0
        before, self._left_out = self._left_out, left_out
        if left_out <= before:
            return None
        oldest = "the oldest exchange does" if left_out == 1 else f"the oldest {left_out} exchanges do"
        stays = "" if self.dialogue.system is None else "; the system prompt stays"
        return f"{oldest} not fit into the context of {self.engine.context:,} tokens any more{stays}"

    def finish_notice(self) -> str | None:
        """How the last reply ended, if that is worth a word."""
        reply = self.last
        if reply is None:
            return None
        if reply.finish == "context":
            return f"the context of {self.engine.context:,} tokens is full"
        if self.chat and not self.kept:
            return "the model says nothing; the conversation stays as it was"
        if self.chat and reply.finish == "length":
            return f"cut off at {self.max_tokens:,} tokens; /max-tokens changes that"
        if reply.finish == "stop" and not reply.text:
            return "the model ends the text here"
        return None

    def interrupted_notice(self) -> str:
        """What became of a reply that the user stopped."""
        if not self.chat:
            return "stopped"
        kept = "the reply is kept as far as it came" if self.kept else "the conversation stays as it was"
        return f"stopped; {kept}"

    def speed_notice(self) -> str:
        """How fast the last reply came, and how much of the context is used."""
        reply = self.last
        speed = f", {reply.tokens_per_second:.1f} tokens/s" if reply.tokens > 1 else ""
        used = f"; {reply.prompt_tokens + reply.tokens:,} of {self.engine.context:,} in context" if self.chat else ""
        count = f"{reply.tokens} token{'' if reply.tokens == 1 else 's'}"
        return f"{count}{speed}, first after {reply.first_seconds:.2f} s{used}"

    # ---- the conversation as a whole ----

    def reset(self) -> None:
        """Forget what was said and go back to the first seed; settings and system prompt stay."""
        self.exchanges, self.last, self.replies, self._left_out = [], None, 0, 0
        self._files.clear()

    def undo(self) -> Exchange:
        """Take the last exchange back. Raises ValueError if there is none, or the model keeps no history."""
        self.need_chat()
        if not self.exchanges:
            raise ValueError("there is nothing to take back")
        *self.exchanges, gone = self.exchanges
        return gone

    def take(self, conversation: Conversation) -> str | None:
        """Go on from another conversation; returns the prompt that it ends with, if it does not end with a reply."""
        self.need_chat()
        self.reset()
        self.dialogue.system = conversation.system
        texts = [message.content for message in conversation.turns]
        self.exchanges = [Exchange(*pair) for pair in zip(texts[::2], texts[1::2])]
        return texts[-1] if len(texts) % 2 else None

    def save(self, path: Path) -> None:
        """Write the conversation, or a base model's prompts and continuations (see `nanogka.generate.transcript`).

        Raises:
            ValueError: if there is nothing to write, or the file cannot be written or is another one's already.
        """
        if not self.exchanges:
            raise ValueError("there is nothing to save yet")
        if path.exists() and path.resolve() not in self._files:
            raise ValueError(f"{path}: exists already, takes a new name")
        if self.chat:
            documents = [self.dialogue.conversation(self.exchanges).to_json()]
        else:
            documents = [{"prompt": e.prompt, "continuation": e.text} for e in self.exchanges]
        write_documents(path, documents)
        self._files.add(path.resolve())

    def load(self, path: Path, number: int | None = None) -> None:
        """Go on from the conversation in a file; `number` and errors as in `read_conversation`."""
        self.need_chat()
        self.take(read_conversation(path, number))
        if number is None:
            self._files.add(path.resolve())

    def need_chat(self) -> None:
        """Raises ValueError unless it is a chat model."""
        if not self.chat:
            raise ValueError(BASE_KEEPS_NO_HISTORY)
