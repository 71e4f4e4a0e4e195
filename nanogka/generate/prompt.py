"""Turns what a person gives into the tokens that a model continues: a text, a conversation, or token ids.

The oldest turns of a conversation are left out if the context is too short. The system prompt always stays, because it
tells the model how to reply. The newest turns stay, because the reply is to the last of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nanogka.data.conversation import ASSISTANT, MARKS, TEXT, USER, ChatFormat, Conversation, Message, with_system
from nanogka.generate.continuous import MAX_CONTEXT, Request
from nanogka.generate.settings import SamplingParams
from nanogka.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """The tokens that a model continues, and what happens to its text."""

    ids: Sequence[int]
    stop_ids: Sequence[int]  # the tokens that end the text
    calculator: bool = False  # whether the calculator answers the model's calls
    turns_left_out: int = 0  # number of oldest turns that did not fit into the context


def request_of(prompts: Sequence[Prompt], params: SamplingParams, **options: Any) -> Request:
    """Return the request to continue prompts that end alike. `options` are other fields of `Request`."""
    ends: dict[str, Any] = {"stop_tokens": prompts[0].stop_ids, "calculator": prompts[0].calculator}
    return Request([prompt.ids for prompt in prompts], params, **ends | options)


def prompt_of(
    tokenizer: Tokenizer,
    given: str | Sequence[int] | Conversation,
    context: int | None = None,
    *,
    truncate: bool = False,
    max_tokens: int | None = None,
) -> Prompt:
    """Return the prompt for a text or token ids to continue, or for a conversation to reply to.

    With a `context`, what certainly exceeds it is refused before it is tokenized, which would take memory and time.
    With `truncate`, the oldest turns of a conversation are left out, so that about `max_tokens` fit after it.

    Raises ValueError if the given is not text, is too long, or is a conversation in which the user must speak next.
    """
    if not isinstance(given, Conversation):
        if isinstance(given, str):
            _require_room("prompt", 1 + _least_tokens(tokenizer, given), context)
            given = [tokenizer.bos_id, *tokenizer.encode(given)]
        return Prompt(given, [tokenizer.bos_id])  # without the stop the text of another document would begin
    template = ChatFormat(tokenizer)
    if not truncate or context is None:
        _require_room("messages", least_tokens(tokenizer, given), context)
        return _reply_after(template, template.render_prompt(given))
    given.require_question()
    messages, begun = given.turns, ()
    if given.continues:
        messages, begun = messages[:-1], template.encode_reply(messages[-1])
    *earlier, last = messages
    kept = _newest(tokenizer, earlier, context)
    turns = [(asked.text, template.encode_reply(reply)) for asked, reply in zip(kept[::2], kept[1::2], strict=True)]
    prompt = prompt_after(tokenizer, turns, last.text, given.system, context, max_tokens, begun)
    missing = (len(earlier) - len(kept)) // 2
    return _reply_after(template, prompt.ids, prompt.turns_left_out + missing)


def prompt_after(
    tokenizer: Tokenizer,
    turns: Sequence[tuple[str, Sequence[int]]],
    text: str,
    system: str | None,
    context: int,
    max_tokens: int | None = None,
    begun: Sequence[int] = (),
) -> Prompt:
    """Return the prompt for a reply to `text` after earlier turns: prompts, and the ids of the replies to them.

    The oldest turns are left out if the context is too short. `begun` is the beginning of the new reply. Raises
    ValueError if `text` is not text or does not fit alone.
    """
    Message(USER, text)  # raises if it is not text
    template, encode = ChatFormat(tokenizer), tokenizer.encode
    _require_room("prompt", _least_tokens(tokenizer, with_system(system, text)), context)

    def render(first: str, later: Sequence[tuple[str, Sequence[int]]]) -> list[int]:
        # The system prompt has no separate token: it is the beginning of the first turn that is left.
        messages = [(USER, encode(with_system(system, first))), *later]
        # The ids of a reply include the marks of its tool calls, so each message is a single part.
        return [*template.render_ids([(role, [(TEXT, ids)]) for role, ids in messages])[0], template.start_id, *begun]

    chosen, left_out = render(text, []), len(turns)
    later = [(USER, encode(text))]
    if len(chosen) >= context:
        got, needed = len(later[0][1]), len(chosen) + 1 - len(later[0][1])
        raise ValueError(
            f"prompt: got {got:,} tokens, expected at most {context - needed:,}: {MAX_CONTEXT} {context:,} tokens, and"
            f" {needed:,} are needed for the system prompt, the marks of the turn and a reply"
        )
    # The reply needs room. A quarter of the context is enough: otherwise a large --max-tokens would leave no turns.
    longest = context - min(max_tokens or context, context // 4)
    # From the newest turn backwards, so that a long history costs no more than the part that fits.
    while left_out:
        asked, reply = turns[left_out - 1]
        ids = render(asked, [(ASSISTANT, reply), *later])
        if len(ids) > longest:
            break
        chosen, left_out, later = ids, left_out - 1, [(USER, encode(asked)), (ASSISTANT, reply), *later]
    return _reply_after(template, chosen, left_out)


def least_tokens(tokenizer: Tokenizer, conversation: Conversation) -> int:
    """Return a number of tokens that a conversation has at least, however its texts are tokenized."""
    return 1 + sum(_least_of(tokenizer, message) for message in conversation.messages)


def _least_of(tokenizer: Tokenizer, message: Message) -> int:
    """A lower bound on the tokens of a message: its marks, which a system message lacks, and those of its parts."""
    marks = 2 if message.role in (USER, ASSISTANT) else 0
    return marks + sum(len(MARKS[part.type]) + _least_tokens(tokenizer, part.text) for part in message.parts)


def _least_tokens(tokenizer: Tokenizer, text: str) -> int:
    """A lower bound on the tokens of a text: as if the tokenizer's longest token repeated."""
    return -(-len(text.encode(errors="replace")) // tokenizer.longest_token)


def _newest(tokenizer: Tokenizer, messages: Sequence[Message], context: int) -> Sequence[Message]:
    """Leave out the oldest turns that cannot fit into the context, whatever is left of it."""
    left = context
    for start in range(len(messages) - 2, -1, -2):
        left -= sum(_least_of(tokenizer, message) for message in messages[start : start + 2])
        if left < 0:
            return messages[start + 2 :]
    return messages


def _require_room(name: str, tokens: int, context: int | None) -> None:
    """Raise ValueError if `tokens`, a lower bound, leave no room for a reply."""
    if context is not None and tokens >= context:
        most = f"at most {context - 1:,}: {MAX_CONTEXT} {context:,} tokens, and the reply needs one of them"
        raise ValueError(f"{name}: got at least {tokens:,} tokens, expected {most}")


def _reply_after(template: ChatFormat, ids: Sequence[int], left_out: int = 0) -> Prompt:
    """Return the prompt of a chat model's reply: only here is decided what ends one, and that it may calculate."""
    return Prompt(ids, template.stop_ids, calculator=True, turns_left_out=left_out)
