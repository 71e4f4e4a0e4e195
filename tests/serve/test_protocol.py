"""Limits of requests, read without a server."""

import pytest
from generate_models import byte_tokenizer, small_model

pytest.importorskip("pydantic")

from nanogka.generate.engine import Engine  # noqa: E402
from nanogka.serve.protocol import ApiError, Served, read_request  # noqa: E402
from nanogka.serve.settings import Limits  # noqa: E402

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"model": "tiny", "prompt": "Hi"}


def served(**limits) -> Served:
    return Served("tiny", Engine(small_model(), byte_tokenizer()), True, Limits(**limits))


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
        ({"max_tokens": 6}, "max_tokens"),
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
