"""OpenAI's protocol: from JSON to a request for the engine. Every wrong field is reported at once."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
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

from nanogka.api import Model
from nanogka.common.cli import flags_of
from nanogka.common.formatting import shorten
from nanogka.common.validate import MAX_INTEGER
from nanogka.data.conversation import TEXT, ChatFormat, Conversation
from nanogka.data.tool_calls import ARGUMENT, FUNCTION, TOOL
from nanogka.generate.continuous import MAX_CONTEXT, Request
from nanogka.generate.engine import Engine
from nanogka.generate.prompt import Prompt, prompt_of, request_of
from nanogka.generate.settings import SamplingParams
from nanogka.serve.settings import Limits

MAX_ERRORS = 20  # named in one answer
COMPLETION_TOKENS = 16  # of a completion whose request does not say how many: OpenAI's default

# Fields of OpenAI, vLLM, llama.cpp, text-generation-webui and others that would change the text and are not supported,
# with the value that changes nothing; nor does null or anything empty. Any other unknown field is ignored: many have no
# effect here.
UNSUPPORTED: dict[str, Any] = {"logit_bias": {}, "best_of": 1, "echo": False, "suffix": "", "functions": []}
UNSUPPORTED |= {"modalities": ["text"], "response_format": {"type": "text"}, "grammar": "", "length_penalty": 1}
UNSUPPORTED |= {"min_tokens": 0, "ignore_eos": False, "stop_token_ids": [], "bad_words": [], "use_beam_search": False}
UNSUPPORTED |= {"add_generation_prompt": True, "continue_final_message": False, "include_stop_str_in_output": False}
UNSUPPORTED |= {"mirostat": 0, "typical_p": 1, "tfs_z": 1, "top_a": 0, "dynatemp_range": 0, "dry_multiplier": 0}
UNSUPPORTED |= {"xtc_probability": 0, "no_repeat_ngram_size": 0, "skip_special_tokens": True, "mirostat_mode": 0}
UNSUPPORTED |= {"do_sample": True, "penalty_alpha": 0, "guidance_scale": 1, "smoothing_factor": 0, "tfs": 1}
UNSUPPORTED |= {"epsilon_cutoff": 0, "eta_cutoff": 0, "encoder_repetition_penalty": 1, "ban_eos_token": False}
UNSUPPORTED |= {"top_n_sigma": -1, "min_length": 0, "truncate_prompt_tokens": -1, "safe_prompt": False}
UNSUPPORTED |= dict.fromkeys(("audio", "chat_template", "json_schema", "structured_outputs", "guided_json"))
UNSUPPORTED |= dict.fromkeys(("guided_regex", "guided_choice", "guided_grammar", "allowed_token_ids"))
UNSUPPORTED |= dict.fromkeys(("system", "instructions", "documents", "options", "format", "negative_prompt"))

OTHER_NAMES = {"repeat_penalty": "repetition_penalty", "n_predict": "max_tokens"}  # llama.cpp's
OTHER_NAMES |= {"max_new_tokens": "max_tokens", "num_predict": "max_tokens"}  # Hugging Face's and Ollama's
OTHER_NAMES |= {"max_output_tokens": "max_tokens"}  # OpenAI's in its newer API
OTHER_NAMES |= {"random_seed": "seed", "stop_sequences": "stop"}  # Mistral's and Cohere's
RANDOM_SEEDS = (-1, 2**32 - 1, 2**64 - 1)  # what clients of llama.cpp send for "random"; the others are the first
NO_LIMIT = (-1, -2)  # of tokens: llama.cpp's and Ollama's words for "until the context is full"
TEXT_PARTS = ("text", "input_text", "output_text")
MAX_STOPS = 64  # each costs one search per token


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
    model: Model
    limits: Limits
    created: int = 0  # seconds since 1970
    examples: Sequence[str] = ()  # questions that the chat page offers to every client

    @property
    def engine(self) -> Engine:
        """The engine of the model."""
        return self.model.engine


def read_conversation(messages: object) -> Conversation:
    """Read a conversation to reply to.

    OpenAI's `developer` is the system, and content may come in parts of type text. Several system messages, wherever
    they are, become one at the start. After a reply that was stopped or failed, clients send a reply without text,
    which is dropped, or two messages of one side, which are joined. A reply before the first question, such as the
    greeting of a client, is dropped: no model was trained on one.
    """
    if not (isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages)):
        raise ValueError(f"got {shorten(repr(messages))}, expected a list of objects with role and content")
    systems: list[object] = []
    merged: list[dict] = []  # their contents are lists, of texts that are joined at the end
    for message in messages:
        role, content, calls = message.get("role"), _joined_parts(_content(message)), message.get("tool_calls")
        empty = content is None or (isinstance(content, str) and not content.strip())
        if role in ("system", "developer"):
            systems += [] if empty else [content]
            continue
        before = merged[-1] if merged else {"role": None}
        if role == "assistant" and not calls and (empty or not merged) and before["role"] != TOOL:
            continue
        joins = role == before["role"] and role in ("user", "assistant") and not (calls or before["tool_calls"])
        if joins and isinstance(content, str) and isinstance(before["content"][0], str):
            before["content"].append(content)
        else:
            merged.append({"role": role, "content": [content], "tool_calls": calls})
    if systems:
        merged.insert(0, {"role": "system", "content": systems, "tool_calls": None})
    for message in merged:
        contents = message["content"]
        other = [content for content in contents if not isinstance(content, str)]  # has tool calls, or is an error
        message["content"] = other[0] if other else "\n\n".join(contents)
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
    """Join content in parts of text, by either of OpenAI's names; return any other content as it is."""
    parts = content if isinstance(content, list) else [None]
    if all(isinstance(p, dict) and p.get("type") in TEXT_PARTS and isinstance(p.get("text"), str) for p in parts):
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


