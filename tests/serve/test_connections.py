"""Connections: those that idle cannot shut others out, and the server ends when it is told to."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from generate_models import talking_model

pytest.importorskip("uvicorn")

from serving import running  # noqa: E402

ROOT = Path(__file__).parents[2]


def connect(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def drip(connection: socket.socket) -> None:
    """Send bytes one by one for ten seconds."""
    for _ in range(100):
        connection.sendall(b"x")
        time.sleep(0.1)


def test_headers_that_do_not_come_are_not_waited_for():
    with running(talking_model([97]), header_seconds=0.5) as server, connect(server) as silent, connect(server) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")
        with pytest.raises(OSError):
            drip(slow)  # a second request
        assert silent.recv(1) == b""


@pytest.mark.parametrize("limits", [{"max_connections": 8}, {"max_per_address": 8}])
def test_idle_connections_make_room_the_oldest_first(limits):
    with running(talking_model(range(97, 123), sequence_len=4096), **limits) as server, connect(server) as busy:
        body = b'{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": true}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        busy.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        server.wait(running=1)
        idle = [connect(server) for _ in range(20)]
        assert server.ask("GET", "/health")[0] == 200
        server.wait(running=1)
        assert idle[0].recv(1) == b""
        idle[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):  # still open
            idle[-1].recv(1)
        for connection in idle:
            connection.close()


STUCK = """
import signal, socket, time
from anyio import to_thread
from nanogka.serve import connections
from nanogka.serve.settings import Limits

async def app(scope, receive, send):
    if scope["type"] == "http":
        await to_thread.run_sync(time.sleep, 600)

connections.LAST_SECONDS = 0.5
signal.signal(signal.SIGTERM, lambda *_: None)
with socket.create_server(("127.0.0.1", 0)) as listening:
    print(listening.getsockname()[1], flush=True)
    connections.Server(app, Limits(stop_seconds=1)).run(sockets=[listening])
"""


def test_a_thread_that_does_not_end_is_cut_off_after_the_grace_period():
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", STUCK], cwd=ROOT, **pipes) as process:
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline())), timeout=20) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(1)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        process.kill()
        assert process.wait() == 1
        assert "cut off" in process.stderr.read()
