"""A session with a model: its settings, the turns so far, and replies as they are generated.

A chat model sees the conversation. If the context is too short for it, the oldest turns are left out and the system
prompt stays. A base model continues each prompt alone.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from nanogka.data.conversation import SYSTEM, TEXT, Message
from nanogka.generate.continuous import PrefixCache, TokenOutput
from nanogka.generate.engine import Engine
from nanogka.generate.prompt import prompt_after, prompt_of
from nanogka.generate.reply import Reply
from nanogka.generate.settings import SessionSettings

BASE_KEEPS_NO_HISTORY = "a base model keeps no history: it continues each prompt alone"


@dataclass
class Turn:
    """A prompt and the reply to it, complete or as far as it came."""

    prompt: str
    reply: Reply = field(default_factory=Reply)
    ids: list[int] = field(default_factory=list, repr=False)  # of the reply, without a stop token
    prompt_tokens: int = 0  # everything that the model sees
    turns_left_out: int = 0  # number of oldest turns that did not fit into the context
    tokens: int = 0
    finish_reason: str | None = None  # see `TokenOutput`; None while the reply is incomplete
    seconds: float = 0.0
    seconds_to_first_token: float = 0.0

    @property
    def text(self) -> str:
        """The reply without tool calls."""
        return self.reply.text

    @property
    def calls(self) -> list[tuple[str, str]]:
        """(code, result) of each tool call."""
        return self.reply.calls


class Session:
    """State of a conversation with a chat model, or of prompts to a base model."""

    def __init__(
        self, engine: Engine, settings: SessionSettings, chat: bool = False, system: str | None = None
    ) -> None:
        self.engine, self.settings, self.chat = engine, settings, chat
        self.prefix = PrefixCache()
        self.system: str | None = None
        if system is not None:
            self.set_system(system)
        self.reset()

    def require_chat(self) -> None:
        """Raise ValueError for a base model."""
        if not self.chat:
            raise ValueError(BASE_KEEPS_NO_HISTORY)

    def set_system(self, text: str | None) -> None:
        """Set the system prompt. Raises ValueError if it is empty, not Unicode text or for a base model."""
        self.require_chat()
        self.system = None if text is None else Message(SYSTEM, text).text

    @property
    def last_is_kept(self) -> bool:
        """True if the last turn is in `turns`."""
        return bool(self.turns) and self.turns[-1] is self.last

    def reset(self) -> None:
        """Forget the turns and return to the first seed. Settings and system prompt stay."""
        self.turns: list[Turn] = []  # the last reply may be incomplete; a turn without a reply is not kept
        self.last: Turn | None = None  # kept or not; None before the first turn and after a prompt that was refused
        self.replies = 0  # since the seed was set; added to the seed

    def undo(self) -> Turn:
        """Remove and return the last turn."""
        if not self.turns:
            raise ValueError("there is nothing to undo")
        return self.turns.pop()

    def reply(self, prompt: str) -> Iterator[str]:
        """Generate a reply, yielding text as it is released. An abandoned reply is kept as far as it came."""
        return self._start(prompt, self.turns)

    def retry(self) -> Iterator[str]:
        """Reply to the last prompt again, with the next seed. The last reply is replaced once there is some text."""
        if not self.turns:
            raise ValueError("there is no reply to retry yet")
        return self._start(self.turns[-1].prompt, self.turns[:-1])

    def _start(self, prompt: str, before: list[Turn]) -> Iterator[str]:
        self.last = None
        max_tokens, tokenizer, context = self.settings.max_tokens or None, self.engine.tokenizer, self.engine.context
        if self.chat:
            # The ids that the model generated, and not its text: the tokenizer might split that differently. The prompt
            # then begins with exactly the ids that are cached.
            turns = [(turn.prompt, turn.ids) for turn in before]
            asked = prompt_after(tokenizer, turns, prompt, self.system, context, max_tokens)
        else:
            asked = prompt_of(tokenizer, prompt, context)
        # Each reply has its own seed. Otherwise the same prompt would get the same reply, and /retry could not work.
        params = replace(self.settings, seed=self.settings.seed + self.replies)
        outputs = self.engine.reply(asked, params, max_tokens=max_tokens, prefix=self.prefix)
        self.replies += 1
        self.last = Turn(prompt, prompt_tokens=len(asked.ids), turns_left_out=asked.turns_left_out)
        return self._follow(outputs, self.last, before, frozenset(asked.stop_ids))

    def _follow(
        self, outputs: Iterator[TokenOutput], turn: Turn, before: list[Turn], stop_ids: frozenset[int]
    ) -> Iterator[str]:
        kept, start = False, time.perf_counter()
        for output in outputs:
            turn.seconds = time.perf_counter() - start
            if turn.tokens == 0:
                turn.seconds_to_first_token = turn.seconds
            turn.tokens += 1
            if output.forced or output.token not in stop_ids:
                turn.ids.append(output.token)
            turn.finish_reason = output.finish_reason
            turn.reply.add(output)
            if not kept and turn.text.strip():
                kept, self.turns = True, [*before, turn]
            if output.part == TEXT and output.text:
                yield output.text
