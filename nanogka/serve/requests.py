"""Requests of OpenAI's protocol, read and checked: from JSON to a job for the engine.

    asked = read_request(document, served, limits, chat=True)
    asked.job, asked.stream, …

Every field that is wrong is reported at once. A field that would change the text, but that is not supported here, is
refused unless it has its neutral value; one that only describes the request is passed over.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from nanogka.data.conversation import ChatFormat, Conversation, ConversationError
from nanogka.generate import Engine, SamplingSettings
from nanogka.generate.continuous import Job
from nanogka.generate.session import Session
from nanogka.serve.errors import ApiError
from nanogka.serve.settings import Limits

MOST_ALTERNATIVES = 20  # OpenAI's own limits
MOST_STOP_STRINGS = 4
MOST_PROBLEMS = 20  # that one answer names
COMPLETION_TOKENS = 16  # of a completion whose request does not say how many

# Fields that say nothing about the text.
PASSED_OVER = {
    *("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"),
    *("prompt_cache_retention", "parallel_tool_calls", "tool_choice"),
}
# Fields that are not supported, with the values that ask for nothing.
NEUTRAL = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
}


@dataclass(frozen=True)
class Served:
    """The model that is served: its name, and whether it is a chat model."""

    name: str
    engine: Engine
    chats: bool
    created: int = 0


@dataclass(frozen=True)
class Request:
    """A request that can be met.

    Attributes:
        chat: whether it is one for a reply in a conversation, else for continuations.
        job: what to generate.
        stream, include_usage: whether to send the text as it comes, and its costs at the end of that.
        logprobs: whether to report log-probabilities.
    """

    chat: bool
    job: Job
    stream: bool
    include_usage: bool
    logprobs: bool


class _Fields:
    """The fields of a JSON object, each taken once; what is wrong with them is collected."""

    def __init__(self, document: dict) -> None:
        self.left = {name: value for name, value in document.items() if value is not None}
        self.problems: list[tuple[str, str]] = []

    def take(self, name: str, default: object, suits: Callable[[object], bool], takes: str) -> object:
        """The value of a field, or `default` where it is not given or does not suit."""
        value = self.left.pop(name, default)
        if value is default or suits(value):
            return value
        self.problems.append((name, f"{name}: got {_short(value)}, takes {takes}"))
        return default

    def integer(self, name: str, default: int | None, least: int, most: int) -> int | None:
        """A whole number from `least` to `most`."""
        return self.take(name, default, lambda v: _is(v, int) and least <= v <= most, f"an integer, {least} to {most}")

    def number(self, name: str, default: float) -> float:
        """A number."""
        return self.take(name, default, lambda v: _is(v, int, float), "a number")

    def boolean(self, name: str) -> bool:
        """True or false; false where it is not given."""
        return self.take(name, False, lambda v: isinstance(v, bool), "true or false")

    def finish(self) -> None:
        """Raise ApiError if anything was wrong, or is left that cannot be passed over."""
        for name, value in self.left.items():
            if name not in PASSED_OVER and not any(value == plain for plain in NEUTRAL.get(name, ())):
                self.problems.append((name, f"{_cut(name)}: is not supported here"))
        if self.problems:
            lines = [text for _, text in self.problems[:MOST_PROBLEMS]]
            raise ApiError(400, "\n".join(lines), self.problems[0][0], "invalid_value")


def read_request(document: object, served: Served, limits: Limits, chat: bool) -> Request:
    """Check a request.

    Args:
        document: its parsed JSON.
        served, limits: what there is, and how much of it.
        chat: whether it is one for a reply in a conversation, else for continuations.

    Raises:
        ApiError: if it cannot be met: 404 for another model, 400 for anything else, naming every field to blame.
    """
    if not isinstance(document, dict):
        raise ApiError(400, f"the body: got {_short(document)}, takes a JSON object", code="invalid_json")
    fields = _Fields(document)
    model = fields.take("model", "", lambda v: isinstance(v, str), "the name of a model")
    if not model and not fields.problems:
        fields.problems.append(("model", f"model: is missing, takes {served.name!r}"))
    elif model and model != served.name:
        raise ApiError(404, f"model: got {_short(model)}, takes {served.name!r}", "model", "model_not_found")
    if chat and not served.chats:
        does = "is a base model: it continues text (/v1/completions) and cannot chat"
        raise ApiError(400, f"model: {served.name} {does}", "model")

    engine = served.engine
    most = limits.max_tokens or 2**31  # without a limit of its own, the context ends a text
    asked = fields.integer("max_tokens", None, 1, most)
    asked = fields.integer("max_completion_tokens", asked, 1, most) if chat else asked
    max_tokens = asked or (min(most, COMPLETION_TOKENS) if not chat else limits.max_tokens or None)
    samples = fields.integer("n", 1, 1, limits.max_n)
    alternatives, logprobs = _log_probabilities(fields, chat)
    stop = fields.take("stop", [], _is_stop, f"a text, or a list of at most {MOST_STOP_STRINGS}, none of them empty")
    stream = fields.boolean("stream")
    options = fields.take("stream_options", {}, lambda v: stream and isinstance(v, dict), "an object, with a stream")
    settings = _settings(fields)
    truncation = fields.take("truncation", "disabled", lambda v: v in ("auto", "disabled"), "auto or disabled")
    given = fields.left.pop("messages" if chat else "prompt", None)
    if chat:
        prompts = _reply_to(given, engine, fields, max_tokens, truncation == "auto")
        stops = list(engine.tokenizer.special_tokens.values())
    else:
        prompts, stops = _prompts(given, engine, fields), None
    fields.finish()
    job = Job(prompts, settings, max_tokens, samples, stops, [stop] if isinstance(stop, str) else stop, alternatives)
    if job.rows > limits.max_batch:
        got = f"{len(prompts)} prompts with n = {samples}"
        raise ApiError(400, f"prompt: got {got}, takes at most {limits.max_batch} texts together", "prompt")
    try:
        job.check(engine)
    except ValueError as error:
        code = "context_length_exceeded" if "the context is" in str(error) else "invalid_value"
        raise ApiError(400, str(error), "messages" if chat else "prompt", code) from None
    return Request(chat, job, stream, options.get("include_usage") is True, logprobs)


def _settings(fields: _Fields) -> SamplingSettings | None:
    """Sampling settings; without a seed a new one each time. `top_k`, `min_p`, `repetition_penalty` are our own."""
    values = {name: fields.number(name, 1.0) for name in ("temperature", "top_p", "repetition_penalty")}
    values["min_p"] = fields.number("min_p", 0.0)
    values["top_k"] = fields.integer("top_k", 0, 0, 2**31) or None
    seed = fields.integer("seed", None, -(2**63), 2**63 - 1)
    values["seed"] = secrets.randbits(32) if seed is None else seed % 2**63
    try:
        return SamplingSettings(**values)
    except ValueError as error:
        for line in str(error).splitlines():
            name, _, rest = line.partition(":")
            name = name.replace("-", "_")
            fields.problems.append((name, f"{name}:{rest}"))
    return None


def _log_probabilities(fields: _Fields, chat: bool) -> tuple[int, bool]:
    """The number of alternatives to report, and True if log-probabilities are asked for at all."""
    if not chat:
        count = fields.integer("logprobs", None, 0, MOST_ALTERNATIVES)
        return count or 0, count is not None
    logprobs = fields.boolean("logprobs")
    count = fields.integer("top_logprobs", None, 0, MOST_ALTERNATIVES)
    if count is not None and not logprobs:
        fields.problems.append(("top_logprobs", f"top_logprobs: got {count}, takes logprobs: true beside it"))
    return count or 0, logprobs


def _reply_to(
    given: object, engine: Engine, fields: _Fields, max_tokens: int | None, truncate: bool
) -> list[list[int]]:
    """The ids of a conversation up to where the reply begins; with `truncate`, of the newest part that fits."""
    try:
        conversation = Conversation.from_json(_messages(given), complete=False)
        if not truncate:
            return [ChatFormat(engine.tokenizer).render_prompt(conversation)]
        session = Session(engine, SamplingSettings(), max_tokens, chat=True)
        prompt = session.resume(conversation)
        if prompt is None:
            raise ValueError("messages: the last is the assistant's, takes the user's to reply to")
        return [session.prompt_ids(prompt, session.exchanges)[0]]
    except ConversationError as error:
        fields.problems.append(("messages", str(error)))
    except ValueError as error:
        fields.problems.append(("messages", f"messages: {error}"))
    return []


def _messages(given: object) -> object:
    """`messages` in our own form: OpenAI's `developer` is the system, and content may come in parts of type text."""
    if not isinstance(given, list) or not all(isinstance(message, dict) for message in given):
        return given
    made = []
    for message in given:
        role, content = message.get("role"), message.get("content")
        if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            content = "".join(str(part.get("text", "")) for part in content)
        made.append({"role": "system" if role == "developer" else role, "content": content})
    return made


def _prompts(given: object, engine: Engine, fields: _Fields) -> list[list[int]]:
    """The ids of each prompt: a text, a list of token ids, or a list of either."""
    takes = "a text, a list of texts, a list of token ids, or a list of such lists"
    several = isinstance(given, list) and bool(given) and not _is(given[0], int)
    prompts = []
    for prompt in given if several else [given]:
        if isinstance(prompt, str):
            try:
                prompts.append(engine.encode(prompt))
            except ValueError as error:
                fields.problems.append(("prompt", f"prompt: {error}"))
        elif isinstance(prompt, list) and prompt and all(_is(token, int) for token in prompt):
            prompts.append(prompt)
        else:
            fields.problems.append(("prompt", f"prompt: got {_short(prompt)}, takes {takes}"))
    return prompts


def _is(value: object, *kinds: type) -> bool:
    """True if a value is a number of these types; True and False are none."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_stop(value: object) -> bool:
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, list) and len(texts) <= MOST_STOP_STRINGS and all(isinstance(t, str) and t for t in texts)


def _short(value: object) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"
