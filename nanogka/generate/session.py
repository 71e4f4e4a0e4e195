"""A session with a model: settings, the exchanges so far, and replies as they are generated.

A chat model sees the conversation; where the context is too short, the oldest exchanges are left out and the system
prompt stays. A base model continues each prompt by itself. Replies keep the ids that they were generated as, since the
tokenizer might split their text differently: a prompt begins with exactly the ids that are cached.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nanogka.data.conversation import ASSISTANT, SYSTEM, USER, ChatFormat, Conversation, Message, with_system
from nanogka.generate.continuous import Event, PrefixCache
from nanogka.generate.engine import Engine
from nanogka.generate.settings import SessionSettings
from nanogka.generate.transcript import read_conversation, write_documents

BASE_KEEPS_NO_HISTORY = "a base model keeps no history: it continues each prompt by itself"


@dataclass
class Exchange:
    """A prompt and the reply to it, complete or as far as it came."""

    prompt: str
    text: str = ""
    ids: list[int] | None = field(default=None, repr=False)  # as generated, without an end; None: not generated here
    prompt_tokens: int = 0  # all that the model sees
    reused_tokens: int = 0  # those of them that were cached already
    left_out_exchanges: int = 0  # the oldest, which the model did not see
    tokens: int = 0
    log_probability: float = 0.0  # sum over the reply's tokens, in nats, under the model itself
    finish: str | None = None  # see `Event`; None before its end
    seconds: float = 0.0
    seconds_to_first_token: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Speed after the first token, whose time includes the prefill; 0 for a reply of one token."""
        elapsed = self.seconds - self.seconds_to_first_token
        return (self.tokens - 1) / elapsed if self.tokens > 1 and elapsed > 0 else 0.0


