"""A session with a model: its settings, the turns so far, and replies as they are generated.

A chat model sees the conversation. If the context is too short for it, the oldest turns are left out and the system
prompt stays. A base model continues each prompt alone.
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
    turns_left_out: int = 0  # number of oldest turns that did not fit into the context
    tokens: int = 0
    finish_reason: str | None = None  # see `TokenOutput`; None while the reply is incomplete
    seconds: float = 0.0
    seconds_to_first_token: float = 0.0


class Session:
    """State of a conversation with a chat model, or of prompts to a base model."""

    def __init__(
        self, engine: Engine, settings: SessionSettings, chat: bool = False, system: str | None = None
    ) -> None:
        self.engine, self.settings, self.chat = engine, settings, chat
        # The ids that end a reply. A base model's text ends where the next document would begin.
        self._stops = ChatFormat(engine.tokenizer).stop_ids if chat else [engine.tokenizer.bos_id]
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
        """Whether the last turn is in `turns`."""
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
        max_tokens = self.settings.max_tokens or None
        if self.chat:
            # The ids that the model generated, and not its text: the tokenizer might split that differently. The prompt
            # then begins with exactly the ids that are cached.
            history = [(turn.prompt, turn.ids) for turn in before]
            ids, left_out = fit_prompt(self.engine, history, prompt, self.system, max_tokens)
        else:
            ids, left_out = self.engine.encode(prompt), 0
        # Each reply has its own seed. Otherwise the same prompt would get the same reply, and /retry could not work.
        params = replace(self.settings, seed=self.settings.seed + self.replies)
        steps = self.engine.stream(
            [ids], params, max_tokens=max_tokens, stop_tokens=self._stops, calculator=self.chat, prefix=self.prefix
        )
        self.replies += 1
        self.last = Turn(prompt, prompt_tokens=len(ids), turns_left_out=left_out)
        return self._follow(steps, self.last, before)

    def _follow(self, steps: Iterator[list[TokenOutput]], turn: Turn, before: list[Turn]) -> Iterator[str]:
        kept, start = False, time.perf_counter()
        for (output,) in steps:
            turn.seconds = time.perf_counter() - start
            if turn.tokens == 0:
                turn.seconds_to_first_token = turn.seconds
            turn.tokens += 1
            if output.forced or output.token not in self._stops:
                turn.ids.append(output.token)
            turn.finish_reason = output.finish_reason
            if output.part == TEXT:
                turn.text += output.text
            elif output.text:
                if output.part == PYTHON and (not turn.calls or turn.calls[-1][1]):
                    turn.calls.append(["", ""])
                turn.calls[-1][output.part == OUTPUT] += output.text
            if not kept and turn.text.strip():
                kept, self.turns = True, [*before, turn]
            if output.part == TEXT and output.text:
                yield output.text


def prompt_of(engine: Engine, conversation: Conversation, max_tokens: int | None) -> list[int]:
    """Return the prompt ids for a reply to a conversation. The oldest turns are left out if the context is too short.

    Raises ValueError if the conversation does not end with the user's message, or if that does not fit alone.
    """
    if conversation.ends_with_reply:
        raise ValueError("messages: the last is the assistant's, expected the user's to reply to")
    *messages, last = conversation.turns
    template = ChatFormat(engine.tokenizer)
    history = [
        (prompt.text, template.encode_reply(reply)) for prompt, reply in zip(messages[::2], messages[1::2], strict=True)
    ]
    return fit_prompt(engine, history, last.text, conversation.system, max_tokens)[0]


def fit_prompt(
    engine: Engine, history: Sequence[tuple[str, list[int]]], prompt: str, system: str | None, max_tokens: int | None
) -> tuple[list[int], int]:
    """Return the ids to reply to, and the number of turns at the start of `history` that are left out.

    `history` is the earlier turns: a prompt and the ids of its reply. Raises ValueError if `prompt` does not fit alone.
    """
    Message(USER, prompt)  # raises if it is not text
    template, encode, context = ChatFormat(engine.tokenizer), engine.tokenizer.encode, engine.context

    def render(first: str, later: Sequence[tuple[str, list[int]]]) -> list[int]:
        # The system prompt has no token of its own: it is the beginning of the first turn that is left.
        messages = [(USER, encode(with_system(system, first))), *later]
        # The ids of a reply include the marks of its tool calls, so each message is a single part.
        return [*template.render_ids([(role, [(TEXT, ids)]) for role, ids in messages])[0], template.start_id]

    chosen, left_out = render(prompt, []), len(history)
    later = [(USER, encode(prompt))]
    if len(chosen) >= context:
        got, needed = len(later[0][1]), len(chosen) + 1 - len(later[0][1])
        raise ValueError(
            f"prompt: got {got:,} tokens, expected at most {context - needed:,}: the context is {context:,} tokens, and"
            f" {needed:,} are needed for the system prompt, the marks of the turn and a reply"
        )
    # The reply needs room. A quarter of the context is enough: otherwise a large --max-tokens would leave no turns.
    longest = context - min(max_tokens or context, context // 4)
    # From the newest turn backwards, so that a long history costs no more than the part that fits.
    while left_out:
        asked, reply = history[left_out - 1]
        ids = render(asked, [(ASSISTANT, reply), *later])
        if len(ids) > longest:
            break
        chosen, left_out, later = ids, left_out - 1, [(USER, encode(asked)), (ASSISTANT, reply), *later]
    return chosen, left_out
