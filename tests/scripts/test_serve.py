"""The server as a process: it says where it is, and SIGTERM lets replies finish."""

import http.client
import json
import os
import signal
import socket
import sys
import time
from types import SimpleNamespace

import pytest
from attack_world import start
from generate_models import save_run, small_model, talking_model

from scripts import serve


def test_what_keeps_it_from_starting_is_a_line(base, capsys, monkeypatch):
    pytest.importorskip("uvicorn")
    save_run(base / "runs" / "tiny", talking_model([97]))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert serve.main(["--port", str(taken.getsockname()[1])]) == 1
    assert "in use" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "nanogka.serve.app", None)
    assert serve.main([]) == 2
    assert "pip install -e '.[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "data, flags, shown",
    [("embedded", [], True), ("embedded,mine.jsonl:2", [], False), ("hub:a/b", [], False)]
    + [("mine.jsonl", ["--own-questions"], True)],
)
def test_questions_of_own_conversations_reach_clients_only_on_request(base, monkeypatch, capsys, data, flags, shown):
    app, seen = pytest.importorskip("nanogka.serve.app"), []
    folder = save_run(base / "runs" / "talk", small_model("S"), kind="chat", data=data)
    (folder / "examples.json").write_text('["What did Aunt May say?"]')
    monkeypatch.setattr(app, "make_app", lambda served, *_: seen.append(served.examples))
    monkeypatch.setattr(app, "make_server", lambda *_: SimpleNamespace(run=lambda sockets: None))
    assert serve.main(["--port", "0", *flags]) == 0
    assert [list(examples) for examples in seen] == [["What did Aunt May say?"] if shown else []]
    told = capsys.readouterr().out
    assert ("may be private" in told, "for all readers" in told) == (not shown, bool(flags))


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 129)])
def test_a_signal_that_comes_before_the_server_runs_stops_it(base, monkeypatch, number, code):
    app, stopped = pytest.importorskip("nanogka.serve.app"), []
    save_run(base / "runs" / "tiny", talking_model([97]))

    class Server:
        def __init__(self, *_):
            pass

        def handle_exit(self, received, frame):
            stopped.append(received)

        def run(self, sockets):
            os.kill(os.getpid(), number)  # uvicorn installs its own handlers only in here
            assert stopped == [number]

    monkeypatch.setattr(app, "make_server", Server)
    assert (serve.main(["--port", "0"]), stopped) == (code, [number])


def stream(port: int, max_tokens: int) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"model": "tiny", "prompt": "Hi", "stream": True, "max_tokens": max_tokens}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: {")
    return answer


def test_sigterm_lets_replies_finish(base):
    pytest.importorskip("uvicorn")
    save_run(base / "runs" / "tiny", talking_model(range(97, 123), sequence_len=4096))
    process = start(base, ("serve", "--port", 0, "--access-log"), base / "log")
    while "\n" not in (text := (base / "log").read_text() if (base / "log").exists() else ""):
        assert process.is_alive()
        time.sleep(0.05)
    line = text.splitlines()[0]
    assert line.startswith("serving tiny, step 7 (base, cpu), at http://127.0.0.1:")
    port = int(line.rsplit(":", 1)[1])
    reply = stream(port, 200)
    process.terminate()
    assert reply.read().endswith(b"data: [DONE]\n\n")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    process.join(30)
    assert process.exitcode == 0
    assert (base / "log").read_text().count('"POST /v1/completions HTTP/1.1" 200') == 1
