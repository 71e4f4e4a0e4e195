"""Servers of small models. Whoever uses them needs starlette and uvicorn."""

import pytest
from generate_models import small_model


@pytest.fixture(scope="module")
def chat_server():
    """A server of a chat model with random weights."""
    from serving import running

    with running(small_model("GD", sequence_len=256), max_batch=16, max_n=4) as server:
        yield server


@pytest.fixture(scope="module")
def base_server():
    """A server of a base model with random weights."""
    from serving import running

    with running(small_model("GD", sequence_len=256), chats=False, max_batch=16) as server:
        yield server
