"""A server that strangers fill with idle connections and costly requests: others are answered, and it ends in time."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sys
import time

import pytest
from attack_world import start

HEAD = "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
POLITE = ("127.0.0.2", 0) if sys.platform == "linux" else None  # another address than the strangers'
ANSWERED, ENDED = 20, 8  # seconds, on a machine that does other work too


def post(path: str, **document: object) -> bytes:
    body = json.dumps({"model": "mine-chat"} | document)
    return (HEAD.format(path, len(body)) + body).encode()


def said(text: str, **document: object) -> bytes:
    return post(CHAT, messages=[{"role": "user", "content": text}], **document)


MUCH = 2**19  # characters
SENT = {  # what a connection sends before it falls silent
    "nothing": b"",
    "half a header": b"GET /health HTTP/1.1\r\nHost: 127.",
    "half a body": HEAD.format(CHAT, 1000).encode() + b'{"messages": [',
    "endless headers": b"GET / HTTP/1.1\r\n" + b"X-Y: z\r\n" * 2**14,
    "a body too large": HEAD.format(CHAT, 2**40).encode() + b" " * 2**21,
    "deep JSON": HEAD.format(CHAT, MUCH).encode() + b"[" * MUCH,
    "one long word": said("x" * MUCH),
    "many special tokens": said("<|assistant_end|>" * (MUCH // 17)),
    "many messages": post(CHAT, messages=[{"role": "user", "content": "a"}] * 10_000),
    "many stops": said("the cat", stop=["e" * 1000] * 400),
    "many texts": said("the cat", n=8, logprobs=True, top_logprobs=20),
    "a long stream": said("the cat", stream=True, n=8, max_tokens=10**6),
    "many prompts": post(TEXT, prompt=["the cat"] * 10_000),
}


def problem(port: int) -> str:
    """What is wrong with how a polite client is served; empty if nothing."""
    try:
        for method, path, body in (("GET", "/health", None), ("POST", CHAT, said("the cat").partition(b"\r\n\r\n")[2])):
            connection = http.client.HTTPConnection("127.0.0.1", port, ANSWERED, POLITE)
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            status, text = answer.status, answer.read()[:300]
            connection.close()
            if status not in (200, 429):  # the queue is full for a moment, and says so
                return f"{path}: status {status} {text}"
    except OSError as error:
        return repr(error)
    return ""


@pytest.mark.parametrize("connections", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 8, 64, 300))])
def test_a_server_under_attack_answers_others_and_ends(world, tmp_path, connections):
    log, defects = tmp_path / "log", {}
    log.touch()
    flags = "--run mine-chat --port 0 --device cpu --header-seconds 5 --request-seconds 5 --stop-seconds 1"
    server = start(world.base, ("serve", *flags.split()), log)
    while not (found := re.search(r"at http://127.0.0.1:(\d+)", log.read_text())):
        assert server.is_alive(), log.read_text()
        time.sleep(0.1)
    with contextlib.ExitStack() as held:
        for name, content in SENT.items():
            for number in range(connections):
                client = held.enter_context(socket.socket())
                with contextlib.suppress(OSError):  # refused, or closed while it sends
                    client.settimeout(0.3)
                    client.connect(("127.0.0.1", int(found[1])))
                    client.sendall(content)
                if number % 2:
                    client.close()
            if wrong := problem(int(found[1])):
                defects[name] = wrong
        os.kill(server.pid, signal.SIGTERM)
        server.join(ENDED)
    code = server.exitcode
    server.kill()  # if it has not ended
    assert defects == {}
    assert (code, "Traceback" in log.read_text()) == (0, False), log.read_text()[-500:]
