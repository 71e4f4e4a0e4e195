"""Bad requests get their reason in OpenAI's form, and nothing of a refused request is read."""

import gzip
import http.client
import json
import socket

import pytest
from generate_models import talking_model

pytest.importorskip("uvicorn")

from serving import CHAT, TEXT, USER, running  # noqa: E402

WRONG = [  # a field of a chat and a value that is refused; None: the request lacks the field
    ("model", None),
    ("messages", [3]),
    ("messages", [*USER, {"role": "assistant", "content": "x"}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
    ("messages", [{"role": "system", "content": "alone"}]),
    ("messages", [{"role": "user", "content": "\ud800"}]),
    ("max_tokens", 0),
    ("max_tokens", -3),
    ("n", 5),
    ("temperature", "hot"),
    ("stop", [str(i) for i in range(65)]),
    ("top_k", -2),
    ("top_logprobs", 2),
    ("mirostat", 2),
    ("logit_bias", {"5": -100}),
    ("response_format", {"type": "json_object"}),
]
BAD = [
    *((CHAT, {"model": "tiny", "messages": USER, key: value}, 400, key) for key, value in WRONG),
    *((TEXT, {"model": "tiny", "prompt": bad}, 400, "prompt") for bad in (None, [], [[]], [10**9])),
    (TEXT, {"model": "tiny", "prompt": ["x"] * 5, "n": 4}, 400, "prompt"),
    (CHAT, {"model": "gpt-\ud800", "messages": USER}, 404, "model"),
    *((CHAT, bad, 400, None) for bad in (b"[]", b'{"model": ', b"\xff\xfe", b'{"model": NaN}', b"[" * 100_000)),
    (CHAT, b'{"seed": ' + b"9" * 5000 + b"}", 400, None),
    ("/v1/nothing", {}, 404, None),
    ("/v1/models", {}, 405, None),
]


@pytest.mark.parametrize("path, body, status, param", BAD)
def test_a_bad_request_is_refused_in_openais_form(chat_server, path, body, status, param):
    got, answer = chat_server.ask("POST", path, body)
    assert (got, answer["error"]["param"]) == (status, param)
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


def test_a_refused_method_comes_with_the_right_ones(chat_server):
    connection = http.client.HTTPConnection("127.0.0.1", chat_server.port, timeout=60)
    connection.request("GET", CHAT)
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Allow")) == (405, "POST")
    connection.close()


def test_everything_wrong_is_named_at_once_and_shortly(chat_server, base_server):
    body = {"model": "tiny", "messages": [], "n": 0, "temperature": 101, "tools": [{}]}
    _, answer = chat_server.ask("POST", CHAT, body)
    lines = answer["error"]["message"].splitlines()
    assert sorted(line.split(":")[0] for line in lines) == ["messages", "n", "temperature", "tools"]
    _, answer = base_server.ask("POST", TEXT, {"model": "tiny", "prompt": [None] * 10_000})
    assert len(answer["error"]["message"]) < 5000
    for path, long in ((f"/v1/models/{'x' * 50_000}", None), (CHAT, [{"role": "x" * 50_000, "content": "a"}])):
        body = long and {"model": "tiny", "messages": long}
        _, answer = chat_server.ask("POST" if body else "GET", path, body)
        assert len(answer["error"]["message"]) < 500
    _, answer = base_server.ask("POST", CHAT, {"model": "tiny", "messages": USER})
    assert "tiny is a base model" in answer["error"]["message"]


def test_addresses_joined_in_other_ways_reach_the_same_route_and_others_are_named(chat_server):
    body = {"model": "tiny", "messages": USER, "max_tokens": 1}
    for path in (f"{CHAT}/", f"/{CHAT}", "//v1/chat//completions?api-version=1"):
        assert chat_server.ask("POST", path, body)[0] == 200
    assert chat_server.ask("GET", "/v1/models/")[1]["object"] == "list"
    status, answer = chat_server.ask("POST", "/chat/completions", body)
    expected = "POST: got '/chat/completions', which does not exist; the API is at /v1"
    assert (status, answer["error"]["message"]) == (404, expected)


def test_a_compressed_body_is_named_and_a_limit_by_another_name_holds(chat_server, base_server):
    body = {"model": "tiny", "messages": USER, "max_tokens": 1}
    status, answer = chat_server.ask("POST", CHAT, gzip.compress(json.dumps(body).encode()), Content_Encoding="gzip")
    assert (status, answer["error"]["message"]) == (415, "Content-Encoding: got 'gzip', expected none")
    for name in ("max_completion_tokens", "max_output_tokens", "max_new_tokens"):
        # Greedily, so that no random end comes first.
        asked = {"model": "tiny", "prompt": "a", "temperature": 0, "max_tokens": None, name: 3}
        assert base_server.ask("POST", TEXT, asked)[1]["usage"]["completion_tokens"] == 3


def test_a_body_that_is_too_large_is_refused(chat_server, chat):
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.APIStatusError, match="at most 1,048,576 bytes") as error:
        chat([{"role": "user", "content": "x" * 10**7}])
    assert error.value.status_code == 413
    assert chat_server.ask("POST", CHAT, b" " * 2**20)[0] == 400  # as much as is allowed, and no JSON


def test_another_sites_page_cannot_use_it(chat_server):
    body = {"model": "tiny", "messages": USER, "max_tokens": 1}
    assert chat_server.ask("POST", CHAT, body, Content_Type="text/plain")[0] == 415
    assert chat_server.ask("POST", CHAT, body, Host="evil.example:80")[0] == 400
    page, wanted = "http://page.example", "Access-Control-Allow-Origin"
    for origins, allowed in ((), None), ([page], page):
        with running(chat_server.served.engine.model, origins=origins) as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
            connection.request("OPTIONS", CHAT, headers={"Origin": page, "Access-Control-Request-Method": "POST"})
            assert connection.getresponse().headers[wanted] == allowed
            connection.close()
            assert server.ask("POST", CHAT, body, Origin=page)[0] == 200


def preflight(server, origin: str, **headers: str):
    """The status, and the headers, of Chrome's question before a request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST", **headers}
    connection.request("OPTIONS", CHAT, headers=headers)
    answer = connection.getresponse()
    connection.close()
    return answer.status, answer.headers


def test_a_page_at_a_public_address_may_use_a_local_server_if_its_origin_is_named(chat_server):
    page, local = "http://page.example", {"Access-Control-Request-Private-Network": "true"}
    with running(chat_server.served.engine.model, origins=[page]) as server:
        status, headers = preflight(server, page, **local)
        assert (status, headers["Access-Control-Allow-Private-Network"]) == (200, "true")
        assert preflight(server, "http://other.example", **local)[0] == 400
    with running(chat_server.served.engine.model, origins=["*"]) as server:
        assert preflight(server, page)[0] == 200
        assert preflight(server, page, **local)[0] == 400


@pytest.mark.parametrize(
    "framing", ["Transfer-Encoding: chunked", "Transfer-Encoding:\tchunked", "transfer-encoding:\r\n CHUNKED"]
)
@pytest.mark.parametrize("target", [TEXT, f"http://127.0.0.1{TEXT}", f"http://evil.example{TEXT}"])
def test_what_is_behind_a_refused_request_is_not_read(chat_server, target, framing):
    hidden = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    head = f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {5 + len(hidden)}\r\n" + (f"{framing}\r\n" if target == TEXT else "")
    with socket.create_connection(("127.0.0.1", chat_server.port), timeout=20) as connection:
        connection.sendall(head.encode() + b"\r\n0\r\n\r\n" + hidden)
        got = b""
        while part := connection.recv(65536):  # until the server closes
            got += part
    assert got.startswith(b"HTTP/1.1 400")
    assert got.count(b"HTTP/1.1") == 1
    assert b"owned_by" not in got


def test_an_api_key_is_needed_where_there_is_one():
    with running(talking_model([97]), api_key="sésame") as server:
        body = {"model": "tiny", "messages": USER, "max_tokens": 1}
        for key in (None, "Bearer wrong", "Basic sésame", "sésame"):
            headers = {} if key is None else {"Authorization": key.encode()}
            status, answer = server.ask("POST", CHAT, body, **headers)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
            assert server.ask("GET", "/v1/models", **headers)[0] == 401
        right = {"Authorization": "Bearer sésame".encode()}
        assert server.ask("POST", CHAT, body, **right)[0] == 200
        assert server.ask("GET", "/")[0] == server.ask("GET", "/health")[0] == 200
