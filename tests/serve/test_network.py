"""Connections beyond the limit of open files: they wait, the log stays short, and the server recovers."""

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from generate_models import save_run, talking_model

pytest.importorskip("uvicorn")
resource = pytest.importorskip("resource")

from serving import running  # noqa: E402

from nanogka.serve import app  # noqa: E402
from nanogka.serve.network import AcceptErrors, KnownHosts, raise_file_limit  # noqa: E402

ROOT = Path(__file__).parents[2]


def test_the_limit_of_files_is_raised_to_what_the_system_allows():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(limits[1], 65_536), limits[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_connections_that_cannot_be_accepted_are_reported_once_a_minute_and_other_errors_as_always(capsys):
    loop, handler = asyncio.new_event_loop(), AcceptErrors()
    reported = []
    loop.default_exception_handler = reported.append
    full = {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files"), "socket": None}
    for _ in range(1000):
        handler(loop, full)
    assert capsys.readouterr().err.count("\n") == 1
    others = [{"message": "m", "exception": ValueError()}, {"message": "m", "exception": full["exception"]}, {}]
    for other in others:
        handler(loop, other)
    assert reported == others
    loop.close()


def test_a_server_without_free_files_writes_a_line_and_recovers(base):
    save_run(base / "runs" / "tiny", talking_model([97]))
    lower = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); "
    command = [sys.executable, "-c", f"{lower}from scripts import serve; serve.main(['--port', '0'])"]
    log = base / "log"
    with log.open("w") as errors, subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process:  # fmt: skip
        address = process.stdout.readline().split()[-1]
        port = int(address.rsplit(":", 1)[1])
        idle = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(90)]
        time.sleep(3)  # three rounds of attempts to accept the rest
        for connection in idle:
            connection.close()
        assert urllib.request.urlopen(f"{address}/health", timeout=60).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert log.read_text().splitlines() == [
        "no more connections can be accepted (Too many open files); clients wait until others leave"
    ]


def test_requests_that_the_server_ends_at_its_shutdown_leave_no_traceback(monkeypatch, capsys):
    monkeypatch.setattr(app, "GRACE_SECONDS", 1)
    with running(talking_model([97], sequence_len=8192)) as server:
        body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert connection.recv(12) == b"HTTP/1.1 200"
    connection.close()
    log = capsys.readouterr().err
    assert "timeout graceful shutdown exceeded" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    "host, known",
    [
        ("[::1]:8000", True),
        ("[::1]", True),
        ("LOCALHOST:80", True),
        ("localhost.", True),
        ("a.example.org", True),
        ("example.org", False),
        ("a.example.org.evil", False),
        ("[::2]", False),
        ("::1", False),
        ("localhost:80@evil", False),
        ("[localhost]evil", False),
        (None, False),
    ],
)
def test_only_requests_for_known_hosts_pass(host, known):
    sent = []

    async def passed(scope, receive, send):
        sent.append("passed")

    async def send(message):
        sent.append(message.get("status") or message["body"].decode())

    hosts = KnownHosts(passed, ["::1", "localhost", "*.example.org"])
    headers = [] if host is None else [(b"host", host.encode())]
    asyncio.run(hosts({"type": "http", "headers": headers}, None, send))
    refused = f"Host: got {host or ''!r}, expected ::1, localhost, *.example.org; --allowed-hosts adds names"
    assert sent == (["passed"] if known else [400, refused])