def _prompts(given: object, info: ValidationInfo) -> list[Prompt]:
    """Return the prompts. One is a text or a list of token ids; several come as a list."""
    served, prompts = _served(info), []
    several = given if isinstance(given, list) and given and type(given[0]) is not int else [given]
    if len(several) > served.limits.max_batch:
        raise ValueError(f"got {len(several)} prompts, expected at most {served.limits.max_batch} texts together")
    for prompt in several:
        is_ids = isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt)
        if not (isinstance(prompt, str) or is_ids):
            expected = "a text, a list of texts, a list of token ids, or a list of such lists"
            raise ValueError(f"got {shorten(repr(prompt))}, expected {expected}")
        prompts.append(prompt_of(served.engine.tokenizer, prompt, served.engine.context))
    return prompts


def _sampling(name: str, default: Any) -> Any:
    """Return a field with the bounds of `SamplingParams` and OpenAI's default."""
    bounds = flags_of(SamplingParams)[name].limits
    return Field(default, **{bound: value for bound, value in bounds.items() if value is not None})


class ApiRequest(BaseModel):
    """Fields of both kinds of request. OpenAI lacks `top_k`, `min_p`, `repetition_penalty` and `truncation`."""

    model_config = ConfigDict(strict=True)
    chat: ClassVar[bool]

    model: str
    max_tokens: int | None = Field(None, ge=1)
    n: int = Field(1, ge=1)
    stop: Annotated[list[str], BeforeValidator(lambda v: [v] if isinstance(v, str) else v)] = Field(
        [], max_length=MAX_STOPS
    )
    stream: bool = False
    stream_options: dict | None = None
    temperature: float = _sampling("temperature", 1.0)
    top_p: float = _sampling("top_p", 1.0)
    top_k: int = _sampling("top_k", 0)
    min_p: float = _sampling("min_p", 0.0)
    repetition_penalty: float = _sampling("repetition_penalty", 1.0)
    presence_penalty: float = _sampling("presence_penalty", 0.0)
    frequency_penalty: float = _sampling("frequency_penalty", 0.0)
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    logprobs: Any = None  # of a chat: whether to report them; of a completion: how many
    truncation: Literal["auto", "disabled"] | None = None

    @field_validator("n")
    @classmethod
    def _few(cls, value: int, info: ValidationInfo) -> int:
        if value > (most := _served(info).limits.max_n):
            raise ValueError(f"got {value}, expected an integer from 1 to {most}")
        return value

    @field_validator("max_tokens", "max_completion_tokens", check_fields=False)
    @classmethod
    def _cut(cls, value: int | None, info: ValidationInfo) -> int | None:
        """Cut to the server's limit. Many clients ask for more than they need, and their users cannot change it."""
        served = _served(info)
        return None if value is None else min(value, served.limits.max_tokens or served.engine.context)

    @field_validator("top_logprobs", check_fields=False)
    @classmethod
    def _needs_logprobs(cls, value: int, info: ValidationInfo) -> int:
        if value and not info.data.get("logprobs"):
            raise ValueError(f"got {value}, expected logprobs: true with it")
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

    def _request(self, prompts: list[Prompt], served: Served, **options: Any) -> Request:
        given = {f.name: getattr(self, f.name) for f in fields(SamplingParams)}
        given["seed"] = secrets.randbits(32) if self.seed is None else self.seed % MAX_INTEGER
        request = request_of(prompts, SamplingParams(**given), n=self.n, stop_strings=self.stop, **options)
        if request.rows > served.limits.max_batch:
            got = f"{len(prompts)} prompts with n = {self.n}"
            raise ValueError(f"prompt: got {got}, expected at most {served.limits.max_batch} texts together")
        request.check(served.engine.context, served.engine.tokenizer.vocab_size)
        return request


