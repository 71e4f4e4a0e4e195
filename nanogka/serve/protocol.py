"""OpenAI's protocol: from JSON to a request for the engine. Every wrong field is reported at once."""

import secrets
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from nanogka.common.formatting import shorten
from nanogka.common.validate import MAX_INTEGER
from nanogka.data.conversation import TEXT, ChatFormat, Conversation
from nanogka.data.tool_calls import ARGUMENT, FUNCTION, TOOL
from nanogka.generate.continuous import Request
from nanogka.generate.engine import Engine
from nanogka.generate.prompt import prompt_of
from nanogka.generate.settings import SamplingParams
from nanogka.runs import LoadedRun
from nanogka.serve.settings import Limits

MAX_ERRORS = 20  # named in one answer
COMPLETION_TOKENS = 16  # of a completion whose request does not say how many: OpenAI's default

# Fields of OpenAI, vLLM and llama.cpp that would change the text and are not supported, with the value that changes
# nothing. Any other unknown field is ignored: clients send many that have no effect here.
UNSUPPORTED = {"logit_bias": {}, "best_of": 1, "echo": False, "suffix": "", "functions": []}
UNSUPPORTED |= {"modalities": ["text"], "response_format": {"type": "text"}, "grammar": "", "length_penalty": 1}
UNSUPPORTED |= {"min_tokens": 0, "ignore_eos": False, "stop_token_ids": [], "bad_words": [], "use_beam_search": False}
UNSUPPORTED |= {"add_generation_prompt": True, "continue_final_message": False}
UNSUPPORTED |= dict.fromkeys(("audio", "chat_template", "json_schema", "structured_outputs", "guided_json"))
UNSUPPORTED |= dict.fromkeys(("guided_regex", "guided_choice", "guided_grammar"))


class ApiError(Exception):
    """A request that cannot be met: the HTTP status and the parts of OpenAI's error object."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        # A field's name may hold half of a surrogate pair, which UTF-8 cannot.
        self.message, self.param = (text and text.encode(errors="replace").decode() for text in (message, param))
        self.status, self.code = status, code

    def to_json(self) -> dict:
        """The error object."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Served:
    """The model that is served, its name for clients, and the limits of requests."""

    name: str
    engine: Engine
    is_chat_model: bool
    limits: Limits
    created: int = 0
    run: LoadedRun | None = None  # for the attention page of a conversation

    @cached_property
    def most_bytes(self) -> int:
        """No text with more bytes of UTF-8 fits into the context, however it is tokenized."""
        return self.engine.context * int(self.engine.tokenizer.token_bytes().max())


def require_length(name: str, text: str | Conversation, served: Served) -> None:
    """Raise ValueError if a text cannot fit into the context. Tokenizing it to find out would take memory and time."""
    texts = [text] if isinstance(text, str) else [part.text for message in text.messages for part in message.parts]
    size = sum(len(one.encode(errors="replace")) for one in texts)
    if size > served.most_bytes:
        most = f"at most {served.most_bytes:,}: the context is {served.engine.context:,} tokens"
        raise ValueError(f"{name}: got {size:,} bytes of text, expected {most}")


def _newest_turns(conversation: Conversation, served: Served) -> Conversation:
    """Leave out the oldest turns of a conversation that cannot fit into the context, before it is tokenized."""
    turns, size = list(conversation.turns), 0
    newest = len(turns) - (2 if conversation.continues else 1)  # the turn that is answered
    for start in range(len(turns) - 1, -1, -1):
        size += sum(len(part.text.encode()) for part in turns[start].parts)
        if size > served.most_bytes and start < newest:
            turns = turns[start + 2 - start % 2 :]  # the user has the turns with even numbers, and must be the first
            break
    system = conversation.messages[: len(conversation.messages) - len(conversation.turns)]
    return Conversation((*system, *turns), conversation.continues)


def _conversation(messages: object) -> Conversation:
    """Read a conversation to reply to.

    OpenAI's `developer` is the system, and content may come in parts of type text. After a reply that was stopped or
    failed, clients send a reply without text or two messages of one side. The first is dropped, the second are joined.
    """
    if not (isinstance(messages, list) and all(isinstance(message, dict) for message in messages)):
        return Conversation.from_json(messages, complete=False)
    merged: list[dict] = []
    for message in messages:
        role, content = message.get("role"), _joined_parts(_content(message))
        role, calls = "system" if role == "developer" else role, message.get("tool_calls")
        before = merged[-1] if merged else {"role": None}
        empty = content is None or (isinstance(content, str) and not content.strip())
        if role == "assistant" and empty and not calls and before["role"] != TOOL:
            continue
        joins = role == before["role"] and role in ("user", "assistant") and not (calls or before["tool_calls"])
        if joins and isinstance(content, str) and isinstance(before["content"], str):
            before["content"] += f"\n\n{content}"
        else:
            merged.append({"role": role, "content": content, "tool_calls": calls})
    return Conversation.from_json(merged, complete=False)


