"""Random schedules of arrivals, cancellations, pages, failures and shutdown against each request alone.

The test takes the place of the scheduler's thread, so a schedule is deterministic and hypothesis can shorten it. The
model has one layer and computes in float64, so that the size of a batch changes no token.
"""

import math
from concurrent.futures import CancelledError
from functools import cache

import pytest
import torch
from generate_models import byte_tokenizer

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, Phase, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule  # noqa: E402

from nanogka.data.conversation import ChatFormat  # noqa: E402
from nanogka.generate.continuous import Request, TokenOutput  # noqa: E402
from nanogka.generate.engine import Engine  # noqa: E402
from nanogka.generate.scoring import score_prompt  # noqa: E402
from nanogka.generate.settings import SamplingParams  # noqa: E402
from nanogka.model import GPT, GPTConfig  # noqa: E402
from nanogka.serve import scheduler as scheduler_module  # noqa: E402
from nanogka.serve.scheduler import QueueFull, Scheduler, Stopped  # noqa: E402
from nanogka.visualize.capture import capture  # noqa: E402

MAX_BATCH, MAX_QUEUE, CONTEXT = 6, 3, 40
PROMPTS = ([97], [98] * 7, [*b"1+1 a"], list(range(60, 90)), [49] * (CONTEXT - 2))


@cache
def engine() -> Engine:
    """An engine whose model calls the calculator often and ends its texts often."""
    tokenizer = byte_tokenizer()
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 32, "vocab_size": 300, "sequence_len": CONTEXT}
    model = GPT(GPTConfig.from_dict(shape | {"mixer_pattern": "G", "window_pattern": "S"}), seed=3)
    special = tokenizer.special_tokens
    favorites = [*b"1+a", *(special[f"<|{name}|>"] for name in ("python_start", "python_end", "assistant_end"))]
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("c_proj.weight", "gate.weight")) or name == "lm_head.weight":
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    bias = torch.full((300,), -20.0)  # other tokens are rare
    bias[favorites] = 0.0
    bias[ord("1")], bias[special["<|assistant_end|>"]] = 1.5, -2.0
    unembed = model.unembed
    model.unembed = lambda hidden: unembed(hidden) + bias
    return Engine(model.double().to_compute(torch.float64).eval(), tokenizer, prefill_chunk=8)


