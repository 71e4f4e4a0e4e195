"""The protocol: what the official client gets is what the engine generates, and every bad request gets its reason."""

import json
import math
import re
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from generate_models import (
    by_sample,
    byte_tokenizer,
    greedy_without_cache,
    random_prompt,
    talking_model,
)

pytest.importorskip("uvicorn")

from serving import CHAT, HEAD, TEXT, USER, official, running, said  # noqa: E402

from nanogka.data.conversation import ChatFormat, Conversation  # noqa: E402
from nanogka.generate import scoring  # noqa: E402
from nanogka.generate.settings import SamplingParams  # noqa: E402
from nanogka.tokenizer import Tokenizer  # noqa: E402
from scripts import bench, serve  # noqa: E402

SAMPLED = {"temperature": 1.1, "seed": 7, "max_tokens": 12}


@pytest.fixture(scope="module")
def endless():
    """A server of a model that never stops by itself, for two texts at once and one that waits."""
    model = talking_model(range(97, 123), sequence_len=4096)
    with running(model, max_batch=2, max_queue=1, max_n=2) as server:
        yield server


def test_the_help_lists_every_route(chat_server, capsys):
    with pytest.raises(SystemExit):
        serve.main(["--help"])
    listed = re.search(r"Routes: ([^.]*)", capsys.readouterr().out)[1]
    paths = {route.path for route in chat_server.server.config.app.routes if "{" not in route.path}
    assert set(re.findall(r"/[\w/]*", listed)) == paths


@pytest.fixture
def complete(base_server):
    """Greedy completions of the base server to the official client: of `complete(prompt, …)`."""
    fixed = {"model": "tiny", "temperature": 0, "max_tokens": 10}
    with official(base_server) as made:
        yield lambda prompt, **options: made.completions.create(prompt=prompt, **fixed, **options)


def generated(server, ids: list[int], n: int = 1, stop_tokens=None, max_tokens: int = 10, **settings):
    """[(text, why it ended, outputs)] of the engine's own stream."""
    engine, params = server.served.engine, SamplingParams(**{"temperature": 1.0} | settings)
    found = by_sample(engine.stream([ids], params, max_tokens=max_tokens, n=n, stop_tokens=stop_tokens))
    return [("".join(e.text for e in events), events[-1].finish_reason, events) for _, events in sorted(found.items())]


def replied(server, *texts: str, system: str | None = None, **options):
    """The prompt of a conversation, and what is `generated` from it."""
    tokenizer = server.served.engine.tokenizer
    ids = ChatFormat(tokenizer).render_prompt(Conversation.of(*texts, system=system))
    return ids, generated(server, ids, stop_tokens=tokenizer.special_tokens.values(), **options)


# ---- what comes back ----


def test_a_chat_is_the_engines_reply(chat_server, chat):
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    messages = [{"role": "developer", "content": "Be kind."}, *said(parts, "Yes", "So 中文")]
    reply = chat(messages, n=3, **SAMPLED)
    ids, expected = replied(chat_server, "Hi", "Yes", "So 中文", system="Be kind.", n=3, **SAMPLED)
    assert [(c.message.content, c.finish_reason) for c in reply.choices] == [e[:2] for e in expected]
    assert len({chat(max_tokens=12).choices[0].message.content for _ in range(5)}) > 1  # without a seed they differ
    tokens = sum(len(events) for _, _, events in expected)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(ids), tokens)
    assert (reply.object, reply.model) == ("chat.completion", "tiny")


