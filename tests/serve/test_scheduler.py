"""The scheduler: jobs begin in order, the queue has an end, and closing tells those that wait."""

import threading

import pytest
from generate_models import byte_tokenizer, talking_model

from nanogka.generate.continuous import Job
from nanogka.generate.engine import Engine
from nanogka.generate.settings import SamplingSettings
from nanogka.serve.scheduler import QueueFull, Scheduler, Stopped

PROMPT = [byte_tokenizer().bos_id, *b"Hi"]


class Client:
    """One that waits for a job's tokens."""

    def __init__(self, **options) -> None:
        self.job = Job([PROMPT], SamplingSettings(1.0, seed=1), **options)
        self.got, self.begun, self.ended = [], threading.Event(), threading.Event()

    def deliver(self, part) -> None:
        self.got += [part] if isinstance(part, Exception) else part
        self.begun.set()
        if isinstance(part, Exception) or all(event.finish for event in part):
            self.ended.set()


@pytest.fixture
def scheduler():
    """One with room for two texts, and two jobs that wait."""
    made = Scheduler(Engine(talking_model(range(97, 123), sequence_len=4096), byte_tokenizer()), 2, 2)
    yield made
    made.close()


def start(scheduler, client, begun: bool = True) -> Client:
    scheduler.submit(client.job, client.deliver)
    assert not begun or client.begun.wait(20)
    return client


def test_a_large_job_is_not_overtaken_for_ever(scheduler):
    first = start(scheduler, Client())
    large = start(scheduler, Client(samples=2, max_tokens=3), begun=False)
    small = start(scheduler, Client(max_tokens=3), begun=False)  # it would fit at once
    for _ in range(3):
        first.begun.clear()
        assert first.begun.wait(20)  # it goes on, alone
    assert scheduler.load == {"running": 1, "waiting": 2}
    with pytest.raises(QueueFull):
        start(scheduler, Client())
    assert not small.begun.is_set()
    scheduler.cancel(first.job)
    assert large.ended.wait(20)
    assert small.ended.wait(20)
    assert [len(large.got), len(small.got)] == [6, 3]
    assert not first.ended.is_set()


def test_closing_tells_all_that_wait_or_run(scheduler):
    running, waiting = start(scheduler, Client(samples=2)), start(scheduler, Client(), begun=False)
    scheduler.close()
    assert [type(client.got[-1]) for client in (running, waiting)] == [Stopped, Stopped]
    with pytest.raises(Stopped):
        start(scheduler, Client())