def _content(message: dict) -> object:
    """Return the content of a message. A reply with tool calls comes back with its parts, or with them as the content.

    Some clients keep only the last piece of a stream's parts, and users edit texts: other parts than the content's are
    ignored.
    """
    parts, content = message.get("parts"), message.get("content")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return content
    complete = all(part.get("index", place) == place for place, part in enumerate(parts))
    text = "".join(str(part.get("text")) for part in parts if part.get("type") == TEXT)
    return parts if complete and text == (content or "") else content


def _joined_parts(content: object) -> object:
    """Join content in parts of type text; return any other content as it is."""
    parts = content if isinstance(content, list) else [None]
    if all(isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in parts):
        return "".join(part["text"] for part in parts)
    return content


def _tools(given: object, info: ValidationInfo) -> bool:
    """Return whether the client runs the calculator. With `tool_choice: "none"` any tools are accepted and not used."""
    if not isinstance(given, list):
        raise ValueError(f"got {shorten(repr(given))}, expected a list")
    if info.data.get("tool_choice") == "none":
        return False
    for tool in given:
        function = tool.get("function") if isinstance(tool, dict) else None
        parameters = function.get("parameters") if isinstance(function, dict) else None
        names = (parameters.get("properties") if isinstance(parameters, dict) else None) or {ARGUMENT: {}}
        if not isinstance(function, dict) or function.get("name") != FUNCTION or ARGUMENT not in names:
            expected = f"only the function {FUNCTION} with the parameter {ARGUMENT}"
            raise ValueError(f"got {shorten(repr(tool))}, expected {expected}")
    return bool(given)


def _served(info: ValidationInfo) -> Served:
    assert isinstance(info.context, Served)
    return info.context


def _prompts(given: object, info: ValidationInfo) -> list[list[int]]:
    """Return the ids of each prompt. A prompt is a text or a list of token ids; several come as a list."""
    served, prompts = _served(info), []
    several = given if isinstance(given, list) and given and type(given[0]) is not int else [given]
    if len(several) > served.limits.max_batch:
        raise ValueError(f"got {len(several)} prompts, expected at most {served.limits.max_batch} texts together")
    for prompt in several:
        if isinstance(prompt, str):
            require_length("prompt", prompt, served)
            prompt = served.engine.encode(prompt)
        elif not (isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt)):
            expected = "a text, a list of texts, a list of token ids, or a list of such lists"
            raise ValueError(f"got {shorten(repr(prompt))}, expected {expected}")
        prompts.append(prompt)
    return prompts


class ApiRequest(BaseModel):
    """Fields of both kinds of request. OpenAI lacks `top_k`, `min_p`, `repetition_penalty` and `truncation`."""

    model_config = ConfigDict(strict=True)
    chat: ClassVar[bool]

    model: str
    max_tokens: int | None = Field(None, ge=1, le=2**31)
    n: int = Field(1, ge=1)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]], BeforeValidator(lambda v: [v] if isinstance(v, str) else v)
    ] = Field([], max_length=4)
    stream: bool = False
    stream_options: dict | None = None
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=2**31)  # −1 as 0: vLLM's word for no limit
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    logprobs: Any = None  # of a chat: whether to report them; of a completion: how many
    truncation: Literal["auto", "disabled"] | None = None

    @field_validator("n", "max_tokens", "max_completion_tokens", check_fields=False)
    @classmethod
    def _within_limits(cls, value: int | None, info: ValidationInfo) -> int | None:
        limits = _served(info).limits
        most = limits.max_n if info.field_name == "n" else limits.max_tokens
        if value is not None and most and value > most:
            raise ValueError(f"got {value}, expected an integer from 1 to {most}")
        return value

    @field_validator("stream_options", "top_logprobs", check_fields=False)
    @classmethod
    def _needs(cls, value: object, info: ValidationInfo) -> object:
        needed = "stream" if info.field_name == "stream_options" else "logprobs"
        if not info.data.get(needed):
            raise ValueError(f"got {value}, expected {needed}: true with it")
        return value

    @property
    def echoes_logprobs(self) -> bool:
        """True if the client asks for the log-probabilities of its prompts."""
        return self.repeats_prompt and self.logprobs is not None

    @property
    def repeats_prompt(self) -> bool:
        """True if a reply begins with its prompt."""
        return False

    @property
    def include_usage(self) -> bool:
        """True if the client asks for token counts at the end of a stream."""
        return (self.stream_options or {}).get("include_usage") is True

    def _request(self, prompts: list[list[int]], served: Served, **options: Any) -> Request:
        given = {f.name: getattr(self, f.name) for f in fields(SamplingParams)}
        seed = secrets.randbits(32) if self.seed is None else self.seed % MAX_INTEGER
        given |= {"seed": seed, "top_k": max(0, self.top_k)}
        request = Request(prompts, SamplingParams(**given), n=self.n, stop_strings=self.stop, **options)
        if request.rows > served.limits.max_batch:
            got = f"{len(prompts)} prompts with n = {self.n}"
            raise ValueError(f"prompt: got {got}, expected at most {served.limits.max_batch} texts together")
        request.check(served.engine.context, served.engine.tokenizer.vocab_size)
        return request