def test_a_stream_is_the_same_in_pieces(chat):
    whole = chat(n=2, **SAMPLED)
    texts, ends, usage, pieces = ["", ""], [None, None], None, 0
    for chunk in chat(n=2, **SAMPLED, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            pieces += bool(choice.delta.content)
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage
    assert pieces > 10


def test_completions_take_texts_and_tokens_and_stop(base_server, complete):
    prompts = ["Hi", "A list"]
    ids = [base_server.served.engine.encode(prompt) for prompt in prompts]
    expected = [generated(base_server, one, temperature=0)[0][:2] for one in ids]
    for form in (prompts, ids):
        assert [(choice.text, choice.finish_reason) for choice in complete(form).choices] == expected
    text = expected[0][0]
    cut = complete("Hi", stop=[text[4:6], "\0"]).choices[0]
    assert (cut.text, cut.finish_reason) == (text[: text.find(text[4:6])], "stop")
    assert "".join(chunk.choices[0].text for chunk in complete("Hi", stream=True)) == text


def test_log_probabilities_are_the_models_own(chat_server, chat, complete):
    options = {"logprobs": True, "top_logprobs": 3, **SAMPLED}
    content = chat(**options).choices[0].logprobs.content
    _, ((text, _, events),) = replied(chat_server, "Hi", **SAMPLED)
    special = chat_server.served.engine.tokenizer.special_tokens.values()
    values = [event.logprob for event in events if event.token not in special]
    assert [entry.logprob for entry in content] == pytest.approx(values, abs=1e-4)
    assert b"".join(bytes(entry.bytes) for entry in content).decode("utf-8", "replace") == text
    for entry in content:
        values = [other.logprob for other in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert len(values) == 3
        assert all(other.logprob == entry.logprob for other in entry.top_logprobs if other.bytes == entry.bytes)
    streamed = [chunk.choices[0] for chunk in chat(**options, stream=True)]
    assert [e for choice in streamed if choice.logprobs for e in choice.logprobs.content] == content
    old = complete("Hi", logprobs=2).choices[0].logprobs
    assert [max(top.values()) for top in old.top_logprobs] == pytest.approx(old.token_logprobs)
    assert old.text_offset == sorted(old.text_offset)
    assert math.isfinite(sum(old.token_logprobs))


def harness(server, pairs: list[tuple[list[int], list[int]]], **changes) -> list[tuple[float, bool]]:
    """(log-probability, whether each token is the likeliest) of continuations, as lm-evaluation-harness asks for them.

    It sends this body, and leaves out the context and the last entry, which it takes for the generated token.
    """
    body = {"model": "tiny", "prompt": [context + continuation for context, continuation in pairs], "temperature": 0}
    body |= {"max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True} | changes
    status, answer = server.ask("POST", TEXT, body)
    assert status == 200, answer
    end = -1 if body["max_tokens"] else None
    found = []
    for choice, (context, _) in zip(answer["choices"], pairs, strict=True):
        values = choice["logprobs"]["token_logprobs"][len(context) : end]
        tops = choice["logprobs"]["top_logprobs"][len(context) : end]
        found.append((sum(values), all(value == max(top.values()) for value, top in zip(values, tops, strict=True))))
    return found


@torch.no_grad()
def scored(model, vocab_size: int, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """The same from one plain forward pass."""
    log_p = model(torch.tensor([context + continuation]))[0, :, :vocab_size].double().log_softmax(-1)
    rows = log_p[len(context) - 1 : -1]
    chosen = torch.tensor(continuation)
    return float(rows.gather(1, chosen[:, None]).sum()), bool((rows.argmax(-1) == chosen).all())


def test_an_echo_scores_continuations_as_a_plain_forward_pass_does(base_server, monkeypatch):
    monkeypatch.setattr(scoring, "CHUNK", 50)
    engine = base_server.served.engine
    context = engine.encode("Ünder the sea")
    greedy, _ = greedy_without_cache(engine.model, context, 4, engine.tokenizer.vocab_size)
    long = random_prompt(180, 3)
    pairs = [(context, greedy), (context, greedy[:-1] + [7]), (long[:1], long[1:]), (long, [200, 201])]
    expected = [scored(engine.model, engine.tokenizer.vocab_size, *pair) for pair in pairs]
    for changes in ({}, {"max_tokens": 0}):
        found = harness(base_server, pairs, **changes)
        assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-3)
        assert [likeliest for _, likeliest in found] == [likeliest for _, likeliest in expected]
        assert expected[0][1]
        assert not expected[1][1]


def test_an_echo_has_an_entry_for_every_token_also_for_one_that_ends_the_text():
    tokenizer = byte_tokenizer()
    with running(talking_model([tokenizer.bos_id]), tokenizer, chats=False) as server:
        body = {"model": "tiny", "prompt": ["é", "ab"], "echo": True, "logprobs": 0, "temperature": 0, "n": 2}
        _, answer = server.ask("POST", TEXT, body)
        assert [choice["text"] for choice in answer["choices"]] == ["é", "é", "ab", "ab"]
        for choice in answer["choices"]:
            entries = choice["logprobs"]
            assert [entries[name][0] for name in ("token_logprobs", "top_logprobs")] == [None, None]
            assert len(entries["tokens"]) == len(entries["token_logprobs"]) == 1 + 2 + 1
            assert entries["tokens"][0] == entries["tokens"][-1] == "<|bos|>"
        assert answer["choices"][2]["logprobs"]["text_offset"] == [0, 0, 1, 2]
        assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}
        _, plain = server.ask("POST", TEXT, body | {"logprobs": None, "max_tokens": 0})
        assert [choice["text"] for choice in plain["choices"]] == ["é", "é", "ab", "ab"]
        assert plain["usage"]["completion_tokens"] == 0
        assert plain["choices"][0]["logprobs"] is None
        for wrong, field in (({"stream": True}, "echo"), ({"max_tokens": 0, "echo": False}, "max_tokens")):
            status, refused = server.ask("POST", TEXT, body | wrong)
            assert (status, refused["error"]["param"]) == (400, field)


def test_metrics_count_what_was_done():
    with running(talking_model([97]), chats=False, api_key="k") as server:
        key = {"Authorization": "Bearer k"}
        assert server.ask("GET", "/metrics")[0] == 401
        server.ask("POST", TEXT, {"model": "tiny", "prompt": "Hi", "max_tokens": 5, "n": 2}, **key)
        server.ask("POST", TEXT, {"model": "tiny"}, **key)
        server.ask("GET", '/v1/models/a"b', **key)
        server.ask("GET", "/x", **key)
        _, text = server.ask("GET", "/metrics", **key)
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert float(samples.pop("nanogka_first_token_seconds_sum")) > 0
        requests = {name: count for name, count in samples.items() if name.startswith("nanogka_requests_total")}
        assert requests == {
            'nanogka_requests_total{route="/metrics",status="401"}': "1",
            'nanogka_requests_total{route="/v1/completions",status="200"}': "1",
            'nanogka_requests_total{route="/v1/completions",status="400"}': "1",
            'nanogka_requests_total{route="/v1/models",status="404"}': "1",
            'nanogka_requests_total{route="other",status="404"}': "1",
        }
        assert {name: count for name, count in samples.items() if name not in requests} == {
            "nanogka_running_texts": "0",
            "nanogka_waiting_requests": "0",
            "nanogka_prompt_tokens_total": "3",
            "nanogka_generated_tokens_total": "10",
            "nanogka_first_token_seconds_count": "1",
        }
        names = {name.partition("{")[0].removesuffix("_sum").removesuffix("_count") for name in samples}
        assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} >= names


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_that_a_stop_string_cut_away_have_no_log_probability(endless, stream):
    with official(endless) as client:
        wanted = {"model": "tiny", "messages": USER, "max_tokens": 12, "seed": 5}
        text = client.chat.completions.create(**wanted).choices[0].message.content
        wanted |= {"stop": text[4:7], "logprobs": True, "stream": stream}
        reply = client.chat.completions.create(**wanted)
        pieces = [chunk.choices[0].logprobs for chunk in reply] if stream else [reply.choices[0].logprobs]
    tokens = [entry.token for piece in pieces if piece for entry in piece.content]
    assert "".join(tokens) == text[: text.find(text[4:7])]


def test_usage_counts_the_token_that_stops_a_reply():
    end = byte_tokenizer().special_tokens["<|assistant_end|>"]
    with running(talking_model([97, 98, end])) as server:
        _, answer = server.ask("POST", CHAT, {"model": "tiny", "messages": USER, "seed": 3, "n": 8})
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}
        letters = sum(len(choice["message"]["content"]) for choice in answer["choices"])
        assert answer["usage"]["completion_tokens"] == letters + 8 > 8


