"""Limits of requests, read without a server."""

import json

import pytest
from generate_models import loaded_run, small_model

pytest.importorskip("uvicorn")

from nanogka.api import Model  # noqa: E402
from nanogka.common.cli import flags_of  # noqa: E402
from nanogka.common.errors import Errors  # noqa: E402
from nanogka.generate.settings import SamplingParams  # noqa: E402
from nanogka.serve.protocol import ApiError, Served, read_request  # noqa: E402
from nanogka.serve.settings import Limits, ServeSettings  # noqa: E402

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"model": "tiny", "prompt": "Hi"}


def served(**limits) -> Served:
    return Served("tiny", Model(loaded_run(small_model(), "chat")), Limits(**limits))


@pytest.mark.parametrize(
    "limit, given, chat, completion", [(0, {}, None, 16), (5, {}, 5, 5), (30, {}, 30, 16), (5, {"max_tokens": 3}, 3, 3)]
)
def test_a_limit_of_tokens_holds_for_a_request_that_names_none(limit, given, chat, completion):
    server = served(max_tokens=limit)
    assert read_request(CHAT | given, server, chat=True)[1].max_tokens == chat
    assert read_request(COMPLETION | given, server, chat=False)[1].max_tokens == completion


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"n": 3}, "n"),
        ({"prompt": ["a", "b", "c"], "n": 2}, "prompt"),  # six texts
        ({"prompt": ["a"] * 5}, "prompt"),
    ],
)
def test_more_than_a_limit_is_refused_by_name(changes, name):
    server = served(max_tokens=5, max_n=2, max_batch=4)
    with pytest.raises(ApiError) as error:
        read_request(COMPLETION | changes, server, chat=False)
    assert (error.value.status, error.value.param) == (400, name)
    assert read_request(COMPLETION | {"max_tokens": 5, "n": 2, "prompt": ["a", "b"]}, server, chat=False)[1].rows == 4


@pytest.mark.parametrize("chat", [True, False])
def test_more_tokens_than_the_limit_are_cut_to_it(chat):
    def most(value, limit=0):
        body = (CHAT if chat else COMPLETION) | {"max_tokens": value}
        return read_request(body, served(max_tokens=limit), chat)[1].max_tokens

    assert [most(value, 5) for value in (4, 6, 32_000, 2**53 - 1, -1)] == [4, 5, 5, 5, 5]
    assert [most(value) for value in (4, 10**30, -1, -2)] == [4, 32, 32, 32]  # the context


def test_a_random_seed_has_several_names():
    def seeds(value):
        return {read_request(CHAT | {"seed": value}, served(), True)[1].params.seed for _ in range(3)}

    assert [len(seeds(value)) for value in (None, -1, 2**32 - 1, 2**64 - 1, -1.0)] == [3] * 5
    assert [seeds(value) for value in (0, 7)] == [{0}, {7}]


SAID_OTHERWISE = (("top_k", "ge"), ("top_p", "gt"))  # -1 is off, and 0 is the likeliest token alone


def test_sampling_has_the_bounds_of_the_engine_and_the_names_of_other_servers():
    params = read_request(CHAT | {"repeat_penalty": 1.3, "n_predict": 3}, served(), True)[1].params
    assert params.repetition_penalty == 1.3
    for name, flag in flags_of(SamplingParams).items():
        if name != "seed":
            for bound, step in (("ge", -1), ("le", 1), ("gt", 0)):
                if (limit := flag.limits.get(bound)) is not None and (name, bound) not in SAID_OTHERWISE:
                    with pytest.raises(ApiError, match=f"^{name}: "):
                        read_request(CHAT | {name: limit + step}, served(), True)


def test_fields_of_other_servers_mean_the_same_or_are_refused_by_name():
    def read(**fields):
        request = read_request(CHAT | fields, served(), True)[1]
        return request.max_tokens, request.params.seed, list(request.stop_strings), request.params.top_k

    assert read(max_new_tokens=3, random_seed=5, stop_sequences=["a", None, ""]) == (3, 5, ["a"], 0)
    assert read(num_predict=4, seed=6, stop="b", top_p=0) == (4, 6, ["b"], 1)
    assert read(top_p=0.0, seed=6)[3] == 1
    harmless = {"do_sample": True, "penalty_alpha": 0, "tfs": 1.0, "options": {}, "system": None, "top_n_sigma": -1}
    assert read(seed=6, **harmless) == read(seed=6)
    for name, value in {"do_sample": False, "system": "Be brief", "options": {"seed": 1}, "guidance_scale": 2}.items():
        with pytest.raises(ApiError, match=f"^{name}: is not supported"):
            read(**{name: value})


