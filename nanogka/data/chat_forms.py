"""Well-known forms of conversations in JSON, read as a list of messages with role and content.

    {"messages": [{"role": "user", "content": "…"}, …]}                    ours and OpenAI's
    {"conversations": [{"from": "human", "value": "…"}, …], "system": "…"} ShareGPT's
    {"instruction": "…", "input": "…", "output": "…", "history": [[…, …]]} Alpaca's
    {"prompt": "…", "completion": "…"}                                     texts, or lists of messages

A `system` (or `system_prompt`) next to any of these is the first message. A reply may say that it is not to be learned:
with `"weight": 0`, or with false for `train`, `training`, `loss` or `loss_mask`. Keys that would change what a reply
means, and that this project cannot obey, are refused. Others, such as `name`, are ignored.
"""

from collections.abc import Collection, Sequence

from nanogka.common.formatting import shorten

MESSAGES, SHAREGPT, ALPACA, COMPLETION = "messages", "conversations", "instruction", "prompt"
COLUMNS = (
    "messages", "conversations", "system", "system_prompt", "instruction", "input", "output", "history", "prompt",
    "completion", "label", "kto_tag", "weight",
)  # fmt: skip
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant"}
WEIGHT, TRAIN = "weight", ("train", "training", "loss", "loss_mask")  # keys of a reply that say whether it is learned
MEDIA = ("images", "image", "videos", "video", "audios", "audio")
NOT_OBEYED = (
    "reasoning_content", "reasoning", "reasoning_details", "thinking", "thought", "channel", "function_call", "prefix",
    "train_detail", "loss_scale", "mask", "masked", *MEDIA,
)  # fmt: skip


def form_of(keys: Collection[str]) -> str | None:
    """The key that names the form of a conversation with these keys; None if it has no known form."""
    if MESSAGES in keys or SHAREGPT in keys:
        return MESSAGES if MESSAGES in keys else SHAREGPT
    if {"instruction", "output"} <= set(keys):
        return ALPACA
    return COMPLETION if {"prompt", "completion"} <= set(keys) else None


def expected_form(keys: Collection[str]) -> str:
    """Advice on an object or a table with these keys, which has no known form."""
    if {"chosen", "rejected"} <= set(keys):
        return "pairs of a chosen and a rejected reply cannot be learned from; write prompt and chosen as messages"
    return "expected messages, conversations (ShareGPT), instruction and output (Alpaca), or prompt and completion"


def messages_of(value: dict) -> object:
    """The messages of an object in any known form, as it has them. Raises ValueError for others."""
    form = form_of(value)
    if form is None:
        raise ValueError(f"got {shorten(repr(value))}, {expected_form(value)}")
    marks = [value.get("label"), value.get("kto_tag")]
    if any(isinstance(mark, bool) or (form == COMPLETION and mark in (0, 1)) for mark in marks):
        raise ValueError("label: replies that are marked as good or bad cannot be learned from; write good as messages")
    if value.get(WEIGHT, 1) not in (1, None):
        got = shorten(repr(value[WEIGHT]))
        raise ValueError(
            f"{WEIGHT}: got {got} for a whole conversation, expected 1; only replies may have the weight 0"
        )
    refuse_unknown_meaning(value, MEDIA)
    if form == MESSAGES and not isinstance(value[MESSAGES], list):
        return value[MESSAGES]
    read = {MESSAGES: lambda value: value[MESSAGES], SHAREGPT: _sharegpt, ALPACA: _alpaca, COMPLETION: _completion}
    system = value.get("system") or value.get("system_prompt")
    return [*([{"role": "system", "content": system}] if system else []), *read[form](value)]


def _sharegpt(value: dict) -> list:
    entries = value[SHAREGPT]
    if not isinstance(entries, list):
        raise ValueError(f"{SHAREGPT}: got {shorten(repr(entries))}, expected a list")
    return [_renamed(entry) if isinstance(entry, dict) and "from" in entry else entry for entry in entries]


def _renamed(entry: dict) -> dict:
    rest = {key: value for key, value in entry.items() if key not in ("from", "value")}
    role = entry["from"]
    role = SHAREGPT_ROLES.get(role, role) if isinstance(role, str) else role
    return rest | {"role": role, "content": entry.get("value")}


def _alpaca(value: dict) -> list[dict]:
    question, more = value["instruction"], value.get("input")
    if isinstance(question, str) and isinstance(more, str) and more.strip():
        question = f"{question}\n\n{more}" if question.strip() else more
    earlier = value.get("history") or []
    if not isinstance(earlier, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in earlier):
        raise ValueError(f"history: got {shorten(repr(earlier))}, expected a list of pairs")
    return _turns([text for pair in (*earlier, (question, value["output"])) for text in pair])


def _completion(value: dict) -> list[dict]:
    """Each side is a text or messages. Only the completion is learned."""
    texts, sides = _turns([value["prompt"], value["completion"]]), []
    for text in texts:
        sides.append(text["content"] if isinstance(text["content"], list) else [text])
    prompt, completion = sides
    return [entry | {WEIGHT: 0} if _is_reply(entry) else entry for entry in prompt] + completion


def _is_reply(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("role") == "assistant"


def _turns(texts: list) -> list[dict]:
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]


def is_learned(entry: dict) -> bool:
    """Return whether a message is to be learned. Raises ValueError for other values than 0, 1, false, true and null."""
    marks = [(key, entry[key]) for key in (WEIGHT, *TRAIN) if entry.get(key) is not None]
    for key, mark in marks:
        if isinstance(mark, str) or mark not in (0, 1):
            raise ValueError(f"{key}: got {shorten(repr(mark))}, expected 0 or 1")
    return all(mark == 1 for _, mark in marks)


def marks_of(entry: dict) -> dict:
    """The keys of a reply that say more about it than that it is learned."""
    weights = {key: entry[key] for key in (WEIGHT, *TRAIN) if entry.get(key) not in (None, 1)}
    return weights | {key: entry[key] for key in NOT_OBEYED if entry.get(key)}


def refuse_unknown_meaning(entry: dict, keys: Sequence[str] = NOT_OBEYED) -> None:
    """Raise ValueError if a message to learn from, or a conversation, has one of `keys`, which change its meaning."""
    for key in keys:
        if entry.get(key):
            raise ValueError(f"{key}: got {shorten(repr(entry[key]))}, which cannot be learned; remove the key")