def test_fields_that_change_nothing_here_are_ignored(chat_server):
    body = {"model": "tiny", "messages": USER, "temperature": 0, "max_tokens": 5}
    plain = chat_server.ask("POST", CHAT, body)[1]["choices"]
    for more in (
        {"user": "me", "keep_alive": 5, "top_k": -1, "tools": [], "logit_bias": {}, "?": 1},
        {"logprobs": False, "top_logprobs": 0, "n": None, "seed": None, "tools": None, "response_format": None},
        {"stream_options": {"include_usage": False}, "stream": False},
        {"stop": [""], "stream_options": {}, "logit_bias": [], "best_of": 1, "functions": {}, "modalities": []},
        {"stop": "", "logit_bias": {"5": 0}, "mirostat": 0, "typical_p": 1, "dry_multiplier": 0.0, "repeat_penalty": 1},
        {"max_tokens": 5.0, "n": 1.0, "top_k": -1.0, "seed": 3.0},  # some languages have one kind of number
        {"store": False, "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": True},
        {"response_format": {"type": "text"}, "tools": [], "tool_choice": "none"},
        {"temperature": 0.0, "max_completion_tokens": 5, "max_tokens": -1, "logprobs": 0, "seed": -1},
    ):
        status, answer = chat_server.ask("POST", CHAT, body | more)
        assert (status, answer.get("choices")) == (200, plain), (more, answer)


