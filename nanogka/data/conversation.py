"""Conversations: messages in turn, and nanochat's template, in which a model reads and writes them:

    <|bos|><|user_start|>…<|user_end|><|assistant_start|>…<|assistant_end|><|user_start|>…

A system message is prepended to the first user message, with a blank line between them. A reply may call a calculator:

    …<|python_start|>12 * 3<|python_end|><|output_start|>36<|output_end|>…

In JSON the call is a part of the reply, or it has OpenAI's form (`tool_calls.py`).

The loss covers what the assistant writes, `<|assistant_end|>` included: without it, a reply would never end. It does
not cover the user's messages, because the model is to answer questions and not to ask them. It does not cover the
tool's output, which the engine inserts.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nanogka.common.formatting import shorten
from nanogka.data.chat_forms import is_learned, messages_of, refuse_unknown_meaning
from nanogka.data.tool_calls import CALL_END, CALL_START, join_tool_calls
from nanogka.tokenizer import Tokenizer, check_text

SYSTEM, USER, ASSISTANT = ROLES = ("system", "user", "assistant")
DEVELOPER = "developer"  # OpenAI's newer name of the system
TEXT, PYTHON, OUTPUT = PART_TYPES = ("text", "python", "python_output")
ONLY_TEXT = "text: a model reads nothing else"
MARKS = {TEXT: (), PYTHON: (CALL_START, CALL_END), OUTPUT: ("<|output_start|>", "<|output_end|>")}


class ConversationError(ValueError):
    """A conversation that cannot be used. Faults are counted and reported by `kind`, such as "unknown role"."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class Part:
    """A part of a reply: text, the code of a tool call (python), or what the tool returned (python_output)."""

    type: str
    text: str


@dataclass(frozen=True)
class Message:
    """A message with `role` of `ROLES`. Raises ConversationError if it cannot be used.

    `content` is a text, or a list of parts (dicts with `type` and `text`, or `Part`). It is kept as a text if it has
    no tool calls, otherwise as a tuple of parts. A reply that is not `learned` is context only.
    """

    role: str
    content: str | tuple[Part, ...]
    # Not in repr, whose hash chooses the conversations for validation: copies stay in one split.
    learned: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            got = shorten(repr(self.role))
            raise ConversationError("unknown role", f"role: got {got}, expected {', '.join(ROLES)}")
        content = self.content
        if isinstance(content, list | tuple):
            content = tuple(self._part(part) for part in content)
            if all(part.type == TEXT for part in content):
                content = "".join(part.text for part in content)
            elif self.role != ASSISTANT:
                raise self._error("tool call out of place", "a tool call", "text: only the assistant calls tools")
            object.__setattr__(self, "content", content)
        if not isinstance(content, str | tuple):
            raise self._error("content is not text", type(content).__name__, "text or a list of parts")
        if not any(part.type == PYTHON or part.text.strip() for part in self.parts):
            raise self._error("empty content", shorten(repr(content)), "text")
        for part in self.parts:
            try:
                check_text(part.text)
            except ValueError as error:
                raise ConversationError("content is not text", f"content of {self.role}: {error}") from None

    def _part(self, part: object) -> Part:
        if isinstance(part, Part):
            return part
        if isinstance(part, dict) and part.get("type") in PART_TYPES and isinstance(part.get("text"), str):
            return Part(part["type"], part["text"])
        if isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] not in PART_TYPES:
            raise self._error("content is not text", f"a part of type {shorten(repr(part['type']))}", ONLY_TEXT)
        expected = f"a part with text and a type of {', '.join(PART_TYPES)}"
        raise self._error("content is not text", shorten(repr(part)), expected)

    def _error(self, kind: str, got: str, expected: str) -> ConversationError:
        return ConversationError(kind, f"content of {self.role}: got {got}, expected {expected}")

    @property
    def parts(self) -> tuple[Part, ...]:
        """The content as parts."""
        return (Part(TEXT, self.content),) if isinstance(self.content, str) else self.content

    @property
    def text(self) -> str:
        """The content without tool calls."""
        return "".join(part.text for part in self.parts if part.type == TEXT)


