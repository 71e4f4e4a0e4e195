"""A server in this process on a free port; clients speak to it over loopback. Takes uvicorn."""

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from generate_models import loaded_run

from nanogka.api import Model
from nanogka.serve.app import make_app, make_server
from nanogka.serve.protocol import Served
from nanogka.serve.settings import Limits

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "Hi"}]
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
HEAD += b"Content-Length: %d\r\n\r\n"


class Running:
    """A server that runs: its `port`, and what is `served`."""

    def __init__(self, served: Served, api_key: str, origins: list[str]) -> None:
        self.served, self.socket = served, socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        app = make_app(served, api_key, ["127.0.0.1"], origins)
        self.server = make_server(app)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, object]:
        """Status and parsed body of a request; a `body` that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, json.loads(text) if text.startswith(("{", "[")) else text

    def wait(self, **wanted: int) -> None:
        """Return when it is as busy as this: `running=0`."""
        until = time.monotonic() + 30
        while not wanted.items() <= (load := self.ask("GET", "/health")[1]).items():
            assert time.monotonic() < until, (wanted, load)
            time.sleep(0.02)


@contextmanager
def running(model, tokenizer=None, chats: bool = True, api_key: str = "", origins=(), examples=(), **limits):
    """A `Running` server of a model."""
    run = loaded_run(model, "chat" if chats else "base", tokenizer)
    server = Running(Served("tiny", Model(run), Limits(**limits), 5, examples), api_key, origins)
    try:
        yield server
    finally:
        server.server.should_exit = True
        server.thread.join(30)
        assert not server.thread.is_alive()


def official(server):
    """OpenAI's own client of a server. Without the package the test is skipped."""
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{server.address}v1", api_key="none", max_retries=0, timeout=60)


def said(*texts: str) -> list[dict]:
    """Messages of user and assistant in turn."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