class Session:
    """State of a conversation with a chat model, or of prompts to a base model."""

    def __init__(
        self, engine: Engine, settings: SessionSettings, chat: bool = False, system: str | None = None
    ) -> None:
        self.engine, self.settings, self.chat = engine, settings, chat
        self._format = ChatFormat(engine.tokenizer) if chat else None
        self._system, self._prefix = None, PrefixCache()
        if system is not None:
            self.system = system
        self.reset()

    @property
    def system(self) -> str | None:
        """The system prompt. Setting raises ValueError if it is empty, not Unicode text or for a base model."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        self.require_chat()
        self._system = None if text is None else Message(SYSTEM, text).content

    @property
    def kept(self) -> bool:
        """True if the last exchange is in `exchanges`."""
        return bool(self.exchanges) and self.exchanges[-1] is self.last

    def require_chat(self) -> None:
        """Raise ValueError unless it is a chat model."""
        if not self.chat:
            raise ValueError(BASE_KEEPS_NO_HISTORY)

    # ---- replies ----

    def reply(self, prompt: str) -> Iterator[str]:
        """Generate text as it becomes certain; `last` and `exchanges` stay up to date, also if it is abandoned."""
        return self._begin(prompt, self.exchanges)

    def retry(self) -> Iterator[str]:
        """Reply to the last prompt again, with the next seed; replaces the last reply once there is some text."""
        if not self.exchanges:
            raise ValueError("there is no reply yet to try again")
        return self._begin(self.exchanges[-1].prompt, self.exchanges[:-1])

    def _begin(self, prompt: str, before: list[Exchange]) -> Iterator[str]:
        self.last, stops = None, None
        if self.chat:
            ids, left_out = self.prompt_ids(prompt, before)
            stops = self.stop_tokens
        else:
            ids, left_out = self.engine.encode(prompt), 0
        settings, most = replace(self.settings, seed=self.settings.seed + self.replies), self.settings.max_tokens
        steps = self.engine.stream([ids], settings, max_tokens=most or None, stop_tokens=stops, prefix=self._prefix)
        self.replies += 1
        self.last = Exchange(prompt, ids=[], prompt_tokens=len(ids), left_out_exchanges=left_out)
        return self._follow(steps, self.last, before)

    def _follow(self, steps: Iterator[list[Event]], exchange: Exchange, before: list[Exchange]) -> Iterator[str]:
        kept, began = False, time.perf_counter()
        for (event,) in steps:
            exchange.seconds = time.perf_counter() - began
            if exchange.tokens == 0:
                exchange.seconds_to_first_token, exchange.reused_tokens = exchange.seconds, self._prefix.reused
            exchange.tokens += 1
            exchange.log_probability += event.log_probability
            if event.token not in self.stop_tokens:
                exchange.ids.append(event.token)
            exchange.text += event.text
            exchange.finish = event.finish
            if not kept and exchange.text.strip():
                kept, self.exchanges = True, [*before, exchange]
            if event.text:
                yield event.text

    @property
    def stop_tokens(self) -> list[int]:
        """The tokens that end a reply: any special one, also the mark of a user's turn that the model begins."""
        return list(self.engine.tokenizer.special_tokens.values())

    def prompt_ids(self, prompt: str, before: Sequence[Exchange]) -> tuple[list[int], int]:
        """The ids to reply to, and the number of exchanges at the beginning of `before` that are left out."""
        Message(USER, prompt)  # raises if it is not text
        context, encode = self.engine.context, self.engine.tokenizer.encode
        longest = context - min(self.settings.max_tokens or context, context // 4)  # leaves room for the reply
        # From the newest backwards, so that a long history costs no more than the part that fits.
        turns = [(USER, encode(prompt))]
        chosen, left_out = self._assemble(prompt, turns), len(before)
        if len(chosen) >= context:
            own = len(turns[0][1])
            rest = "the marks of its turn" if self.system is None else "the system prompt and the marks of its turn"
            takes = f"at most {context - 1 - (len(chosen) - own):,}: the context is {context:,} tokens, "
            takes += f"{len(chosen) - own:,} go to {rest}, and the reply needs one"
            raise ValueError(f"prompt: got {own:,} tokens, expected {takes}")
        while left_out:
            exchange = before[left_out - 1]
            reply = encode(exchange.text) if exchange.ids is None else exchange.ids
            turns = [(USER, encode(exchange.prompt)), (ASSISTANT, reply), *turns]
            ids = self._assemble(exchange.prompt, turns)
            if len(ids) > longest:
                break
            chosen, left_out = ids, left_out - 1
        return chosen, left_out

    def reply_ids(self, conversation: Conversation) -> list[int]:
        """Take over a conversation and return the ids to reply to."""
        return self.prompt_ids(self.take_over(conversation), self.exchanges)[0]

    def _assemble(self, first: str, turns: list[tuple[str, list[int]]]) -> list[int]:
        """The ids of turns, the first of which is the prompt `first`, with the system prompt in front of it."""
        if self.system is not None:
            turns = [(USER, self.engine.tokenizer.encode(with_system(self.system, first))), *turns[1:]]
        return [*self._format.assemble(turns)[0], self._format.start_id]

    # ---- the conversation as a whole ----

    def reset(self) -> None:
        """Forget the exchanges and go back to the first seed; settings and system prompt stay."""
        self.exchanges: list[Exchange] = []  # the last reply possibly incomplete; one without any text is not kept
        self.last: Exchange | None = None  # kept or not; None before the first and after a prompt that was refused
        self.replies = 0  # since the seed was set, to which it is added
        self._saved: set[Path] = set()  # files that hold an earlier state of this conversation

    def undo(self) -> Exchange:
        """Take the last exchange back."""
        if not self.exchanges:
            raise ValueError("there is nothing to take back")
        *self.exchanges, last = self.exchanges
        return last

    def conversation(self, prompt: str | None = None) -> Conversation:
        """All exchanges, also those that no longer fit into the context, and then `prompt`."""
        texts = [text for exchange in self.exchanges for text in (exchange.prompt, exchange.text)]
        texts += [] if prompt is None else [prompt]
        return Conversation.of(*texts, system=self.system)

    def resume(self, conversation: Conversation) -> str | None:
        """Replace the conversation; returns the prompt that it ends with, None if it ends with a reply."""
        self.system = conversation.system
        self.reset()
        texts = [message.content for message in conversation.turns]
        self.exchanges = [Exchange(*pair) for pair in zip(texts[::2], texts[1::2])]
        return texts[-1] if len(texts) % 2 else None

    def take_over(self, conversation: Conversation) -> str:
        """Replace the conversation; returns the prompt that it ends with. Raises ValueError if it ends with a reply."""
        if (prompt := self.resume(conversation)) is None:
            raise ValueError("messages: the last is the assistant's, expected the user's to reply to")
        return prompt

    def save(self, path: Path) -> None:
        """Write the conversation, or a base model's continuations, to a new file or over an earlier state of it."""
        if not self.exchanges:
            raise ValueError("there is nothing to save yet")
        if path.exists() and path.resolve() not in self._saved:
            raise ValueError(f"{path}: exists already, expected a new name")
        if self.chat:
            documents = [self.conversation().to_json()]
        else:
            documents = [{"prompt": e.prompt, "continuation": e.text} for e in self.exchanges]
        write_documents(path, documents)
        self._saved.add(path.resolve())

    def load(self, path: Path) -> None:
        """Continue the conversation in a file."""
        self.resume(read_conversation(path))
        self._saved.add(path.resolve())