def test_models_and_health(chat_server):
    openai = pytest.importorskip("openai")
    with official(chat_server) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").owned_by == "nanogka"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other/one")
    assert chat_server.ask("GET", "/health") == (200, {"status": "ok", "running": 0, "waiting": 0})


def test_messages_in_a_row_are_joined_and_penalties_are_the_engines(chat_server, chat):
    # As clients send them after a reply that was stopped: an empty reply, messages in a row of one side.
    messages = [*said("Hi", "", "Ho", "A"), *said("", "B")[1:], *USER]
    options = {"temperature": 0, "max_tokens": 10, "presence_penalty": 1.5, "frequency_penalty": 2}
    _, ((text, _, _),) = replied(chat_server, "Hi\n\nHo", "A\n\nB", "Hi", **options)
    assert chat(messages, **options).choices[0].message.content == text


def test_a_conversation_that_is_too_long_is_an_error_unless_somebody_asks_for_truncation(chat_server, chat):
    openai = pytest.importorskip("openai")
    messages = said("Hi", "x" * 200, "y" * 80)
    with pytest.raises(openai.BadRequestError, match="this model's maximum context length is 256 tokens") as error:
        chat(messages)
    assert error.value.code == "context_length_exceeded"
    reply = chat(messages, temperature=0, max_tokens=3, extra_body={"truncation": "auto"}).choices[0].message.content
    _, ((text, _, _),) = replied(chat_server, "y" * 80, temperature=0, max_tokens=3)
    assert reply == text
    with running(chat_server.served.engine.model, truncate=True) as server:
        body = {"model": "tiny", "messages": messages, "max_tokens": 3, "temperature": 0}
        assert server.ask("POST", CHAT, body)[1]["choices"][0]["message"]["content"] == text
        assert server.ask("POST", CHAT, body | {"truncation": "disabled"})[0] == 400