@dataclass(frozen=True)
class Conversation:
    """At most one system message, then user and assistant in turn. Either of them may have the last message.

    With `continues`, the last message is the beginning of a reply, up to a tool's result.
    """

    messages: tuple[Message, ...]
    continues: bool = False

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
            raise ConversationError("no messages", "messages: got no user message, expected at least one")

    @property
    def system(self) -> str | None:
        """The system prompt."""
        first = self.messages[:1]
        return first[0].text if first and first[0].role == SYSTEM else None

    @property
    def turns(self) -> tuple[Message, ...]:
        """The messages of user and assistant."""
        return self.messages if self.system is None else self.messages[1:]

    @property
    def ends_with_reply(self) -> bool:
        """True if the last message is the assistant's."""
        return self.messages[-1].role == ASSISTANT

    def require_question(self) -> None:
        """Raise ConversationError unless the next message is the assistant's, or the rest of one that `continues`."""
        if self.ends_with_reply and not self.continues:
            wrong = "messages: the last is the assistant's, expected the user's to reply to"
            raise ConversationError("out of turn", wrong)

    @staticmethod
    def of(*contents: str | Sequence[Part], system: str | None = None) -> "Conversation":
        """Make a conversation of user and assistant with `contents` as messages in turn."""
        roles = (ASSISTANT if i % 2 else USER for i in range(len(contents)))
        head = () if system is None else (Message(SYSTEM, system),)
        whole = (content if isinstance(content, str) else tuple(content) for content in contents)
        return Conversation((*head, *map(Message, roles, whole)))

    @staticmethod
    def from_json(value: object, complete: bool = True) -> "Conversation":
        """Read parsed JSON: an object of a form that `chat_forms` lists, or a list of messages.

        With `complete`, it must end with a whole reply and have something to learn, as training data must.
        """
        try:
            messages = messages_of(value) if isinstance(value, dict) else value
        except ValueError as error:
            raise ConversationError("another form", str(error)) from None
        if not isinstance(messages, list):
            expected = 'expected an object {"messages": [{"role": …, "content": …}, …]}'
            raise ConversationError("no messages", f"got {shorten(repr(value))}, {expected}")
        if not messages:
            raise ConversationError("no messages", "messages: got an empty list, expected a user message and a reply")
        try:
            joined, continues = join_tool_calls(messages)
        except ValueError as error:
            raise ConversationError("tool call out of place", str(error)) from None
        read = [_message(number, entry, complete) for number, entry in joined if not _is_empty_system(entry)]
        conversation = Conversation(_with_one_system(read), continues)
        if complete and (continues or not conversation.ends_with_reply):
            last = "a tool's result" if continues else "the user's"
            wrong = f"messages: the last is {last}, expected the assistant's at the end"
            raise ConversationError("no reply at the end", wrong)
        if complete and not any(message.learned for message in conversation.messages if message.role == ASSISTANT):
            raise ConversationError("nothing to learn", "messages: every reply has the weight 0, expected one to learn")
        return conversation

    def to_json(self) -> dict:
        """Return the form that `from_json` reads."""
        return {
            "messages": [
                {"role": message.role, "content": _content_json(message)} | ({} if message.learned else {"weight": 0})
                for message in self.messages
            ]
        }


def _content_json(message: Message) -> str | list[dict]:
    if isinstance(message.content, str):
        return message.content
    return [{"type": part.type, "text": part.text} for part in message.content]


