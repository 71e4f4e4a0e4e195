"""How a chat model is told what was said: as much of it as its context takes.

What was said is exchanges, each a prompt and its reply. The ids of a turn are all of it in the chat format, so that
they begin with the ids of the turn before: replies keep those they were generated as, which need not be those that the
tokenizer gives their text. Where the context is too short, whole exchanges are left out, the oldest first; the system
prompt stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nanogka.data.conversation import ASSISTANT, SYSTEM, USER, ChatFormat, Conversation, Message, with_system


@dataclass
class Exchange:
    """A prompt and what the model said to it.

    Attributes:
        prompt, text: in words.
        ids: the reply's, as generated, without a token that ended it; None where only the text is known.
    """

    prompt: str
    text: str = ""
    ids: list[int] | None = field(default=None, repr=False)


class Dialogue:
    """A chat model's side of a session.

    Args:
        chat_format: writes them down.
        system: the system prompt, if any.
    """

    def __init__(self, chat_format: ChatFormat, system: str | None = None) -> None:
        self.format = chat_format
        self._tokenizer = chat_format.tokenizer
        self.system = system

    @property
    def system(self) -> str | None:
        """What stands in front of the first prompt. Setting raises ValueError if it is empty or no Unicode text."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        self._system = None if text is None else Message(SYSTEM, text).content

    def prompt_ids(self, prompt: str, before: Sequence[Exchange], context: int, room: int) -> tuple[list[int], int]:
        """The ids to reply to.

        Args:
            prompt: what the user says now.
            before: what was said before.
            context: tokens of prompt and reply together.
            room: tokens that a reply should have; exchanges are left out until it has, `prompt` never.

        Returns:
            the ids, and the number of exchanges at the beginning of `before` that are left out.

        Raises:
            ValueError: if `prompt` alone, with the system prompt, leaves no token for a reply, or is no text to send.
        """
        Message(USER, prompt)
        # From the newest backwards, so that a long history costs no more than the part that fits.
        later = [(USER, self._tokenizer.encode(prompt))]
        chosen, left_out = self._opened(prompt, later), len(before)
        if len(chosen) >= context:
            raise ValueError(self._too_long(chosen, later, context))
        while left_out:
            exchange = before[left_out - 1]
            reply = self._tokenizer.encode(exchange.text) if exchange.ids is None else exchange.ids
            later = [(USER, self._tokenizer.encode(exchange.prompt)), (ASSISTANT, reply), *later]
            ids = self._opened(exchange.prompt, later)
            if len(ids) > context - room:
                break
            chosen, left_out = ids, left_out - 1
        return chosen, left_out

    def _opened(self, first: str, turns: list[tuple[str, list[int]]]) -> list[int]:
        """The ids of turns that begin with the prompt `first`, the system's words put in front of it."""
        if self.system is not None:
            turns = [(USER, self._tokenizer.encode(with_system(self.system, first))), *turns[1:]]
        return [*self.format.assemble(turns)[0], self.format.start_id]

    def _too_long(self, ids: list[int], turns: list[tuple[str, list[int]]], context: int) -> str:
        own = len(turns[0][1])
        rest = "the marks of its turn" if self.system is None else "the system prompt and the marks of its turn"
        takes = f"at most {context - 1 - (len(ids) - own):,}: the context is {context:,} tokens, "
        return f"prompt: got {own:,} tokens, takes {takes}{len(ids) - own:,} go to {rest}, and the reply needs one"

    def conversation(self, exchanges: Sequence[Exchange], prompt: str | None = None) -> Conversation:
        """All of these and a last prompt, with the system prompt: also what the model does not see any more."""
        texts = [text for exchange in exchanges for text in (exchange.prompt, exchange.text)]
        texts += [] if prompt is None else [prompt]
        return Conversation.of(*texts, system=self.system)
