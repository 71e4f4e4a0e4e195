"""The prompt of a reply: a conversation as token ids, without its oldest turns if the context is too short.

The system prompt always stays, because it tells the model how to reply. The newest turns stay, because the reply is to
the last of them.
"""

from collections.abc import Sequence

from nanogka.data.conversation import ASSISTANT, TEXT, USER, ChatFormat, Conversation, Message, with_system
from nanogka.generate.engine import Engine


def prompt_of(engine: Engine, conversation: Conversation, max_tokens: int | None) -> list[int]:
    """Return the prompt ids for a reply to a conversation. The oldest turns are left out if the context is too short.

    Raises ValueError if the conversation does not end with the user's message or a tool's result, or if its last turn
    does not fit alone.
    """
    template, begun, messages = ChatFormat(engine.tokenizer), [], conversation.turns
    if conversation.continues:
        begun, messages = template.encode_reply(messages[-1]), messages[:-1]
    elif conversation.ends_with_reply:
        raise ValueError("messages: the last is the assistant's, expected the user's to reply to")
    *messages, last = messages
    history = [
        (prompt.text, template.encode_reply(reply)) for prompt, reply in zip(messages[::2], messages[1::2], strict=True)
    ]
    return fit_prompt(engine, history, last.text, conversation.system, max_tokens, begun)[0]


def fit_prompt(
    engine: Engine,
    history: Sequence[tuple[str, list[int]]],
    prompt: str,
    system: str | None,
    max_tokens: int | None,
    begun: Sequence[int] = (),
) -> tuple[list[int], int]:
    """Return the ids to reply to, and the number of turns at the start of `history` that are left out.

    `history` is the earlier turns: a prompt and the ids of its reply. `begun` is the beginning of the new reply. Raises
    ValueError if `prompt` does not fit alone.
    """
    Message(USER, prompt)  # raises if it is not text
    template, encode, context = ChatFormat(engine.tokenizer), engine.tokenizer.encode, engine.context

    def render(first: str, later: Sequence[tuple[str, list[int]]]) -> list[int]:
        # The system prompt has no separate token: it is the beginning of the first turn that is left.
        messages = [(USER, encode(with_system(system, first))), *later]
        # The ids of a reply include the marks of its tool calls, so each message is a single part.
        return [*template.render_ids([(role, [(TEXT, ids)]) for role, ids in messages])[0], template.start_id, *begun]

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
