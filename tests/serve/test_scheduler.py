"""The scheduler: requests start in order, the queue is bounded, and closing tells those that wait."""

import threading
import time
from collections.abc import Callable

import pytest

from nanogka.generate.continuous import Request, TokenOutput
from nanogka.serve.scheduler import PREFILL_TOKENS, QueueFull, Scheduler, Stopped


class FakeBatch:
    """A batch that makes a step whenever the test allows one. Its texts end after `max_tokens`."""

    def __init__(self) -> None:
        self.started: list[list[Request]] = []  # the requests that were added together
        self.left: dict[Request, int] = {}  # tokens to go
        self.steps = threading.Semaphore(0)

    def __len__(self) -> int:
        return sum(request.rows for request in self.left)

    @property
    def requests(self) -> set[Request]:
        return set(self.left)

    def add(self, requests: list[Request]) -> None:
        if requests:
            self.started.append(requests)
        self.left |= {request: request.max_tokens for request in requests}

    def abort(self, request: Request) -> None:
        self.left.pop(request, None)

    def step(self) -> list[tuple[Request, TokenOutput]]:
        if self.left:
            self.steps.acquire()
        self.left = {request: left - 1 for request, left in self.left.items()}
        ends = {request: None if left else "length" for request, left in self.left.items()}
        self.left = {request: left for request, left in self.left.items() if left}
        return [
            (request, TokenOutput(sample, 7, -1.0, "x", 0, end))
            for request, end in ends.items()
            for sample in range(request.rows)
        ]


class Client:
    """One that waits for a request's tokens."""

    def __init__(self, length: int = 3, max_tokens: int = 10**6, n: int = 1) -> None:
        self.request = Request([[1] * length], max_tokens=max_tokens, n=n)
        self.got, self.ended = [], threading.Event()

    def on_outputs(self, part) -> None:
        self.got += [part] if isinstance(part, Exception) else part
        if isinstance(part, Exception) or all(output.finish_reason for output in part):
            self.ended.set()


@pytest.fixture
def batch() -> FakeBatch:
    return FakeBatch()


@pytest.fixture
def scheduler(batch):
    """A scheduler with room for three texts, and three requests that wait."""
    batch.batch = lambda: batch  # it is its own engine
    made = Scheduler(batch, 3, 3)
    yield made
    batch.steps.release(10)
    made.close()


def start(scheduler, *clients: Client) -> None:
    for client in clients:
        scheduler.add(client.request, client.on_outputs)


def until(condition: Callable[[], bool]) -> None:
    """Wait for the scheduler's thread."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_large_request_is_not_overtaken_forever(scheduler, batch):
    first, large, small = Client(), Client(n=3, max_tokens=2), Client(max_tokens=2)
    start(scheduler, first)
    until(lambda: batch.started)
    start(scheduler, large, small)  # the small one would fit at once
    batch.steps.release(3)
    until(lambda: len(first.got) == 3)
    assert scheduler.load == {"running": 1, "waiting": 2}
    start(scheduler, Client())
    with pytest.raises(QueueFull):
        start(scheduler, Client())
    assert not small.got
    scheduler.abort(first.request)
    batch.steps.release(5)
    assert large.ended.wait(20)
    assert small.ended.wait(20)
    assert [len(large.got), len(small.got)] == [6, 2]
    assert not first.ended.is_set()


def test_an_aborted_request_that_waits_leaves_the_queue_and_is_never_generated(scheduler, batch):
    first, waiting, last = Client(n=3, max_tokens=2), Client(max_tokens=1), Client(max_tokens=1)
    start(scheduler, first)
    until(lambda: batch.started)
    start(scheduler, waiting, last)
    scheduler.abort(waiting.request)
    assert scheduler.load["waiting"] == 1
    batch.steps.release(3)
    assert last.ended.wait(20)
    assert batch.started == [[first.request], [last.request]]
    assert waiting.got == []


def test_prompts_that_are_read_together_have_a_limit_padding_included(scheduler, batch):
    first = Client(n=3, max_tokens=1)
    start(scheduler, first)
    until(lambda: batch.started)
    clients = [Client(10, 2), Client(PREFILL_TOKENS // 2, 2), Client(PREFILL_TOKENS // 2, 2)]
    start(scheduler, *clients)
    batch.steps.release(5)
    assert all(client.ended.wait(20) for client in clients)
    # Two prompts, padded to the longer, are just within the limit; the third would exceed it.
    one, two, three = (client.request for client in clients)
    assert batch.started == [[first.request], [one, two], [three]]


def test_calls_count_as_waiting_and_one_runs_between_two_steps(scheduler, batch):
    talking = Client()
    start(scheduler, talking)
    until(lambda: batch.started)
    calls = [scheduler.call(lambda: len(talking.got)) for _ in range(3)]
    assert scheduler.load == {"running": 1, "waiting": 3}
    with pytest.raises(QueueFull):
        scheduler.call(lambda: None)
    with pytest.raises(QueueFull):
        start(scheduler, Client())
    batch.steps.release(5)
    assert [call.result(20) for call in calls] == [1, 2, 3]  # tokens that the text had got before each call


def test_a_cancelled_call_is_never_made_and_harms_nobody(scheduler, batch):
    talking, made = Client(), []
    start(scheduler, talking)
    until(lambda: batch.started)
    first, second = (scheduler.call(lambda name=name: made.append(name)) for name in "ab")
    assert first.cancel()
    assert scheduler.load["waiting"] == 1
    batch.steps.release(4)
    second.result(20)
    assert made == ["b"]
    until(lambda: len(talking.got) == 4)
    # A call that is cancelled after the scheduler has taken it, but before it runs, is as harmless.
    late = scheduler.call(lambda: made.append("late"))
    late.cancel()
    scheduler._call(lambda: made.append("late"), late)
    assert made == ["b"]


def test_closing_tells_calls_that_wait_cancelled_ones_included(scheduler, batch):
    start(scheduler, Client())
    until(lambda: batch.started)
    calls = [scheduler.call(lambda: None) for _ in range(3)]
    calls[1]._state = "CANCELLED"  # between the cancellation and its notice to the scheduler
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    until(lambda: scheduler._closing)
    batch.steps.release(10)
    closing.join(20)
    assert not closing.is_alive()
    assert isinstance(calls[2].exception(1), Stopped)


def test_closing_tells_all_that_wait_or_run(scheduler, batch):
    running, waiting = Client(n=3), Client()
    start(scheduler, running)
    until(lambda: batch.started)
    start(scheduler, waiting)
    batch.steps.release(10)
    scheduler.close()
    assert [type(client.got[-1]) for client in (running, waiting)] == [Stopped, Stopped]
    with pytest.raises(Stopped):
        start(scheduler, Client())