def test_a_text_that_cannot_fit_is_refused_or_cut_before_it_is_tokenized(chat_server, base_server, monkeypatch):
    encoded = []
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: encoded.append(len(text)) or encode(self, text))
    monkeypatch.setattr(Tokenizer, "encode_batch", lambda self, texts: [self.encode(text) for text in texts])
    long = "x" * 257  # a byte more than the context has tokens, each of one byte
    for path, body in ((CHAT, {"messages": said(long)}), (TEXT, {"prompt": ["Hi"] * 17}), (TEXT, {"prompt": long})):
        server = chat_server if path == CHAT else base_server
        status, answer = server.ask("POST", path, {"model": "tiny", **body})
        assert (status, answer["error"]["param"]) == (400, "messages" if path == CHAT else "prompt")
        cannot_fit = "at most 255: this model's maximum context length is 256 tokens" in answer["error"]["message"]
        assert cannot_fit == (answer["error"]["code"] == "context_length_exceeded") == (long in str(body))
    assert encoded == []
    messages = [{"role": "system", "content": "S"}, *said(long, "a", "Hi", "b" * 100, "Ho")]
    body = {"model": "tiny", "truncation": "auto", "temperature": 0, "max_tokens": 3}
    status, answer = chat_server.ask("POST", CHAT, {**body, "messages": messages})
    assert status == 200
    assert sum(encoded) < 130  # nothing of the turn that was left out
    _, ((text, _, _),) = replied(chat_server, "Hi", "b" * 100, "Ho", system="S", temperature=0, max_tokens=3)
    assert answer["choices"][0]["message"]["content"] == text


# ---- many at once ----


def test_20_at_once_finish_each_with_its_own_text(chat_server, chat):
    prompts = [f"Number {i} " * (1 + i % 5) for i in range(20)]
    options = [{"seed": i, "temperature": 1.0, "max_tokens": 5 + i} for i in range(20)]

    def ask(i: int) -> str:
        return chat([{"role": "user", "content": prompts[i]}], **options[i]).choices[0].message.content

    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(ask, range(20)))
    for i in range(0, 20, 3):
        _, ((text, _, _),) = replied(chat_server, prompts[i], **options[i])
        assert replies[i] == text
    chat_server.wait(running=0, waiting=0)


def test_the_benchmark_measures_a_server(base_server, capsys):
    words = "--concurrency 1,3 --requests 4 --min-tokens 2 --max-tokens 8".split()
    assert bench.main(["serve", "--url", base_server.address, *words]) == 0
    loads = json.loads(capsys.readouterr().out.splitlines()[-1])
    for load, count in zip(loads, (1, 3), strict=True):
        assert (load["concurrency"], load["requests"]) == (count, 4)
        # Drawn from 2 to 8 per request, the same in both measurements.
        assert 4 * 2 < load["tokens"] == loads[0]["tokens"] < 4 * 8
        assert 0 < load["first_token_median"] <= load["first_token_worst"] < load["seconds"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_full_queue_is_429_and_a_client_that_leaves_makes_room(endless, stream):
    openai = pytest.importorskip("openai")
    body = json.dumps({"model": "tiny", "messages": USER, "stream": stream}).encode()

    def ask() -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", endless.port))
        connection.sendall(HEAD % len(body) + body)
        return connection

    clients = []
    for running_texts in (1, 2):  # one after the other: a request that does not run yet would fill the queue
        clients.append(ask())
        endless.wait(running=running_texts, waiting=0)
    waiting = ask()
    endless.wait(running=2, waiting=1)
    with official(endless) as client, pytest.raises(openai.RateLimitError, match="1 requests are waiting") as error:
        client.chat.completions.create(model="tiny", messages=USER)
    assert error.value.response.headers["retry-after"] == "1"
    waiting.close()
    endless.wait(running=2, waiting=0)
    clients.append(ask())
    endless.wait(running=2, waiting=1)
    clients[0].close()
    endless.wait(running=2, waiting=0)
    for connection in clients:
        connection.close()
    endless.wait(running=0, waiting=0)


def test_a_model_that_fails_does_not_harm_the_next_request(endless, monkeypatch, capsys):
    short = {"model": "tiny", "messages": USER, "max_tokens": 3}
    monkeypatch.setattr(endless.served.engine.model, "hidden", lambda *_: 1 / 0)
    status, answer = endless.ask("POST", CHAT, short)
    assert (status, answer["error"]["code"]) == (500, "generation_failed")
    assert "ZeroDivisionError" in capsys.readouterr().err
    monkeypatch.undo()
    assert endless.ask("POST", CHAT, short)[0] == 200