class ChatRequest(ApiRequest):
    """The fields of /v1/chat/completions."""

    chat = True
    messages: Annotated[Any, BeforeValidator(read_conversation)]
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    tool_choice: Literal["auto", "none"] = "auto"
    tools: Annotated[Any, BeforeValidator(_tools)] = False  # True: the client runs the calculator

    def request(self, served: Served) -> Request:
        """Return the replies to generate."""
        engine = served.engine
        most = self.max_completion_tokens or self.max_tokens or served.limits.max_tokens or None
        truncate = self.truncation == "auto" or (served.limits.truncate and self.truncation is None)
        prompt = prompt_of(engine.tokenizer, self.messages, engine.context, truncate=truncate, max_tokens=most)
        if self.tools:  # the engine stops at the end of a call, before it would calculate
            prompt = replace(prompt, stop_ids=[*prompt.stop_ids, ChatFormat(engine.tokenizer).call_end_id])
        return self._request([prompt], served, max_tokens=most, top_logprobs=self.top_logprobs)


class CompletionRequest(ApiRequest):
    """The fields of /v1/completions."""

    chat = False
    prompt: Annotated[Any, BeforeValidator(_prompts)]
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    max_tokens: int | None = Field(None, ge=0)  # 0: only the prompt is returned, with `echo`

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
    if chat and not served.model.is_chat_model:
        does = "is a base model: it continues text (/v1/completions) and cannot chat"
        raise ApiError(400, f"model: {served.name} {does}", "model")
    given = _without_defaults(document, served, chat)
    known = {name: given.pop(name) for name in kind.model_fields if name in given}
    errors = [(name, f"{name}: is not supported here") for name in given if name in UNSUPPORTED]
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


def _without_defaults(document: dict, served: Served, chat: bool) -> dict:
    """Return the fields that ask for something: not those whose value changes nothing, or means a default or a limit.

    Many clients send all their fields, and their users cannot change that.
    """
    names = OTHER_NAMES if chat else OTHER_NAMES | {"max_completion_tokens": "max_tokens"}
    asked = {name: value for name, value in document.items() if value is not None}
    given = {ours: asked[name] for name, ours in names.items() if name in asked}
    given |= {name: value for name, value in asked.items() if name not in names}
    # JSON has one kind of number: clients in some languages write 100 as 100.0.
    given |= {name: int(v) for name, v in given.items() if isinstance(v, float) and v.is_integer()}
    for name, value in list(given.items()):
        empty = value in ("", [], {}) or (isinstance(value, dict) and not any(value.values()))
        if name in UNSUPPORTED and (empty or value == UNSUPPORTED[name]) and not (name == "echo" and not chat):
            del given[name]
    if given.get("best_of") == given.get("n", 1):  # all of them are returned
        given.pop("best_of", None)
    for name in ("max_tokens", "max_completion_tokens"):
        if given.get(name) in NO_LIMIT:
            given[name] = served.engine.context
    if given.get("seed") in RANDOM_SEEDS:
        del given["seed"]
    if given.get("top_k") == -1:
        del given["top_k"]
    if type(given.get("top_p")) is int and given["top_p"] == 0:  # the likeliest token alone
        given |= {"top_p": 1, "top_k": 1}
    if given.get("logprobs") is False or (chat and given.get("logprobs") == 0):
        del given["logprobs"]
    if isinstance(stop := given.get("stop"), list | str):
        given["stop"] = [one for one in ([stop] if isinstance(stop, str) else stop) if one not in ("", None)]
    return given


def _code(message: str) -> str:
    return "context_length_exceeded" if MAX_CONTEXT in message else "invalid_value"


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
