"""A session with a model: its settings, the turns so far, and replies as they are generated.

A chat model sees the conversation. If the context is too short for it, the oldest turns are left out and the system
prompt stays. A base model continues each prompt alone. Replies keep the ids that the model generated, because the
tokenizer might split their text differently: so a prompt begins with exactly the ids that are cached.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from nanogka.data.conversation import (
    ASSISTANT,
    OUTPUT,
    PYTHON,
    SYSTEM,
    TEXT,
    USER,
    ChatFormat,
    Conversation,
    Message,
    with_system,
)
from nanogka.generate.continuous import PrefixCache, TokenOutput
from nanogka.generate.engine import Engine
from nanogka.generate.settings import SessionSettings

BASE_KEEPS_NO_HISTORY = "a base model keeps no history: it continues each prompt alone"


@dataclass
class Turn:
    """A prompt and the reply to it, complete or as far as it came."""

    prompt: str
    text: str = ""
    calls: list[list[str]] = field(default_factory=list)  # tool calls: [code, output]
    ids: list[int] = field(default_factory=list, repr=False)  # of the reply, without a stop token
    prompt_tokens: int = 0  # everything that the model sees
    reused_tokens: int = 0  # how many of them were already cached
    turns_left_out: int = 0  # number of oldest turns that did not fit into the context
    tokens: int = 0
    finish_reason: str | None = None  # see `TokenOutput`; None while the reply is incomplete
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
        self._template = ChatFormat(engine.tokenizer) if chat else None
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
        self._system = None if text is None else Message(SYSTEM, text).text

    @property
    def last_is_kept(self) -> bool:
        """Whether the last turn is in `turns`."""
        return bool(self.turns) and self.turns[-1] is self.last

    def require_chat(self) -> None:
        """Raise ValueError for a base model."""
        if not self.chat:
            raise ValueError(BASE_KEEPS_NO_HISTORY)

    def reset(self) -> None:
        """Forget the turns and return to the first seed. Settings and system prompt stay."""
        self.turns: list[Turn] = []  # the last reply may be incomplete; a turn without a reply is not kept
        self.last: Turn | None = None  # kept or not; None before the first turn and after a prompt that was refused
        self.replies = 0  # since the seed was set; added to the seed

    def undo(self) -> Turn:
        """Remove and return the last turn."""
        if not self.turns:
            raise ValueError("there is nothing to undo")
        *self.turns, last = self.turns
        return last

    def reply(self, prompt: str) -> Iterator[str]:
        """Generate a reply, yielding text as it is released. An abandoned reply is kept as far as it came."""
        return self._start(prompt, self.turns)

    def retry(self) -> Iterator[str]:
        """Reply to the last prompt again, with the next seed. The last reply is replaced once there is some text."""
        if not self.turns:
            raise ValueError("there is no reply to retry yet")
        return self._start(self.turns[-1].prompt, self.turns[:-1])

    def _start(self, prompt: str, before: list[Turn]) -> Iterator[str]:
        self.last, stops = None, None
        if self.chat:
            ids, left_out = self._prompt_ids(prompt, before)
            stops = self._template.stop_ids
        else:
            ids, left_out = self.engine.encode(prompt), 0
        params = replace(self.settings, seed=self.settings.seed + self.replies)
        max_tokens = self.settings.max_tokens or None
        steps = self.engine.stream(
            [ids], params, max_tokens=max_tokens, stop_tokens=stops, calculator=self.chat, prefix=self._prefix
        )
        self.replies += 1
        self.last = Turn(prompt, prompt_tokens=len(ids), turns_left_out=left_out)
        return self._follow(steps, stops or [self.engine.tokenizer.bos_id], self.last, before)

    def _follow(
        self, steps: Iterator[list[TokenOutput]], stops: Sequence[int], turn: Turn, before: list[Turn]
    ) -> Iterator[str]:
        kept, start = False, time.perf_counter()
        for (output,) in steps:
            turn.seconds = time.perf_counter() - start
            if turn.tokens == 0:
                turn.seconds_to_first_token, turn.reused_tokens = turn.seconds, self._prefix.reused
            turn.tokens += 1
            if output.forced or output.token not in stops:
                turn.ids.append(output.token)
            turn.finish_reason = output.finish_reason
            if output.part == TEXT:
                turn.text += output.text
            elif output.text:
                self._extend_call(turn, output)
            if not kept and turn.text.strip():
                kept, self.turns = True, [*before, turn]
            if output.part == TEXT and output.text:
                yield output.text

    @staticmethod
    def _extend_call(turn: Turn, output: TokenOutput) -> None:
        new_call = not turn.calls or (output.part == PYTHON and turn.calls[-1][1])
        if new_call:
            turn.calls.append(["", ""])
        turn.calls[-1][output.part == OUTPUT] += output.text

    def reply_ids(self, conversation: Conversation) -> list[int]:
        """Replace the conversation and return the prompt ids for the next reply.

        Raises ValueError if the conversation does not end with a prompt, or if the prompt does not fit the context.
        """
        if conversation.ends_with_reply:
            raise ValueError("messages: the last is the assistant's, expected the user's to reply to")
        self.reset()
        self.system = conversation.system
        *messages, prompt = conversation.turns
        self.turns = [
            Turn(asked.text, reply.text, ids=self._template.encode_reply(reply))
            for asked, reply in zip(messages[::2], messages[1::2])
        ]
        return self._prompt_ids(prompt.text, self.turns)[0]

    def _prompt_ids(self, prompt: str, before: Sequence[Turn]) -> tuple[list[int], int]:
        """Return the ids to reply to and the number of turns at the start of `before` that are left out."""
        Message(USER, prompt)  # raises if it is not text
        context, encode = self.engine.context, self.engine.tokenizer.encode
        # The reply needs room. A quarter of the context is enough: otherwise a large --max-tokens would leave no turns.
        longest = context - min(self.settings.max_tokens or context, context // 4)
        # From the newest backwards, so that a long history costs no more than the part that fits.
        messages = [(USER, encode(prompt))]
        chosen, left_out = self._render(prompt, messages), len(before)
        if len(chosen) >= context:
            own = len(messages[0][1])
            rest = "the marks of its turn" if self.system is None else "the system prompt and the marks of its turn"
            expected = f"at most {context - 1 - (len(chosen) - own):,}: the context is {context:,} tokens, "
            expected += f"{len(chosen) - own:,} go to {rest}, and the reply needs one"
            raise ValueError(f"prompt: got {own:,} tokens, expected {expected}")
        while left_out:
            turn = before[left_out - 1]
            messages = [(USER, encode(turn.prompt)), (ASSISTANT, turn.ids), *messages]
            ids = self._render(turn.prompt, messages)
            if len(ids) > longest:
                break
            chosen, left_out = ids, left_out - 1
        return chosen, left_out

    def _render(self, first: str, messages: list[tuple[str, list[int]]]) -> list[int]:
        """Return the ids of messages, the first of which is the prompt `first`, after the system prompt."""
        if self.system is not None:
            messages = [(USER, self.engine.tokenizer.encode(with_system(self.system, first))), *messages[1:]]
        # The ids of a reply include the marks of its tool calls already.
        parts = [(role, [(TEXT, ids)]) for role, ids in messages]
        return [*self._template.assemble(parts)[0], self._template.start_id]
