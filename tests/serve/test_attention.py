"""The attention page of a conversation: its data, who may see it, and the tab of the chat page that shows it."""

import http.client
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from generate_models import byte_tokenizer, save_run, small_model

pytest.importorskip("uvicorn")

from serving import running  # noqa: E402

from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.runs import load_run
from nanogka.serve import attention
from nanogka.serve.attention import AttentionPages
from nanogka.visualize import capture
from nanogka.visualize.capture import token_labels

MESSAGES = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]


@pytest.fixture
def run(base):
    tokenizer = byte_tokenizer()
    model = small_model(sequence_len=64, vocab_size=tokenizer.vocab_size)
    save_run(base / "runs" / "tiny", model, tokenizer=tokenizer)
    return load_run("tiny")


def test_the_page_has_the_conversation_as_the_model_read_it(run):
    ids, _ = ChatFormat(run.tokenizer).render(Conversation.of("ab", "cd"))
    with running(run.model, run.tokenizer, api_key="secret") as server:
        assert server.ask("POST", "/v1/attention", {"messages": MESSAGES})[0] == 401
        key = {"Authorization": "Bearer secret"}
        talk = {"messages": MESSAGES[:1], "max_tokens": 20, "model": "tiny"}
        with ThreadPoolExecutor() as pool:  # while the model generates for somebody else
            others = [pool.submit(server.ask, "POST", "/v1/chat/completions", talk, **key) for _ in range(3)]
            status, answer = server.ask("POST", "/v1/attention", {"messages": MESSAGES}, **key)
            assert [other.result()[0] for other in others] == [200] * 3
        assert status == 200
        _, page = server.ask("GET", f"/{answer['page']}")
        data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
        assert data["models"][0]["tokens"] == token_labels(run.tokenizer, ids)
        several = [
            {"role": "developer", "content": "S"},
            MESSAGES[0],
            {"role": "assistant", "content": ""},
            MESSAGES[0],
        ]
        assert server.ask("POST", "/v1/attention", {"messages": several}, **key)[0] == 200  # as for a reply
        for wrong in ({"messages": []}, {"messages": "x"}, [], {"messages": [{"role": "robot", "content": "a"}]}):
            assert server.ask("POST", "/v1/attention", wrong, **key)[0] == 400
        for _ in range(4):  # only the last few are kept
            server.ask("POST", "/v1/attention", {"messages": MESSAGES}, **key)
        assert server.ask("GET", f"/{answer['page']}")[0] == 404
        assert server.ask("GET", "/attention/guess")[0] == 404


def test_only_the_chat_page_may_frame_it(run):
    with running(run.model, run.tokenizer) as server:
        _, answer = server.ask("POST", "/v1/attention", {"messages": MESSAGES})
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("GET", f"/{answer['page']}")
        assert connection.getresponse().headers["Content-Security-Policy"] == "frame-ancestors 'self'"
        connection.close()


def test_pages_wait_in_the_bounded_queue_and_leave_it_with_their_client(run, monkeypatch):
    begun, may_end, built = threading.Semaphore(0), threading.Semaphore(0), []

    def build(pages, ids):
        begun.release()
        assert may_end.acquire(timeout=30)
        built.append(ids)
        return "page"

    monkeypatch.setattr(AttentionPages, "build", build)
    body = json.dumps({"messages": MESSAGES}).encode()
    head = "POST /v1/attention HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with running(run.model, run.tokenizer, max_queue=2) as server:
        clients = []
        for waiting in range(3):  # the first is being built, two wait
            clients.append(socket.create_connection(("127.0.0.1", server.port)))
            clients[-1].sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert waiting or begun.acquire(timeout=30)
            server.wait(waiting=waiting)
        assert server.ask("POST", "/v1/attention", {"messages": MESSAGES})[0] == 429
        talk = {"messages": MESSAGES[:1], "max_tokens": 2, "model": "tiny"}
        assert server.ask("POST", "/v1/chat/completions", talk)[0] == 429
        for client in clients:
            client.close()
        server.wait(waiting=0)
        may_end.release()
        assert server.ask("POST", "/v1/chat/completions", talk)[0] == 200  # the scheduler lives
        assert len(built) == 1


def read(_, ids):
    """Stand for `capture`: tell what it would read."""
    raise NotImplementedError(ids)


def test_a_page_has_as_many_tokens_as_its_memory_allows(run, monkeypatch):
    config = run.model.config
    with running(run.model, run.tokenizer) as server:
        pages = AttentionPages(server.served)
        assert pages.longest == config.sequence_len
        # Weights of exactly nine tokens, one byte less, and what the model was asked to read.
        for most, longest in ((4 * 9**2 * config.n_layer * config.n_head, 9), (4 * 81 * config.n_layer * 2 - 1, 8)):
            monkeypatch.setattr(attention, "MAX_WEIGHT_BYTES", most)
            with monkeypatch.context() as patch:
                patch.setattr(capture, "capture", read)
                with pytest.raises(NotImplementedError) as asked:
                    pages.build(list(range(20)))
            assert asked.value.args[0] == list(range(longest))
        too_long = {"messages": [{"role": "user", "content": "x" * (2 * config.sequence_len + 1)}]}
        monkeypatch.setattr(type(run.tokenizer), "encode_batch", lambda *_: 1 / 0)  # is not asked
        status, answer = server.ask("POST", "/v1/attention", too_long)
        assert (status, answer["error"]["param"]) == (400, "messages")
        assert "the context is" in answer["error"]["message"]


def test_pages_can_be_turned_off(run):
    with running(run.model, run.tokenizer, attention=False) as server:
        assert server.ask("POST", "/v1/attention", {"messages": MESSAGES})[0] == 400
        assert server.ask("GET", "/v1/models/tiny")[1]["attention"] is False


def test_a_base_model_has_no_attention_page(run):
    with running(run.model, run.tokenizer, chats=False) as server:
        assert server.ask("POST", "/v1/attention", {"messages": MESSAGES})[0] == 400


def test_the_chat_page_shows_it_in_a_second_tab(run, browser):
    with running(run.model, run.tokenizer) as server:
        browser.open(server.address)
        talk = json.dumps([MESSAGES[0], {**MESSAGES[1], "finish": "stop"}])
        browser.evaluate(f"connect().then(() => {{ messages = {talk}; draw(); }})")
        end = time.monotonic() + 30
        while browser.evaluate("document.getElementById('look').hidden"):
            assert time.monotonic() < end
            time.sleep(0.05)
        browser.evaluate("document.getElementById('look').click()")
        tokens = "document.getElementById('attention').contentDocument?.querySelectorAll('.token').length"
        while not browser.evaluate(tokens):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert browser.evaluate("document.getElementById('log').hidden")
        browser.evaluate("document.getElementById('look').click()")
        assert not browser.evaluate("document.getElementById('log').hidden")
        assert browser.complaints() == []