class ChatRequest(ApiRequest):
    """The fields of /v1/chat/completions."""

    chat = True
    messages: Annotated[Any, BeforeValidator(_conversation)]
    max_completion_tokens: int | None = Field(None, ge=1, le=2**31)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    tool_choice: Literal["auto", "none"] = "auto"
    tools: Annotated[Any, BeforeValidator(_tools)] = False  # True: the client runs the calculator

    def request(self, served: Served) -> Request:
        """Return the replies to generate."""
        template = ChatFormat(served.engine.tokenizer)
        most = self.max_completion_tokens or self.max_tokens or served.limits.max_tokens or None
        if self.truncation == "auto" or (served.limits.truncate and self.truncation is None):
            conversation = _newest_turns(self.messages, served)
            require_length("messages", conversation, served)
            ids = prompt_of(served.engine, conversation, most)
        else:
            require_length("messages", self.messages, served)
            ids = template.render_prompt(self.messages)
        # The engine then stops at the end of a call, before it would calculate.
        stops = [*template.stop_ids, template.call_end_id] if self.tools else template.stop_ids
        options: dict[str, Any] = {"stop_tokens": stops, "top_logprobs": self.top_logprobs, "calculator": True}
        return self._request([ids], served, max_tokens=most, **options)


class CompletionRequest(ApiRequest):
    """The fields of /v1/completions."""

    chat = False
    prompt: Annotated[Any, BeforeValidator(_prompts)]
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    max_tokens: int | None = Field(None, ge=0, le=2**31)  # 0: only the prompt is returned, with `echo`

    @property
    def repeats_prompt(self) -> bool:
        """True if a reply begins with its prompt."""
        return self.echo

    @model_validator(mode="after")
    def _echo_alone(self) -> "CompletionRequest":
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: got 0, expected at least 1 without echo")
        if self.echo and self.stream:
            raise ValueError("echo: got true, expected false with stream")
        return self

    def request(self, served: Served) -> Request:
        """Return the continuations to generate. With `max_tokens: 0` nothing shall be generated from them."""
        most = min(served.limits.max_tokens or COMPLETION_TOKENS, COMPLETION_TOKENS)
        most = most if self.max_tokens is None else max(1, self.max_tokens)
        return self._request(self.prompt, served, max_tokens=most, top_logprobs=self.logprobs or 0)


def read_request(document: object, served: Served, chat: bool) -> tuple[ApiRequest, Request]:
    """Read parsed JSON. Raises ApiError: 404 for another model, 400 naming every wrong field."""
    if not isinstance(document, dict):
        raise ApiError(400, f"the body: got {shorten(repr(document))}, expected a JSON object", code="invalid_json")
    model, kind = document.get("model"), ChatRequest if chat else CompletionRequest
    if isinstance(model, str) and model != served.name:
        raise ApiError(404, f"model: got {shorten(repr(model))}, expected {served.name!r}", "model", "model_not_found")
    if chat and not served.is_chat_model:
        does = "is a base model: it continues text (/v1/completions) and cannot chat"
        raise ApiError(400, f"model: {served.name} {does}", "model")
    given = {name: value for name, value in document.items() if value is not None}
    known = {name: given.pop(name) for name in kind.model_fields if name in given}
    unsupported = [name for name, value in given.items() if name in UNSUPPORTED and UNSUPPORTED[name] != value]
    errors = [(name, f"{name}: is not supported here") for name in unsupported]
    api_request = None
    try:
        api_request = kind.model_validate(known, context=served)
    except ValidationError as error:
        errors += map(_describe, error.errors(include_url=False))
    if errors or api_request is None:
        text = "\n".join(line for _, line in errors[:MAX_ERRORS])
        raise ApiError(400, text, errors[0][0], _code(text))
    try:
        return api_request, api_request.request(served)
    except ValueError as error:
        raise ApiError(400, str(error), "messages" if chat else "prompt", _code(str(error))) from None


def _code(message: str) -> str:
    return "context_length_exceeded" if "the context is" in message else "invalid_value"


def _describe(fault: ErrorDetails) -> tuple[str, str]:
    """Return the field and a line for one of pydantic's errors."""
    if not fault["loc"]:  # of a rule for several fields, whose text begins with one of them
        text = str(fault["ctx"]["error"])
        return text.partition(":")[0], text
    name, where = str(fault["loc"][0]), ".".join(map(str, fault["loc"]))
    if fault["type"] == "missing":
        return name, f"{name}: is missing"
    if fault["type"] == "value_error":  # raised by one of the validators above
        text = str(fault["ctx"]["error"])
        return name, text if text.startswith(f"{name}:") else f"{name}: {text}"
    return name, f"{where}: got {shorten(repr(fault['input']))}: {fault['msg']}"
