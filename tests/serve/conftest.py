"""Servers of models with random weights, one of each kind per file of tests, and a client."""

import pytest
from generate_models import small_model

# `serving` takes uvicorn and is imported late: files of tests that need neither run without.


@pytest.fixture(scope="module")
def chat_server():
    """A server of a chat model."""
    from serving import running

    with running(small_model("GD", sequence_len=256), max_batch=16, max_n=4) as server:
        yield server


@pytest.fixture(scope="module")
def base_server():
    """A server of a base model."""
    from serving import running

    with running(small_model("GD", sequence_len=256), chats=False, max_batch=16) as server:
        yield server


@pytest.fixture
def chat(chat_server):
    """Replies of the chat server to the official client: of `chat(messages, …)`."""
    from serving import USER, official

    with official(chat_server) as made:
        yield lambda messages=USER, **options: made.chat.completions.create(model="tiny", messages=messages, **options)
