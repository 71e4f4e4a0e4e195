"""Conversations: messages in turn, and the format in which a model reads and writes them, nanochat's:

    <|bos|><|user_start|>…<|user_end|><|assistant_start|>…<|assistant_end|><|user_start|>…

A system message is put in front of the first user message, with a blank line between them. The loss covers the
assistant's words and the `<|assistant_end|>` after them, nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nanogka.common.formatting import shorten
from nanogka.tokenizer import Tokenizer, check_text

SYSTEM, USER, ASSISTANT = ROLES = ("system", "user", "assistant")


class ConversationError(ValueError):
    """A conversation that cannot be used; faults are counted and reported by `kind`, such as "unknown role"."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class Message:
    """A message: `role` of `ROLES`, `content` with some text in it; ConversationError otherwise."""

    role: str
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConversationError(
                "unknown role", f"role: got {shorten(repr(self.role))}, expected {', '.join(ROLES)}"
            )
        if not isinstance(self.content, str):
            got = type(self.content).__name__
            raise ConversationError("content is not text", f"content of {self.role}: got {got}, expected text")
        if not self.content.strip():
            raise ConversationError("empty content", f"content of {self.role}: got {self.content!r}, expected text")
        try:
            check_text(self.content)
        except ValueError as error:
            raise ConversationError("content is not text", f"content of {self.role}: {error}") from None


@dataclass(frozen=True)
class Conversation:
    """Messages in turn: at most one of the system first, then user, assistant, user, …; it may end with either side."""

    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(self.messages))
        turns = self.turns
        before = "nothing" if self.system is None else SYSTEM
        for i, message in enumerate(turns):
            expected = ASSISTANT if i % 2 else USER
            if message.role != expected:
                number = len(self.messages) - len(turns) + i + 1
                got = f"message {number}: got {message.role} after {before}"
                raise ConversationError("out of turn", f"{got}, expected {expected}")
            before = message.role
        if not turns:
            raise ConversationError("no messages", "messages: takes at least one of the user")

    @property
    def system(self) -> str | None:
        first = self.messages[:1]
        return first[0].content if first and first[0].role == SYSTEM else None

    @property
    def turns(self) -> tuple[Message, ...]:
        """The messages of user and assistant."""
        return self.messages if self.system is None else self.messages[1:]

    @property
    def ends_with_reply(self) -> bool:
        return self.messages[-1].role == ASSISTANT

    @staticmethod
    def of(*texts: str, system: str | None = None) -> "Conversation":
        """A conversation of user and assistant with `texts` as messages in turn."""
        roles = (ASSISTANT if i % 2 else USER for i in range(len(texts)))
        head = () if system is None else (Message(SYSTEM, system),)
        return Conversation((*head, *map(Message, roles, texts)))

    @staticmethod
    def from_json(value: object, complete: bool = True) -> "Conversation":
        """The conversation in parsed JSON: an object with a list `messages`, or such a list itself.

        `complete`: whether it must end with a reply, as one to learn from must.
        """
        messages = value.get("messages") if isinstance(value, dict) else value
        if not isinstance(messages, list):
            takes = 'expected an object {"messages": [{"role": …, "content": …}, …]}'
            raise ConversationError("no messages", f"got {shorten(repr(value))}, {takes}")
        if not messages:
            raise ConversationError("no messages", "messages: got an empty list, expected a user message and a reply")
        conversation = Conversation(tuple(_message(number, entry) for number, entry in enumerate(messages, 1)))
        if complete and not conversation.ends_with_reply:
            wrong = "messages: the last is the user's, expected the assistant's at the end"
            raise ConversationError("no reply at the end", wrong)
        return conversation

    def to_json(self) -> dict:
        return {"messages": [{"role": message.role, "content": message.content} for message in self.messages]}


def _message(number: int, entry: object) -> Message:
    if not isinstance(entry, dict) or not {"role", "content"} <= set(entry):
        takes = "expected an object with role and content"
        raise ConversationError("not a message", f"message {number}: got {shorten(repr(entry))}, {takes}")
    try:
        return Message(entry["role"], entry["content"])
    except ConversationError as error:
        raise ConversationError(error.kind, f"message {number}: {error}") from None


class ChatFormat:
    """The tokens of conversations, with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        needed = [f"<|{role}_{end}|>" for role in (USER, ASSISTANT) for end in ("start", "end")]
        if missing := [name for name in needed if name not in tokenizer.special_tokens]:
            raise ValueError(f"tokenizer: has no {', '.join(missing)}; expected one that scripts.tok_train made")
        self.tokenizer = tokenizer
        self._marks = {
            role: (tokenizer.special_tokens[f"<|{role}_start|>"], tokenizer.special_tokens[f"<|{role}_end|>"])
            for role in (USER, ASSISTANT)
        }
        self.start_id, self.stop_id = self._marks[ASSISTANT]  # a reply begins after the one and ends with the other

    def render(self, conversation: Conversation) -> tuple[list[int], list[bool]]:
        """Token ids of the conversation, and its loss mask: True for the tokens to learn."""
        return self.render_many([conversation])[0]

    def render_many(self, conversations: Iterable[Conversation]) -> list[tuple[list[int], list[bool]]]:
        """`render` of each, all texts tokenized in one parallel call."""
        texts = [_texts(conversation) for conversation in conversations]
        encoded = iter(self.tokenizer.encode_batch([text for part in texts for _, text in part]))
        return [self.assemble([(role, next(encoded)) for role, _ in part]) for part in texts]

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """Token ids up to `<|assistant_start|>`, after which the reply to the user's last message begins."""
        if conversation.ends_with_reply:
            wrong = "messages: the last is the assistant's, expected the user's to reply to"
            raise ConversationError("out of turn", wrong)
        return [*self.render(conversation)[0], self.start_id]

    def assemble(self, parts: Sequence[tuple[str, Sequence[int]]]) -> tuple[list[int], list[bool]]:
        """`render` of turns that are tokenized already: (role, ids of the text) each."""
        ids, mask = [self.tokenizer.bos_id], [False]
        for role, tokens in parts:
            start, end = self._marks[role]
            ids += [start, *tokens, end]
            mask += [False, *[role == ASSISTANT] * (len(tokens) + 1)]
        return ids, mask


def _texts(conversation: Conversation) -> list[tuple[str, str]]:
    """(role, text) of each turn, with the system message in the user's first."""
    texts = [(message.role, message.content) for message in conversation.turns]
    if conversation.system is not None:
        texts[0] = (USER, with_system(conversation.system, texts[0][1]))
    return texts


def with_system(system: str | None, text: str) -> str:
    """The text of a turn behind the system prompt, which has no token of its own."""
    return text if system is None else f"{system}\n\n{text}"