def _with_one_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Join the system messages at the start, as they come from a prompt of the data set and one of the conversation."""
    head = list(itertools.takewhile(lambda message: message.role == SYSTEM, messages))
    if len(head) < 2:
        return tuple(messages)
    texts = dict.fromkeys(message.text for message in head)  # often they are the same
    return (Message(SYSTEM, "\n\n".join(texts)), *messages[len(head) :])


def _is_empty_system(entry: object) -> bool:
    """True for a system message without text, which many programs write: it says nothing."""
    if not isinstance(entry, dict) or entry.get("role") not in (SYSTEM, DEVELOPER):
        return False
    content = entry.get("content", "missing")
    return content is None or content == [] or (isinstance(content, str) and not content.strip())


def _message(number: int, entry: object, to_learn: bool) -> Message:
    if not isinstance(entry, dict) or not {"role", "content"} <= set(entry):
        expected = "expected an object with role and content"
        raise ConversationError("not a message", f"message {number}: got {shorten(repr(entry))}, {expected}")
    try:
        if to_learn:
            refuse_unknown_meaning(entry)
        role = SYSTEM if entry["role"] == DEVELOPER else entry["role"]
        message = Message(role, entry["content"], not to_learn or is_learned(entry))
        if to_learn and any("\0" in part.text for part in message.parts):
            raise ConversationError("content is not text", "content: holds NUL characters, expected text")
        return message
    except ConversationError as error:
        raise ConversationError(error.kind, f"message {number}: {error}") from None
    except ValueError as error:
        raise ConversationError("a key that is not obeyed", f"message {number}: {error}") from None


class ChatFormat:
    """The template: conversations as tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        roles = {role: (f"<|{role}_start|>", f"<|{role}_end|>") for role in (USER, ASSISTANT)}
        needed = [name for names in (*roles.values(), *MARKS.values()) for name in names]
        if missing := [name for name in needed if name not in tokenizer.special_tokens]:
            raise ValueError(f"tokenizer: has no {', '.join(missing)}; expected one that scripts.tok_train made")
        self.tokenizer = tokenizer
        special = tokenizer.special_tokens
        self._marks = {role: tuple(special[name] for name in names) for role, names in (roles | MARKS).items()}
        self.start_id, self.stop_id = self._marks[ASSISTANT]  # around a reply
        self.call_end_id = self._marks[PYTHON][1]

    @property
    def stop_ids(self) -> list[int]:
        """The tokens that end a reply: all special ones except the marks of a tool call.

        A model that writes a tool's output itself is stopped: only the engine may insert it.
        """
        return [token for token in self.tokenizer.special_tokens.values() if token not in self._marks[PYTHON]]

    def render(self, conversation: Conversation) -> tuple[list[int], list[bool]]:
        """Return the token ids of a conversation and its loss mask, True for the tokens to learn."""
        return self.render_many([conversation])[0]

    def render_many(self, conversations: Iterable[Conversation]) -> list[tuple[list[int], list[bool]]]:
        """`render` each conversation, with all texts tokenized in one parallel call."""
        messages = [_with_system(conversation) for conversation in conversations]
        texts = [part.text for turns in messages for message in turns for part in message.parts]
        encoded = iter(self.tokenizer.encode_batch(texts))
        return [
            self.render_ids(
                [(m.role, [(part.type, next(encoded)) for part in m.parts]) for m in turns],
                [m.learned for m in turns],
            )
            for turns in messages
        ]

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """Return the ids up to `<|assistant_start|>`, where the reply to the user's last message begins.

        If the conversation `continues`, return the ids up to the result after which its last reply continues.
        """
        conversation.require_question()
        if conversation.continues:
            return self.render(conversation)[0][:-1]  # without the mark that ends the reply
        return [*self.render(conversation)[0], self.start_id]

    def encode_reply(self, message: Message) -> list[int]:
        """Return the ids of a reply without the marks of its turn."""
        return self._reply([(part.type, self.tokenizer.encode(part.text)) for part in message.parts])[0]

    def render_ids(
        self, messages: Sequence[tuple[str, Sequence[tuple[str, Sequence[int]]]]], learned: Sequence[bool] | None = None
    ) -> tuple[list[int], list[bool]]:
        """`render` tokenized messages. A message is (role, parts), a part (type, ids). `learned`: default all."""
        ids, mask = [self.tokenizer.bos_id], [False]
        for (role, parts), to_learn in zip(messages, [True] * len(messages) if learned is None else learned):
            start, end = self._marks[role]
            own, own_mask = self._reply(parts)
            is_target = role == ASSISTANT and to_learn
            ids += [start, *own, end]
            mask += [False, *(is_target and one for one in own_mask), is_target]
        return ids, mask

    def _reply(self, parts: Sequence[tuple[str, Sequence[int]]]) -> tuple[list[int], list[bool]]:
        ids, mask = [], []
        for kind, tokens in parts:
            start, end = self._marks[kind][:1], self._marks[kind][1:]
            own = [*start, *tokens, *end]
            ids += own
            mask += [kind != OUTPUT] * len(own)
        return ids, mask


def _with_system(conversation: Conversation) -> tuple[Message, ...]:
    """The turns, with the system message in the user's first."""
    first, *rest = conversation.turns
    return (Message(USER, with_system(conversation.system, first.text)), *rest)


def with_system(system: str | None, text: str) -> str:
    """Return the text of a turn after the system prompt. As in nanochat, no special token marks the prompt."""
    return text if system is None else f"{system}\n\n{text}"