@pytest.mark.parametrize("messages", ["Hi", {"role": "user", "content": "Hi"}, [], ["Hi"], {"prompt": "a"}])
def test_messages_that_are_none_are_refused_in_the_words_of_the_protocol(messages):
    with pytest.raises(ApiError, match="^messages: got .*, expected a list of objects with role and content$"):
        read_request(CHAT | {"messages": messages}, served(), True)


@pytest.mark.parametrize(
    "given, origins",
    [
        ("https://Example.org/", ["https://example.org"]),
        (
            "https://a.org:443, http://b.org:80,http://c.org:8080",
            ["https://a.org", "http://b.org", "http://c.org:8080"],
        ),
        ("*", ["*"]),
        ("null,chrome-extension://abc", ["null", "chrome-extension://abc"]),
        ("example.org", None),
        ("https://a.org/path", None),
    ],
)
def test_origins_are_as_browsers_send_them_and_others_are_refused(given, origins):
    settings, errors = ServeSettings(cors_origin=given), Errors()
    settings.check(errors)
    assert bool(errors.lines) == (origins is None)
    if origins is not None:
        assert settings.origins == origins


def test_64_stop_strings_are_accepted():
    stops = [str(number) for number in range(64)]
    assert list(read_request(CHAT | {"stop": stops}, served(), True)[1].stop_strings) == stops


def prompt(*messages: tuple[str, object]) -> str:
    """What the model reads of messages (role, content), with marks as special tokens have them."""
    body = CHAT | {"messages": [{"role": role, "content": content} for role, content in messages]}
    model = served()
    return model.engine.tokenizer.decode(read_request(body, model, True)[1].prompts[0])


@pytest.mark.parametrize(
    "messages, system",
    [
        ([("system", "A"), ("system", "B"), ("user", "Hi")], "A\n\nB"),
        ([("developer", "A"), ("system", "B"), ("user", "Hi")], "A\n\nB"),
        ([("user", "Hi"), ("system", "A")], "A"),
        ([("user", [{"type": "input_text", "text": "Hi"}]), ("system", "A")], "A"),
        ([("system", [{"type": "text", "text": "A"}]), ("user", "Hi"), ("developer", "B")], "A\n\nB"),
        ([("system", ""), ("user", "Hi")], None),
        ([("system", None), ("developer", " \n"), ("user", "Hi")], None),
        ([("system", []), ("user", "Hi")], None),
        ([("system", ""), ("user", "Hi"), ("system", "A")], "A"),
    ],
)
def test_system_messages_become_one_and_empty_ones_none(messages, system):
    expected = [("user", "Hi")] if system is None else [("system", system), ("user", "Hi")]
    assert prompt(*messages) == prompt(*expected)
    assert ("A" in prompt(*messages)) == (system is not None)


def test_the_user_around_a_system_message_speaks_once():
    talk = [("user", "a"), ("system", "S"), ("user", "b"), ("assistant", "c"), ("system", "T"), ("user", "d")]
    assert prompt(*talk) == prompt(("system", "S\n\nT"), ("user", "a\n\nb"), ("assistant", "c"), ("user", "d"))


def test_a_greeting_before_the_first_question_is_dropped():
    for system in ([], [("system", "S")]):
        assert prompt(*system, ("assistant", "Welcome!"), ("user", "Hi")) == prompt(*system, ("user", "Hi"))
    with pytest.raises(ApiError, match="messages: got an empty list"):
        prompt(("assistant", "Welcome!"))


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_a_part_that_is_no_text_is_refused_by_what_it_is(kind):
    for role in ("user", "system"):
        with pytest.raises(ApiError, match=f"got a part of type '{kind}', expected text: a model reads nothing else"):
            prompt((role, [{"type": kind, kind: {}}]), ("user", "Hi"))


def test_a_stream_is_ascii_so_that_no_client_ends_a_line_within_an_event():
    from nanogka.serve.app import _sse

    text = "a\u2028b\u2029c\u0085d 中文 é 😀 \ud800"
    assert _sse({"x": text}).isascii()
    assert _sse({"x": text}).count("\n") == 2
    assert json.loads(_sse({"x": text}).removeprefix("data: ")) == {"x": text}


def test_a_name_that_steers_the_terminal_is_refused():
    errors = Errors()
    ServeSettings(name="a\x1b[31m\n").check(errors)
    assert errors.lines == ["name: got 'a\\x1b[31m\\n', expected printable characters"]
