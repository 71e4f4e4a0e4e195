"""The attention page of a conversation: its data, who may see it, and the tab of the chat page that shows it."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from generate_models import byte_tokenizer, save_run, small_model

pytest.importorskip("uvicorn")

from serving import running  # noqa: E402

from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.runs import load_run
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
    with running(run.model, run.tokenizer, run=run, api_key="secret") as server:
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
        for wrong in ({"messages": []}, {"messages": "x"}, [], {"messages": [{"role": "robot", "content": "a"}]}):
            assert server.ask("POST", "/v1/attention", wrong, **key)[0] == 400
        for _ in range(4):  # only the last few are kept
            server.ask("POST", "/v1/attention", {"messages": MESSAGES}, **key)
        assert server.ask("GET", f"/{answer['page']}")[0] == 404
        assert server.ask("GET", "/attention/guess")[0] == 404


def test_a_base_model_has_no_attention_page(run):
    with running(run.model, run.tokenizer, chats=False, run=run) as server:
        assert server.ask("POST", "/v1/attention", {"messages": MESSAGES})[0] == 400


def test_the_chat_page_shows_it_in_a_second_tab(run, browser):
    with running(run.model, run.tokenizer, run=run) as server:
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