@st.composite
def requests(draw) -> tuple:
    """The arguments of a request: prompts, seed, temperature, texts, tokens, who calculates, stop string."""
    prompts = draw(st.lists(st.integers(0, len(PROMPTS) - 1), min_size=1, max_size=2))
    n = draw(st.integers(1, MAX_BATCH // len(prompts)))
    tools = draw(st.sampled_from(["none", "server", "client"]))
    return (*map(tuple, (prompts,)), draw(st.integers(0, 2)), draw(st.sampled_from([0.0, 1.0])), n,
            draw(st.sampled_from([1, 2, 5, 30])), tools, draw(st.sampled_from(["", "aa"])))  # fmt: skip


def request_of(spec: tuple) -> Request:
    """A new request with these arguments."""
    prompts, seed, temperature, n, max_tokens, tools, stop = spec
    form = ChatFormat(engine().tokenizer)
    stops = [*form.stop_ids, form.call_end_id] if tools == "client" else form.stop_ids
    params = SamplingParams(temperature=temperature, seed=seed)
    options = {"stop_tokens": stops, "stop_strings": [stop] if stop else (), "calculator": tools != "none"}
    return Request([PROMPTS[number] for number in prompts], params, max_tokens, n, **options)


@cache
def alone(spec: tuple) -> list[list[TokenOutput]]:
    """Each text of a request that is generated without any other."""
    request = request_of(spec)
    batch, texts = engine().batch(), [[] for _ in range(request.rows)]
    batch.add([request])
    while len(batch):
        for _, output in batch.step():
            texts[output.sample].append(output)
    return texts


def page(number: int) -> list[float]:
    """What an attention page and an echo of a prompt need of the model."""
    weights = capture(engine().model, PROMPTS[number]).attention[0].weights
    scores = [output.logprob for output in score_prompt(engine(), PROMPTS[number])[1:]]
    return [*weights.flatten().tolist(), *scores]


page_alone = cache(page)


class Stepped(Scheduler):
    """A scheduler whose turns the test makes."""

    def _start(self) -> None:
        pass


class Client:
    """A request with what it has got."""

    def __init__(self, spec: tuple) -> None:
        self.spec, self.request = spec, request_of(spec)
        self.texts: list[list[TokenOutput]] = [[] for _ in range(self.request.rows)]
        self.error: Exception | None = None
        self.cancelled = False

    def on_outputs(self, part: list[TokenOutput] | Exception) -> None:
        assert not self.cancelled, "a cancelled request got something"
        assert self.error is None, "a request got something after its error"
        if isinstance(part, Exception):
            self.error = part
            return
        for output in part:
            self.texts[output.sample].append(output)

    @property
    def finished(self) -> bool:
        return all(text and text[-1].finish_reason for text in self.texts)

    def check(self) -> None:
        """What it has got is the beginning of what it gets alone."""
        for got, wanted in zip(self.texts, alone(self.spec), strict=True):
            assert len(got) <= len(wanted)
            for mine, other in zip(got, wanted):
                for name in ("token", "text", "offset", "finish_reason", "part", "forced"):
                    assert getattr(mine, name) == getattr(other, name), (name, mine, other)
                assert math.isclose(mine.logprob, other.logprob, abs_tol=1e-5)


class Schedules(RuleBasedStateMachine):
    """Clients and pages come and go while the scheduler makes its turns."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Stepped(engine(), MAX_BATCH, MAX_QUEUE)
        self.clients: list[Client] = []
        self.pages: list[tuple[int, object]] = []

    @property
    def is_full(self) -> bool:
        waiting = sum(client.request in self.scheduler._waiting for client in self.clients)
        return waiting + sum(not call.done() for _, call in self.pages) >= MAX_QUEUE

    @rule(specs=st.lists(requests(), min_size=1, max_size=MAX_QUEUE))
    def arrive(self, specs):
        for spec in specs:
            client = Client(spec)
            if self.is_full:
                with pytest.raises(QueueFull):
                    self.scheduler.add(client.request, client.on_outputs)
            else:
                self.scheduler.add(client.request, client.on_outputs)
                self.clients.append(client)

    @rule(number=st.integers(0, len(PROMPTS) - 1))
    def ask_for_a_page(self, number):
        if self.is_full:
            with pytest.raises(QueueFull):
                self.scheduler.call(lambda: page(number))
        else:
            self.pages.append((number, self.scheduler.call(lambda: page(number))))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def cancel(self, data):
        live = [client for client in self.clients if client.request in self.scheduler._on_outputs]
        client = data.draw(st.sampled_from(live or self.clients))
        self.scheduler.abort(client.request)
        client.cancelled = client.cancelled or not (client.finished or client.error)

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def cancel_a_page(self, data):
        data.draw(st.sampled_from(self.pages))[1].cancel()

    @rule(turns=st.integers(1, 4))
    def step(self, turns):
        for _ in range(turns):
            waiting, done = len(self.scheduler._calls), sum(call.done() for _, call in self.pages)
            self.scheduler._turn()
            assert sum(call.done() for _, call in self.pages) == done + bool(waiting)  # one call per turn
            wanted = self.scheduler._on_outputs.keys() - set(self.scheduler._waiting)
            assert self.scheduler._batch.requests == wanted  # nobody else takes room
            assert self.scheduler.load["running"] <= MAX_BATCH

    @rule(when=st.sampled_from(["add", "step"]))
    def fail(self, when):
        real = getattr(self.scheduler._batch, when)

        def broken(*arguments):
            real(*arguments)
            raise ZeroDivisionError

        running = self.scheduler._on_outputs.keys() - set(self.scheduler._waiting)
        will_fail = when == "add" or bool(running or self.scheduler._waiting)
        setattr(self.scheduler._batch, when, broken)
        self.scheduler._turn()
        self.scheduler._batch.__dict__.pop(when, None)
        if will_fail:
            assert self.scheduler.load["running"] == 0
            assert all(client.error or client.finished for client in self.clients if client.request in running)

    @precondition(lambda self: len(self.clients) > 5)  # seldom, because afterwards nothing runs
    @rule()
    def finish_everything(self):
        for _ in range(400):
            self.scheduler._turn()
            if not any(self.scheduler.load.values()):
                break
        assert self.scheduler.load == {"running": 0, "waiting": 0}
        assert all(client.finished or client.cancelled or client.error for client in self.clients)
        assert all(call.done() for _, call in self.pages)

    @invariant()
    def what_has_come_is_right(self):
        for client in self.clients:
            client.check()
        for number, call in self.pages:
            if call.done() and not call.cancelled():
                assert call.result() == page_alone(number)
        load = self.scheduler.load
        assert load["running"] <= MAX_BATCH
        assert load["waiting"] <= MAX_QUEUE

    @invariant()
    def requests_begin_in_the_order_of_their_arrival(self):
        begun = [any(client.texts) for client in self.clients if not (client.cancelled or client.error)]
        assert begun == sorted(begun, reverse=True)

    def teardown(self):
        unfinished = [client for client in self.clients if not (client.finished or client.cancelled or client.error)]
        waiting = [call for _, call in self.pages if not call.done()]
        self.scheduler._closing = True
        self.scheduler._end()
        assert all(isinstance(client.error, Stopped) for client in unfinished)
        for call in waiting:
            with pytest.raises((Stopped, CancelledError)):
                call.result(0)
        with pytest.raises(Stopped):
            self.scheduler.call(lambda: None)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Failures are part of the schedules: their tracebacks are not printed."""
    monkeypatch.setattr(scheduler_module.traceback, "print_exc", lambda **_: None)


def run(schedules: int, **options) -> None:
    # No deadline, because the time of a schedule depends on the machine. No database of earlier failures.
    options |= {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    Schedules.TestCase.settings = settings(max_examples=schedules, stateful_step_count=25, **options)
    Schedules.TestCase("runTest").runTest()


def test_schedules():
    # The same schedules every time. A failure is not made smaller, which takes minutes.
    run(60, derandomize=True, phases=[Phase.generate])


@pytest.mark.slow
def test_10_000_schedules():
    run(10_000)


def test_the_requests_of_the_schedules_call_tools_stop_and_run_into_every_end():
    """Otherwise the schedules would prove little."""
    outputs = []
    for number in range(len(PROMPTS)):
        for seed in range(3):
            for tools in ("none", "server", "client"):
                outputs += [out for text in alone(((number,), seed, 1.0, 2, 30, tools, "aa")) for out in text]
    assert {output.finish_reason for output in outputs} == {None, "stop", "length", "context"}
    assert {output.part for output in outputs} == {"text", "python", "python_output"}
    assert any(output.forced for output in outputs)
